"""A round: offer, visit, add up, combine, commit. And answers to questions, which leave no trace.

Everything is written for several seeds at once (`multi_seed.py`); one simulation is a batch of one seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posterity.core.protocol import Carry, Facts, Here, Now, Pass, State
from posterity.core.tree import tree_rows
from posterity.data.federation import Part
from posterity.engine import keys
from posterity.engine.api import Engine
from posterity.engine.blocks import blocks
from posterity.engine.client import Site, at, passes_at, personal_at
from posterity.engine.multi_seed import MultiSeed
from posterity.engine.server import Accumulator, RoundLog, combine
from posterity.engine.simulation import Simulation
from posterity.engine.store import Store


def first_state(sim: Simulation) -> State:
    """The server's state before the first round: a function of what it knows about the federation, not of its data."""
    federation = sim.federation
    samples = int(federation.train.counts[: federation.members].sum())
    facts = Facts(federation.members, samples, federation.classes, sim.server.cpu())
    return sim.method.init(sim.model, sim.initial, facts)


def train_round(
    sim: Simulation, engine: Engine, state: State, store: Store, cohort: Tensor, round: int, rounds: int
) -> tuple[State, RoundLog]:
    """One round of one simulation."""
    return train_rounds(MultiSeed.of([sim]), engine, [state], [store], [cohort], round, rounds)[0]


def train_rounds(
    seeds: MultiSeed, engine: Engine, states: Sequence[State], stores: Sequence[Store], cohorts: Sequence[Tensor],
    round: int, rounds: int,
) -> list[tuple[State, RoundLog]]:  # fmt: skip
    """One round of every seed. Records and messages are committed together, after every block has been collected."""
    joint, accumulators = seeds.joint, [Accumulator() for _ in seeds.sims]
    mine = [sim.processes.share(cohort) for sim, cohort in zip(seeds.sims, cohorts, strict=True)]
    passes = joint.passes()
    for clients in blocks(joint, seeds.numbers(mine), passes):
        here, by_seed = seeds.meet(engine, states, stores, clients, round)
        visit = engine.visit(joint, passes, here)
        for some in by_seed:
            accumulators[some.seed].add(some.clients, some.offered, some.of(visit))
    ends = zip(seeds.sims, accumulators, states, stores, map(len, cohorts), strict=True)
    return [finish_round(*end, round, rounds) for end in ends]


def finish_round(
    sim: Simulation, accumulator: Accumulator, state: State, store: Store, cohort: int, round: int, rounds: int
) -> tuple[State, RoundLog]:
    """The state after a round, from what its visits sent, and what there is to say about it."""
    log = _log(sim, accumulator, round, cohort)
    if not log.accepted:
        return state, log
    total, root = sim.processes.total(accumulator.total)
    report: dict[str, Tensor] = {}
    if total is not None:
        now = Now(round, rounds, sim.fold(sim.server, round), log.accepted, _public(sim))
        state, report = combine(sim.method, state, total, now)
    state = sim.processes.share_out(state, root)
    for clients, records in accumulator.records:  # only now: if `combine` fails, the records stay as they were too
        store.write(clients, records)
    return state, replace(log, report={name: float(value) for name, value in report.items()})


def _log(sim: Simulation, accumulator: Accumulator, round: int, cohort: int) -> RoundLog:
    """The round in numbers, over all processes."""
    mine = [accumulator.accepted, *accumulator.losses.tolist(), accumulator.bytes_up, accumulator.bytes_down]
    accepted, loss, samples, up, down = sim.processes.summed(mine)
    mean = loss / samples if samples else float("nan")
    return RoundLog(round, cohort, int(accepted), tuple(accumulator.refused), mean, int(up), int(down))


