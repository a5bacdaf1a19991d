"""Faults of messages and of whoever sends them, with server and sites in one process (`tests/flower/in_process.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flower.in_process import InProcess, configuration, node_of, records, simulate, sites

from posterity.core.codec import decode, encode
from posterity.core.named_arrays import read_header
from posterity.core.tree import Tree, tree_map, tree_named, tree_rows
from posterity.experiment.config import Config
from posterity.flower.experiment import open_server, save
from posterity.flower.request import Request
from posterity.flower.rules import RoundRules
from posterity.flower.server import Server, Watch
from posterity.flower.site import answer

CLIENTS, ROUNDS, VICTIM, AT = 4, 4, 1, 2
EVERYBODY = list(range(CLIENTS))
Forge = Callable[[bytes, "Forger"], bytes | str]


@dataclass(frozen=True)
class Outcome:
    """What became of a fault."""

    fault: str
    said: str
    end: str
    kept: bool


class Killed(Exception):
    """The server's end."""


@dataclass
class Forger:
    """What a forger knows: what it was asked, how to read a message, and what it sent before."""

    server: Server | None = None
    sent: dict[int, bytes] = field(default_factory=dict)

    def changed(self, reply: bytes, change: Callable[[torch.Tensor], torch.Tensor], **facts: Any) -> bytes:
        """The message with every number of its values changed, in the right form."""
        server, header = self.server, read_header(reply)
        assert server is not None
        request = Request(server.agreement, server.state, header.facts["round"], (f"client {VICTIM}",))
        message = decode(
            reply, request._expected(server.roster.clients[f"client {VICTIM}"], VICTIM), header.fingerprint
        )
        sent = {name: replace(part, value=tree_map(change, part.value)) if hasattr(part, "value") else part
                for name, part in message.items()}  # fmt: skip
        return encode(sent, header.fingerprint, {**header.facts, **facts})


class Injecting(InProcess):
    """A network on which one client's reply of one round is another one."""

    def __init__(self, make: dict[int, Any], forge: Forge | None, times: int = 1, echo: bool = False):
        super().__init__(make)
        self.forge, self.times, self.echo, self.forger = forge, times, echo, Forger()

    def ask(self, questions: Any) -> Any:
        for node, data in questions:
            facts = read_header(data).facts
            reply = answer(self.make[node](), data)
            if node == node_of(VICTIM) and facts["ask"] == "visit":
                self.forger.sent[facts["round"]] = reply
                if facts["round"] == AT and not facts["trial"] and self.forge and self.times:
                    self.times -= 1
                    yield node, self.forge(reply, self.forger)
                    continue
            yield node, reply
            if self.echo:
                yield node, reply


def setting(method: str, **own: str) -> Config:
    return configuration(method, clients=CLIENTS, rounds=ROUNDS, evaluate_every=ROUNDS + 1, set=own)


def play(
    folder: Path, forge: Forge | None, config: Config, rules: RoundRules | None = None, echo: bool = False
) -> tuple[Server, list[dict[str, Any]]]:
    """A run with a fault, to its end."""
    lines: list[dict[str, Any]] = []
    exchange = Injecting(sites(config, folder), forge, echo=echo)
    server = opened(config, folder, exchange, lines.append, rules or RoundRules(pause=0))
    exchange.forger.server = server
    for _ in range(ROUNDS):
        server.step()
        save(server)
    return server, lines


def opened(config: Config, folder: Path, exchange: InProcess, watch: Watch, rules: RoundRules) -> Server:
    """The server of a run, from where its folder stands."""
    (folder / "server").mkdir(parents=True, exist_ok=True)
    return open_server(config, exchange, folder / "server", CLIENTS, watch, wait=0, rules=rules)


def said(lines: list[dict[str, Any]]) -> str:
    """Who was left out and why, in the table's words."""
    rounds = [line for line in lines if line["kind"] == "round"]
    told = [f"round {line['round']}, {each['client']}: {each['reason']}" for line in rounds for each in line["refused"]]
    told += [f"round {line['round']} rolled back: {line['rolled_back']}" for line in rounds if "rolled_back" in line]
    told += [line["text"] for line in lines if line["kind"] == "note" and "asked again" in line["text"]]
    counts = ", ".join(str(line["accepted"]) for line in rounds)
    return f"{'; '.join(told) or 'nothing'} (accepted: {counts})".replace("|", "/")


def end_of(server: Server, folder: Path, expected: Any) -> list[str]:
    """The leaves of state and records that differ, with the largest gap; none: bit for bit the same."""
    state, store, _ = expected
    pairs: list[tuple[str, Tree, Tree]] = [("state", server.state, state)]
    mine = records(server, folder, tree_rows(store.rows, 0))
    if sorted(mine) != store.known.nonzero()[:, 0].tolist():
        return ["who has a record"]
    pairs += [(f"record {k}", record, tree_rows(store.rows, k)) for k, record in mine.items()]
    wrong = []
    for top, one, two in pairs:
        gaps = {name: float((left.double() - right.double()).abs().max()) for (name, left), (_, right)
                in zip(tree_named(one), tree_named(two), strict=True) if not torch.equal(left, right)}  # fmt: skip
        if gaps:
            wrong.append(f"{top}: {len(gaps)} leaves, by {max(gaps.values()):.2g}")
    return wrong


