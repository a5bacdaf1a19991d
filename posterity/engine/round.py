"""A round: offer, visit, collect, commit, combine. And scoring, which leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from posterity.core.messages import acceptable, fold_stack, merge, message_bytes
from posterity.core.protocol import Carry, Facts, Here, Message, Now, Pass
from posterity.core.tree import Tree, tree_bytes, tree_finite, tree_like, tree_rows
from posterity.core.wire import wire_bytes
from posterity.data.federation import Part
from posterity.engine import keys, loop, stacked
from posterity.engine.replay import compiled, graph
from posterity.engine.simulation import Simulation, arrive, at, select
from posterity.engine.store import Store
from posterity.engine.tracing.trace import send

ENGINES: dict[str, ModuleType] = {"loop": loop, "stacked": stacked, "graph": graph, "compiled": compiled}
ACTIVATIONS = 24  # numbers kept per input number of a batch, where nobody has measured it


@dataclass(frozen=True)
class Refusal:
    """A message that was left out; its client keeps the record that it had."""

    client: int
    reason: str


@dataclass(frozen=True)
class Log:
    """What happened in a round."""

    round: int
    cohort: int
    accepted: int
    refused: tuple[Refusal, ...] = ()
    loss: float = float("nan")
    bytes_up: int = 0
    bytes_down: int = 0
    report: dict[str, float] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        return self.accepted == 0


def first_state(sim: Simulation) -> Tree:
    """The server's state before the first round."""
    federation = sim.federation
    samples = int(federation.train.counts[: federation.members].sum())
    facts = Facts(federation.members, samples, federation.classes, sim.server.cpu())
    return sim.method.init(sim.model, sim.initial, facts)


def able(sim: Simulation) -> Tensor:
    """Clients that may be in a cohort: members with training data."""
    return torch.nonzero(sim.federation.train.counts[: sim.federation.members] > 0)[:, 0]


