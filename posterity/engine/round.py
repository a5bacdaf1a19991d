"""A round: offer, visit, add up, combine, commit. And answers to questions, which leave no trace.

Everything is written for several seeds at once (`multi_seed.py`); one simulation is a batch of one seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch
from torch import Tensor

from posterity.core.protocol import Carry, Facts, Here, Now, Pass, State
from posterity.core.tree import Tree, tree_rows
from posterity.data.federation import Part
from posterity.engine import keys
from posterity.engine.blocks import give_back, take_blocks
from posterity.engine.cache import play
from posterity.engine.client import Site, at, passes_at, personal_at
from posterity.engine.engines import Engine
from posterity.engine.seeds import MultiSeed
from posterity.engine.server import (
    STUCK,
    Accumulator,
    Refusal,
    RoundLog,
    goes_on,
    has_grown,
    next_state,
    rolled_back,
    settle,
    unusable,
)
from posterity.engine.simulation import Simulation
from posterity.engine.store import Store


def first_state(sim: Simulation) -> State:
    """The server's state before the first round: a function of what it knows about the federation, not of its data."""
    return sim.method.init(sim.model, sim.initial, registered(sim))


def registered(sim: Simulation) -> Facts:
    """What the server is told before the first round: by the members, how many training samples they have."""
    federation, public = sim.federation, sim.federation.public
    counts = federation.train.sizes[: federation.members].tolist()
    return Facts.of(counts, federation.classes, sim.server.cpu(), 0 if public is None else len(public))


def moment(sim: Simulation, round: int, rounds: int, cohort: int) -> Now:
    """When so many messages of a round are combined."""
    rows = sim.federation.public
    public = None if rows is None else sim.federation.x[rows]
    return Now(round, rounds, sim.fold(sim.server, round), cohort, public, sim.model, partial(_played, sim))


def _played(sim: Simulation, name: str, function: Callable[..., Tree], *trees: Tree) -> Tree:
    """What a server does, replayed on a GPU; on a CPU its arithmetic takes longer than Python does."""
    if not sim.root.is_cuda:
        return function(*trees)
    return play(sim.traces, sim.method, name, function, *trees)


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
    accumulators = _visit_all(seeds, engine, states, stores, cohorts, round)
    ends = zip(seeds.sims, accumulators, states, stores, cohorts, strict=True)
    return [_settle(sim, engine, *end, round, rounds) for sim, end in ((each[0], each[1:]) for each in ends)]


def _visit_all(
    seeds: MultiSeed, engine: Engine, states: Sequence[State], stores: Sequence[Store], cohorts: Sequence[Tensor],
    round: int,
) -> list[Accumulator]:  # fmt: skip
    """What the cohorts of all seeds send; nothing is written."""
    joint, accumulators = seeds.joint, [Accumulator() for _ in seeds.sims]
    mine = [sim.processes.share(cohort) for sim, cohort in zip(seeds.sims, cohorts, strict=True)]
    passes = joint.passes()

    def visit(clients: Tensor) -> None:
        here, by_seed = seeds.meet(engine, states, stores, clients, round)
        done = engine.visit(joint, passes, here)
        parts = [Accumulator.of(some.clients, some.offered, some.of(done)) for some in by_seed]
        for some, part in zip(by_seed, parts, strict=True):
            accumulators[some.seed].join(part)

    take_blocks(joint, seeds.numbers(mine), passes, "training", visit)
    return accumulators


def _settle(
    sim: Simulation, engine: Engine, accumulator: Accumulator, state: State, store: Store, cohort: Tensor, round: int,
    rounds: int,
) -> tuple[State, RoundLog]:  # fmt: skip
    """The end of a round; if its result cannot be used, of the same round without the clients that stand out."""

    def lasts(after: State) -> bool:
        """Whether somebody could go on from a state. Visits leave no trace, so that it can be tried."""
        if not has_grown(after, state):
            return True
        (tried,) = _visit_all(MultiSeed.of([sim]), engine, [after], [store], [cohort], round + 1)
        return goes_on(*(_log(sim, each, round, len(cohort)) for each in (accumulator, tried)))

    def finish(visited: Accumulator) -> tuple[State, RoundLog]:
        return finish_round(sim, visited, state, store, len(cohort), round, rounds, lasts)

    def again(suspects: list[int]) -> Accumulator:
        rest = cohort[~torch.isin(cohort, torch.tensor(suspects, device=cohort.device))]
        return _visit_all(MultiSeed.of([sim]), engine, [state], [store], [rest], round)[0]

    return settle(accumulator, finish, again, lambda: _sizes(sim, accumulator, cohort))


def _sizes(sim: Simulation, accumulator: Accumulator, cohort: Tensor) -> dict[int, float]:
    """The largest number that each accepted client sent, over all processes."""
    clients = cohort.tolist()
    told = sim.processes.summed([accumulator.sizes.get(client, 0.0) for client in clients])
    return {client: size for client, size in zip(clients, told, strict=True) if size}


def finish_round(
    sim: Simulation, accumulator: Accumulator, state: State, store: Store, cohort: int, round: int, rounds: int,
    lasts: Callable[[State], bool] = lambda state: True,
) -> tuple[State, RoundLog]:  # fmt: skip
    """The state after a round, from what its visits sent, and what there is to say about it.

    If the state could not be used, or not `lasts`, it and the records stay what they were: the round is rolled back.
    """
    log = _log(sim, accumulator, round, cohort)
    if not log.accepted:
        return state, log
    total, root = sim.processes.total(accumulator.total)
    report: dict[str, Tensor] = {}
    after, why = state, ""
    if total is not None:
        after, report, why = next_state(sim.method, state, total, moment(sim, round, rounds, log.accepted))
    said = sim.processes.said(json.dumps([why, {name: float(value) for name, value in report.items()}]), root)
    why, told = json.loads(said)
    if why:
        return state, rolled_back(log, unusable(why))
    after = sim.processes.share_out(after, root)
    if not lasts(after):
        return state, rolled_back(log, STUCK)
    for clients, records in accumulator.records:  # only now: if `combine` fails, the records stay as they were too
        store.write(clients, records)
    return after, replace(log, report=told)


def _log(sim: Simulation, accumulator: Accumulator, round: int, cohort: int) -> RoundLog:
    """The round in numbers, over all processes; at the first of them all refusals."""
    return accumulator.log(round, cohort, sim.processes.summed, partial(_all_refused, sim))


def _all_refused(sim: Simulation, mine: list[Refusal]) -> list[Refusal]:
    """The messages that were left out, of all processes at the first one."""
    said = sim.processes.heard(json.dumps([asdict(refusal) for refusal in mine]))
    return [Refusal(**told) for each in said for told in json.loads(each)]


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
        """The round's own passes, if they come before the prediction, and those that adapt and prepare."""
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

    def predict(clients: Tensor) -> None:
        here, _ = seeds.meet(engine, states, stores, clients, round, asked[0].newcomers)
        places = [place[client] for client in clients.tolist()]
        for slot, found in enumerate(engine.predict(joint, passes, adapt, here, parts)):
            for where, output in zip(places, found, strict=True):
                outputs[slot][where] = output

    take_blocks(joint, seeds.numbers(mine), (*passes, *adapt), "scoring", predict)
    give_back(joint)  # scoring stacks everybody, and rounds follow that need far less
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