def judged(
    fault: str, folder: Path, done: tuple[Server, list[dict[str, Any]]], config: Config, promise: str
) -> Outcome:
    """The end of a run beside the two that it may equal. `promise`: "undisturbed", "without" or "differs"."""
    server, lines = done
    without = [k for k in EVERYBODY if k != VICTIM]
    gap = end_of(server, folder, simulate(config))
    missing = end_of(server, folder, simulate(config, [EVERYBODY, without, EVERYBODY, EVERYBODY]))
    if not gap:
        found, end = "undisturbed", "as undisturbed, bit for bit"
    elif not missing:
        found, end = "without", "as without that message, bit for bit"
    else:
        found, end = "differs", f"differs: {'; '.join(gap)}"
    right = found == promise and server.round == ROUNDS and server.counted == {f"client {k}": 4 for k in EVERYBODY}
    return Outcome(fault, said(lines), end, right)


def forged(fault: str, forge: Forge, promise: str, method: str, own: dict[str, str], folder: Path) -> Outcome:
    config = setting(method, **own)
    return judged(fault, folder, play(folder, forge, config), config, promise)


def _killed_site(promise: str, minimum: str, folder: Path) -> Outcome:
    """A site trains, writes its record, and dies before it answers."""
    config = setting("scaffold")
    done = play(folder, lambda reply, _: "the node failed", config, RoundRules(minimum, pause=0))
    fault = f"a site dies after it has trained; minimum {minimum}"
    return judged(fault, folder, done, config, promise)


def _killed_server(folder: Path) -> Outcome:
    """The server dies in every round, before its state is saved, and is started again."""
    config, died = setting("scaffold"), 0

    def watch(line: dict[str, Any]) -> None:
        if line["kind"] == "round":
            raise Killed

    for _ in range(ROUNDS):
        exchange = InProcess(sites(config, folder))
        try:
            opened(config, folder, exchange, watch, RoundRules()).step()
        except Killed:
            died += 1
        server = opened(config, folder, exchange, lambda line: None, RoundRules())
        server.step()
        save(server)
    outcome = judged("the server dies in each round, before it saves", folder, (server, []), config, "undisturbed")
    return replace(outcome, said=f"killed {died} times; each round was asked for again")


def _duplicated(folder: Path) -> Outcome:
    config = setting("scaffold")
    return judged("every reply arrives twice", folder, play(folder, None, config, echo=True), config, "undisturbed")


def _replayed(reply: bytes, forger: Forger) -> bytes:
    return forger.sent[AT - 1]


def _disguised(reply: bytes, forger: Forger) -> bytes:
    """The old message under the new round's number: its numbers are finite and in the right form."""
    return forger.changed(_replayed(reply, forger), lambda leaf: leaf, round=AT)


def _shapes(reply: bytes, forger: Forger) -> bytes:
    header = read_header(reply)
    return encode({"params": torch.zeros(3, 3)}, header.fingerprint, header.facts)


def _scaled(factor: float, reply: bytes, forger: Forger) -> bytes:
    return forger.changed(reply, lambda leaf: leaf * factor)


FORGED: dict[str, tuple[str, Forge, str, str, dict[str, str]]] = {
    "nan": ("NaN", partial(_scaled, float("nan")), "without", "fedavg", {}),
    "shapes": ("wrong names and shapes", _shapes, "without", "fedavg", {}),
    "huge": ("numbers of 1e30", partial(_scaled, 1e30), "without", "fedavg", {}),
    "large": ("numbers of 1e12, which the codec and float32 can hold", partial(_scaled, 1e12), "without", "fedavg", {}),
    "poisoner": ("a finite poisoner: −20 × its parameters", partial(_scaled, -20.0), "differs", "fedavg", {}),
    "poisoner-clip": (
        "the same with +clip, which the site ignores",
        partial(_scaled, -20.0),
        "without",
        "fedavg+clip",
        {"bound": "2"},
    ),
    "replayed": ("its message of round 1 again (an old round)", _replayed, "without", "scaffold", {}),
    "disguised": ("its message of round 1 under the number of round 2", _disguised, "differs", "fedavg", {}),
    "garbage": ("2,000 bytes of nothing", lambda reply, _: bytes(2000), "without", "scaffold", {}),
    "cut": ("a message without its last 5 bytes", lambda reply, _: reply[:-5], "without", "scaffold", {}),
}
FAULTS: dict[str, Callable[[Path], Outcome]] = {
    "site-50": partial(_killed_site, "without", "50%"),
    "site-100": partial(_killed_site, "undisturbed", "100%"),
    "server": _killed_server,
    **{name: partial(forged, *made) for name, made in FORGED.items()},
    "duplicated": _duplicated,
}

__all__ = ["FAULTS", "Outcome"]
