"""Faults of messages and of whoever sends them, with server and sites in one process (`tests/flower/in_process.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flower.in_process import InProcess, configuration, node_of, records, simulate, sites

from injected.forged import AT, BOUND, FORGED, VICTIM, Forge, Forged, Seen, is_forged
from posterity.core.protocol import State
from posterity.core.tree import Tree, tree_map, tree_named, tree_rows
from posterity.flower.codec import read_facts
from posterity.flower.experiment import open_server, save
from posterity.flower.server import Server, Watch
from posterity.flower.settings import RoundRules
from posterity.flower.site import answer
from posterity.methods.wrappers.clip import length
from posterity.runs.files import read_lines
from posterity.runs.folder import METRICS
from posterity.settings.config import Config

CLIENTS, ROUNDS = 4, 4
Played = tuple[Server, list[dict[str, Any]], State]  # a run's server and lines, and the state after the forged round


@dataclass(frozen=True)
class Outcome:
    """What became of a fault."""

    fault: str
    said: str
    end: str
    kept: bool


class Killed(Exception):
    """The server's end."""


class Injecting(InProcess):
    """A network on which one client's reply of one round is another one, once."""

    def __init__(self, make: dict[int, Any], forge: Forge | None, echo: bool = False):
        super().__init__(make)
        self.forge, self.echo, self.earlier = forge, echo, b""

    def ask(self, questions: Any) -> Any:
        for node, data in questions:
            asked, reply = read_facts(data), answer(self.make[node](), data)
            victim = node == node_of(VICTIM)
            if victim and asked.get("round") == AT - 1:
                self.earlier = reply
            if victim and is_forged(f"client {VICTIM}", asked) and self.forge:
                forge, self.forge = self.forge, None
                yield node, forge(Seen(data, reply, self.earlier))
                continue
            yield node, reply
            if self.echo:
                yield node, reply


def setting(method: str, own: Mapping[str, str] | None = None, clients: int = CLIENTS, rounds: int = ROUNDS) -> Config:
    return configuration(method, clients=clients, rounds=rounds, evaluate_every=rounds + 1, set=dict(own or {}))


def play(
    folder: Path, forge: Forge | None, config: Config, rules: RoundRules | None = None, echo: bool = False
) -> Played:
    """A run with a fault, to its end."""
    lines: list[dict[str, Any]] = []
    exchange = Injecting(sites(config, folder), forge, echo=echo)
    server = opened(config, folder, exchange, lines.append, rules or RoundRules(pause=0))
    states = []
    for _ in range(config.rounds):
        server.step()
        save(server)
        states.append(server.state)
    return server, lines, states[AT - 1]


def opened(config: Config, folder: Path, exchange: InProcess, watch: Watch, rules: RoundRules) -> Server:
    """The server of a run, from where its folder stands."""
    (folder / "server").mkdir(parents=True, exist_ok=True)
    return open_server(config, exchange, folder / "server", len(exchange.make), watch, wait=0, rules=rules)


def said(lines: list[dict[str, Any]]) -> str:
    """Who was left out and why, in the table's words."""
    rounds = [line for line in lines if line["kind"] == "round"]
    told = [f"round {line['round']}, {each['client']}: {each['reason']}" for line in rounds for each in line["refused"]]
    told += [f"round {line['round']} rolled back: {line['rolled_back']}" for line in rounds if "rolled_back" in line]
    told += [line["text"] for line in lines if line["kind"] == "note" and "asked again" in line["text"]]
    counts = ", ".join(str(line["accepted"]) for line in rounds)
    return f"{'; '.join(told) or 'nothing'} (accepted: {counts})".replace("|", "/").replace("<", "\\<")


def end_of(server: Server, folder: Path, expected: Any) -> list[str]:
    """The leaves of state and records that differ, and how far; none: bit for bit the same."""
    state, store, _ = expected
    pairs: list[tuple[str, Tree, Tree]] = [("state", server.state, state)]
    mine = records(server, folder, tree_rows(store.rows, 0))
    if sorted(mine) != store.known.nonzero()[:, 0].tolist():
        return ["who has a record"]
    pairs += [(f"record {k}", record, tree_rows(store.rows, k)) for k, record in mine.items()]
    return [f"{top}: {told}" for top, one, two in pairs if (told := difference(one, two))]