@dataclass(frozen=True)
class Question:
    """Whose models are to predict what, and when.

    `received` = right after the broadcast, `adapted` = after `adapt(epochs)` on the client's training data, `trained` =
    after the round's own passes.
    """

    clients: Tensor
    parts: Sequence[Part]
    point: str
    epochs: int | None = None
    newcomers: bool = False
    outside: bool = False  # asked of the client of `sim.outside`, who has no data

    def passes(self, sim: Simulation) -> tuple[tuple[Pass, ...], tuple[Pass, ...]]:
        """The round's own passes, if they come before the prediction, and those that adapt."""
        return passes_at(sim, self.point, self.epochs)


def score(
    sim: Simulation, engine: Engine, state: State, store: Store, clients: Tensor, round: int, parts: Sequence[Part],
    point: str, epochs: int | None = None, newcomers: bool = False,
) -> list[list[Tensor]]:  # fmt: skip
    """Outputs of the personal models of one simulation for each part, one tensor per client of `clients`."""
    question = Question(clients, parts, point, epochs, newcomers)
    return answer(MultiSeed.of([sim]), engine, [state], [store], [question], round)[0]


def answer(
    seeds: MultiSeed, engine: Engine, states: Sequence[State], stores: Sequence[Store], asked: Sequence[Question],
    round: int,
) -> list[list[list[Tensor]]]:  # fmt: skip
    """Every seed's outputs for each part, one tensor per client; the questions differ in clients and parts only.

    Nothing is written: not the records, not the state.
    """
    first = asked[0]
    if first.outside:  # who has no data has no work that would be worth sharing
        pairs = zip(seeds.sims, states, stores, asked, strict=True)
        return [_answer(MultiSeed.of([sim.outside]), engine, [a], [b], [q], round)[0] for sim, a, b, q in pairs]
    return _answer(seeds, engine, states, stores, asked, round)


def _answer(
    seeds: MultiSeed, engine: Engine, states: Sequence[State], stores: Sequence[Store], asked: Sequence[Question],
    round: int,
) -> list[list[list[Tensor]]]:  # fmt: skip
    joint, (passes, adapt) = seeds.joint, asked[0].passes(seeds.joint)
    parts = [seeds.part(some) for some in zip(*(each.parts for each in asked), strict=True)]
    everyone = seeds.numbers([each.clients for each in asked])
    place = {client: i for i, client in enumerate(everyone.tolist())}
    outputs: list[list[Tensor]] = [[torch.empty(0)] * len(place) for _ in parts]
    mine = [sim.processes.share(each.clients) for sim, each in zip(seeds.sims, asked, strict=True)]
    for clients in blocks(joint, seeds.numbers(mine), (*passes, *adapt)):
        here, _ = seeds.meet(engine, states, stores, clients, round, asked[0].newcomers)
        for slot, found in enumerate(engine.predict(joint, passes, adapt, here, parts)):
            for client, output in zip(clients.tolist(), found, strict=True):
                outputs[slot][place[client]] = output
    return seeds.split(outputs, [each.clients for each in asked])


def arrive_client(sim: Simulation, state: State, store: Store, client: int, round: int) -> tuple[Site, Here]:
    """One client's site, and its `here` right after the broadcast. Newcomers have no record."""
    site, late = sim.site(client), client >= sim.federation.members
    shared, own = sim.method.offer(state, None if late else site.client)
    record = None if late or not bool(store.known[client]) else tree_rows(store.read(site.client[None]), 0)
    return site, site.arrive(shared, own, record, round)


def personal_model(
    sim: Simulation, state: State, store: Store, client: int, round: int, point: str
) -> tuple[Carry, Here]:
    """One client's carry and `here` at an evaluation point: what `predict` needs. Newcomers have no record."""
    site, here = arrive_client(sim, state, store, client, round)
    carry = personal_at(site, here, point)
    return carry, replace(at(here, keys.PREDICT), kept=carry.kept)


def _public(sim: Simulation) -> Tensor | None:
    rows = sim.federation.public
    return None if rows is None else sim.federation.x[rows]


__all__ = [
    "Question",
    "answer",
    "arrive_client",
    "finish_round",
    "first_state",
    "personal_model",
    "score",
    "train_round",
    "train_rounds",
]