def blocks(sim: Simulation, clients: Tensor, passes: Any = ()) -> Iterator[Tensor]:
    """`clients` from the largest to the smallest, in blocks whose stacked copies fit into the memory allowed."""
    counts = sim.federation.train.sizes[clients.cpu()]
    clients = clients[send(torch.argsort(counts, descending=True, stable=True), clients.device)]
    sample = sim.federation.x[0].numel() * sim.federation.x.element_size()
    held, row = tree_bytes(sim.initial), 2 * sim.sample or ACTIVATIONS * sample
    each = max([p.copies * held + row * (p.batch or int(counts.max())) for p in passes] or [8 * held + row])
    yield from torch.split(clients, max(1, min(len(clients), sim.memory // each)))


def meet(
    sim: Simulation, engine: ModuleType, state: Tree, store: Store, clients: Tensor, round: int, newcomers: bool = False
) -> tuple[Here, Tree]:
    """The stacked `here` of clients that received the broadcast and have a record, and what they were offered."""
    shared, own = engine.offer(sim, state, None if newcomers else clients, len(clients))
    here = arrive(sim, clients, round, shared, own)
    fresh = engine.join(sim, here)
    personal = fresh if newcomers else store.read(clients, fresh)
    return replace(here, personal=personal), (shared, own)


@dataclass
class Accumulator:
    """What the visits of a round brought home to this process."""

    total: Message | None = None
    records: list[tuple[Tensor, Tree]] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    losses: Tensor = field(default_factory=lambda: torch.zeros(2, dtype=torch.float64))  # loss x samples, samples
    bytes_up: int = 0
    bytes_down: int = 0

    @property
    def accepted(self) -> int:
        return sum(len(clients) for clients, _ in self.records)

    def take(self, clients: Tensor, offered: Tree, sent: Message, records: Tree, seen: Tensor | None) -> None:
        """What some clients were offered, sent, would keep, and saw of the loss; unusable messages are left out."""
        self.bytes_down += wire_bytes(offered[0]) * len(clients) + wire_bytes(offered[1])
        self.bytes_up += message_bytes(sent)
        part, good = fold_stack(sent), _accepted(sent, records, len(clients))
        if not bool(good.all()):  # the only place where the host waits for the clients
            self.refused += [Refusal(int(c), "not finite or outside its declared range") for c in clients[~good]]
            if not bool(good.any()):
                return
            sent, records, clients = tree_rows(sent, good), tree_rows(records, good), clients[good]
            part, seen = fold_stack(sent), None if seen is None else seen[good]
        self.total = part if self.total is None else merge(self.total, part)
        self.records.append((clients, records))
        self.losses += 0 if seen is None else seen.sum(0).double().cpu()


def visit(sim: Simulation, engine: ModuleType, state: Tree, store: Store, cohort: Tensor, round: int) -> Accumulator:
    """Every client of the cohort works and sends; nothing is written yet."""
    passes, accumulator = sim.passes(), Accumulator()
    for clients in blocks(sim, cohort, passes) if len(cohort) else ():
        here, offered = meet(sim, engine, state, store, clients, round)
        carry = engine.work(sim, passes, engine.start(sim, here), here, keys.TRAIN)
        sent, records = engine.message(sim, carry, here)
        accumulator.take(clients, offered, sent, records, engine.losses(carry))
    return accumulator


def train_round(
    sim: Simulation, engine: ModuleType, state: Tree, store: Store, cohort: Tensor, round: int, rounds: int
) -> tuple[Tree, Log]:
    """One round of training. Records and messages are committed together, after every block has been collected."""
    accumulator = visit(sim, engine, state, store, sim.processes.share(cohort), round)
    return settle(sim, accumulator, state, store, len(cohort), round, rounds)


def settle(
    sim: Simulation, accumulator: Accumulator, state: Tree, store: Store, cohort: int, round: int, rounds: int
) -> tuple[Tree, Log]:
    """The state after a round, from what its visits brought home, and what there is to say about it."""
    log = _log(sim, accumulator, round, cohort)
    if not log.accepted:
        return state, log
    total, root = sim.processes.total(accumulator.total)
    report: dict[str, Tensor] = {}
    if total is not None:
        now = Now(round, rounds, sim.fold(sim.server, round), log.accepted, _public(sim))
        state = tree_like(sim.method.combine(state, total, now), state)
        report = sim.method.report(state, total)
    state = sim.processes.share_out(state, root)
    for clients, records in accumulator.records:  # only now: if `combine` fails, the records stay as they were too
        store.write(clients, records)
    return state, replace(log, report={name: float(value) for name, value in report.items()})


def _log(sim: Simulation, accumulator: Accumulator, round: int, cohort: int) -> Log:
    """The round in numbers, over all processes."""
    mine = [accumulator.accepted, *accumulator.losses.tolist(), accumulator.bytes_up, accumulator.bytes_down]
    accepted, loss, samples, up, down = sim.processes.summed(mine)
    mean = loss / samples if samples else float("nan")
    return Log(round, cohort, int(accepted), tuple(accumulator.refused), mean, int(up), int(down))


@dataclass(frozen=True)
class Question:
    """Whose models are to predict what, and when: see `score`."""

    clients: Tensor
    parts: Sequence[Part]
    point: str
    epochs: int | None = None
    newcomers: bool = False
    outside: bool = False  # asked of the client of `sim.outside`, who has no data

    def passes(self, sim: Simulation) -> tuple[tuple[Pass, ...], tuple[Pass, ...]]:
        """The round's own passes, if they come before the prediction, and those that adapt."""
        epochs = sim.method.adaptation if self.epochs is None else self.epochs
        return sim.passes() if self.point == "trained" else (), sim.passes(epochs if self.point == "adapted" else 0)


def score(
    sim: Simulation,
    engine: ModuleType,
    state: Tree,
    store: Store,
    clients: Tensor,
    round: int,
    parts: Sequence[Part],
    point: str,
    epochs: int | None = None,
    newcomers: bool = False,
) -> list[list[Tensor]]:
    """Outputs of the personal models for each part, one tensor per client of `clients`.

    `received` = right after the broadcast, `adapted` = after `adapt(epochs)` on the client's training data, `trained` =
    after the round's own passes. Nothing is written: not the records, not the state.
    """
    return answer(sim, engine, state, store, Question(clients, parts, point, epochs, newcomers), round)


def answer(
    sim: Simulation, engine: ModuleType, state: Tree, store: Store, asked: Question, round: int
) -> list[list[Tensor]]:
    """`score`, of a question."""
    sim = sim.outside if asked.outside else sim
    passes, adapt = asked.passes(sim)
    place = {int(c): i for i, c in enumerate(asked.clients)}
    outputs: list[list[Tensor]] = [[torch.empty(0)] * len(place) for _ in asked.parts]
    mine = sim.processes.share(asked.clients)
    for group in blocks(sim, mine, (*passes, *adapt)) if len(mine) else ():
        here, _ = meet(sim, engine, state, store, group, round, asked.newcomers)
        carry = engine.work(sim, passes, engine.start(sim, here), here, keys.TRAIN)
        carry = engine.work(sim, adapt, carry, here, keys.SCORE)
        for slot, part in enumerate(asked.parts):
            for client, output in zip(group.tolist(), engine.predict(sim, carry, here, part), strict=True):
                outputs[slot][place[client]] = output
    return [sim.processes.joined(each, asked.clients) for each in outputs]


def personal_model(
    sim: Simulation, state: Tree, store: Store, client: int, round: int, point: str
) -> tuple[Carry, Here]:
    """One client's carry and `here` at an evaluation point: what `predict` needs."""
    newcomers, index = client >= sim.federation.members, torch.tensor([client])
    here, _ = meet(sim, loop, state, store, index.to(sim.root.device), round, newcomers)
    passes = sim.passes() if point == "trained" else ()
    trained = loop.work(sim, passes, loop.start(sim, here), here, keys.TRAIN)
    adapt = sim.passes(sim.method.adaptation if point == "adapted" else 0)
    carry = loop.work(sim, adapt, trained, here, keys.SCORE)[0]
    return carry, replace(select(at(sim, here, keys.PREDICT), 0), kept=carry.kept)


def _accepted(sent: Message, records: Tree, count: int) -> Tensor:
    """Which clients of a stack sent a usable message and hold a finite record."""
    verdicts = [v for v in (acceptable(sent), tree_finite(records)) if len(v)]
    return torch.stack(verdicts).all(0) if verdicts else torch.ones(count, dtype=torch.bool)


def _public(sim: Simulation) -> Tensor | None:
    rows = sim.federation.public
    return None if rows is None else sim.federation.x[rows]


__all__ = ["Accumulator", "Log", "Question", "Refusal", "able", "answer", "blocks", "first_state", "meet",
           "personal_model", "score", "settle", "train_round"]  # fmt: skip