def difference(one: Tree, two: Tree) -> str:
    """In how many leaves two trees differ, and how far; empty: bit for bit the same."""
    gaps = [(left.double() - right.double()).flatten() for (_, left), (_, right)
            in zip(tree_named(one), tree_named(two), strict=True) if not torch.equal(left, right)]  # fmt: skip
    if not gaps:
        return ""
    every = torch.cat(gaps)
    return f"{len(gaps)} leaves, by {every.abs().max():.2g} at most, {every.norm():.2g} in length"


def judged(
    fault: str,
    folder: Path,
    done: tuple[Server, list[dict[str, Any]]],
    config: Config,
    promise: str,
    absent: Sequence[int] = (AT,),
) -> Outcome:
    """The end of a run beside the two that it may equal: undisturbed, and without the client in some rounds.

    `promise`: "undisturbed", "without", "differs" or "bounded".
    """
    server, lines = done
    everybody, rounds = list(range(config.clients or 0)), list(range(1, config.rounds + 1))
    cohorts = [[k for k in everybody if k != VICTIM or number not in absent] for number in rounds]
    gap = end_of(server, folder, simulate(config))
    missing = end_of(server, folder, simulate(config, cohorts))
    if not gap:
        found, end = "undisturbed", "as undisturbed, bit for bit"
    elif not missing:
        found, end = "without", "as without that message, bit for bit"
    else:
        found, end = "differs", f"differs: {'; '.join(gap)}"
    told = [line["round"] for line in read_lines(server.folder / METRICS) if line["kind"] == "round"]
    last = {f"client {k}": max(n for n in rounds if k != VICTIM or found != "without" or n not in absent)
            for k in everybody}  # fmt: skip
    whole = told == rounds and server.counted == last  # no round is lost, and none is there twice
    return Outcome(fault, said(lines), end, whole and found == ("differs" if promise == "bounded" else promise))


def forged(made: Forged, folder: Path) -> Outcome:
    """A forged message in one process; where it counts, how far it moved the state of its round."""
    config = setting(made.method, made.own)
    *done, after = play(folder, made.forge, config)
    outcome = judged(made.fault, folder, (done[0], done[1]), config, made.promise)
    if made.promise not in ("differs", "bounded"):
        return outcome
    usual, _, _ = simulate(replace(config, rounds=AT))
    return replace(outcome, **moved(done[0], after, usual, made, outcome))


def moved(server: Server, after: State, usual: State, made: Forged, outcome: Outcome) -> dict[str, Any]:
    """How far a message that counted moved the state of its round, beside what +clip allows: C, and as much back."""
    members = server.roster.members
    share = server.roster.clients[f"client {VICTIM}"].train / sum(client.train for client in members)
    far, most = length(tree_map(torch.sub, after, usual)), 2 * BOUND * share
    told = f"{outcome.end}; after round {AT} {far:.2g} in length"
    if made.promise != "bounded":
        return {"end": told}
    return {"end": f"{told}, of {most:.2g} that +clip allows", "kept": outcome.kept and bool(far <= most)}


def _killed_site(promise: str, minimum: str, folder: Path) -> Outcome:
    """A site trains, writes its record, and dies before it answers."""
    config = setting("scaffold")
    server, lines, _ = play(folder, lambda _: "the node failed", config, RoundRules(minimum, pause=0))
    fault = f"a site dies after it has trained; minimum {minimum}"
    return judged(fault, folder, (server, lines), config, promise)


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
    server, lines, _ = play(folder, None, config, echo=True)
    return judged("every reply arrives twice", folder, (server, lines), config, "undisturbed")


FAULTS: dict[str, Callable[[Path], Outcome]] = {
    "site-50": partial(_killed_site, "without", "50%"),
    "site-100": partial(_killed_site, "undisturbed", "100%"),
    "server": _killed_server,
    **{name: partial(forged, made) for name, made in FORGED.items()},
    "duplicated": _duplicated,
}

__all__ = ["FAULTS", "Outcome"]
