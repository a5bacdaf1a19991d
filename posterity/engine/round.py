"""A round: offer, visits, sum, judge, next state. And answers to questions, which leave no trace.

Clients visit in blocks (`blocks.py`), an engine takes a block through its visit (`engines.py`), and the server adds up
what they send and judges it (`server.py`). `seeds.py` does the same for several seeds at once.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch
from torch import Tensor

from posterity.core.protocol import Carry, Facts, Here, Now, State
from posterity.core.tree import tree_rows
from posterity.data.federation import Part
from posterity.engine import keys, server
from posterity.engine.blocks import give_back, receive_stack, take_blocks
from posterity.engine.cache import play
from posterity.engine.client import Passes, Setting, Site, at, passes_at, personal_at
from posterity.engine.engines import Engine
from posterity.engine.server import Accumulator, Refusal, RoundLog
from posterity.engine.simulation import Simulation
from posterity.engine.store import Store


def first_state(sim: Simulation) -> State:
    """The server's state before the first round: a function of what it knows about the federation, not of its data.

    By the members it is told how many training samples they have.
    """
    federation, public = sim.federation, sim.federation.public
    counts = federation.train.sizes[: federation.members].tolist()
    known = Facts(len(counts), sum(counts), federation.classes, sim.server.cpu(), 0 if public is None else len(public))
    return sim.method.init(sim.model, sim.initial, known)


def train_round(
    sim: Simulation, engine: Engine, state: State, store: Store, cohort: Tensor, round: int, rounds: int
) -> tuple[State, RoundLog]:
    visited = visit(sim, engine, state, store, cohort, round)
    return close_round(sim, engine, state, store, cohort, round, rounds, visited)


def visit(sim: Simulation, engine: Engine, state: State, store: Store, cohort: Tensor, round: int) -> Accumulator:
    """What a cohort sends, added up, and the records that it would keep; nothing is written."""
    visited, passes = Accumulator(), sim.passes()

    def take(clients: Tensor) -> None:
        here, offered = receive_stack(sim, engine, state, store, clients, round)
        visited.join(Accumulator.of(clients, offered, engine.visit(sim, passes, here)))

    take_blocks(sim, sim.processes.share(cohort), passes, "training", take)
    return visited


def close_round(
    sim: Simulation, engine: Engine, state: State, store: Store, cohort: Tensor, round: int, rounds: int,
    visited: Accumulator,
) -> tuple[State, RoundLog]:  # fmt: skip
    """The end of a round: taken, repeated without the clients that stand out, or rolled back.

    Records and messages are committed together, and only if somebody could go on from the state that they make. A round
    that is rolled back leaves state and records as they were; so do visits, which is why it can be repeated.
    """
    after, log = judge(sim, engine, state, store, cohort, round, rounds, visited)
    suspects = server.outliers(_sizes(sim, visited, cohort)) if log.rolled_back else []
    if suspects:
        rest = cohort[~torch.isin(cohort, torch.tensor(suspects, device=cohort.device))]
        others = visit(sim, engine, state, store, rest, round).without(suspects, visited.sizes)
        then, second = judge(sim, engine, state, store, cohort, round, rounds, others)
        if not second.rolled_back:
            visited, after, log = others, then, replace(second, bytes_up=log.bytes_up, bytes_down=log.bytes_down)
    if log.accepted:
        for clients, records in visited.records:  # only now: if `combine` fails, the records stay as they were too
            store.write(clients, records)
    return after, log


def judge(
    sim: Simulation, engine: Engine, state: State, store: Store, cohort: Tensor, round: int, rounds: int,
    visited: Accumulator,
) -> tuple[State, RoundLog]:  # fmt: skip
    """The next state, if it can be used; else the state as it is, and a log that says why. Nothing is written."""
    log, processes = _log(sim, visited, round, len(cohort)), sim.processes
    if not log.accepted:
        return state, log
    total, root = processes.total(visited.total)
    after, report, why = state, dict[str, Tensor](), ""
    if total is not None:
        after, report, why = server.next_state(sim.method, state, total, moment(sim, round, rounds, log.accepted))
    numbers = {name: float(value) for name, value in report.items()}
    why, numbers = json.loads(processes.broadcast(json.dumps([why, numbers]), root))
    if why:
        return state, server.rolled_back(log, server.UNUSABLE + why)
    after = processes.broadcast_tree(after, root)
    if server.has_grown(after, state):  # then the cohort tries whether it could go on from there
        tried = visit(sim, engine, after, store, cohort, round + 1)
        if not server.goes_on(log, _log(sim, tried, round, len(cohort))):
            return state, server.rolled_back(log, server.STUCK)
    return after, replace(log, report=numbers)


def moment(sim: Simulation, round: int, rounds: int, cohort: int) -> Now:
    rows = sim.federation.public
    public = None if rows is None else sim.federation.x[rows]
    key = sim.fold(sim.server, round)
    if not sim.root.is_cuda:  # its arithmetic takes longer than Python does
        return Now(round, rounds, key, cohort, public, sim.model)
    return Now(round, rounds, key, cohort, public, sim.model, partial(play, sim.traces, sim.method))


def _sizes(sim: Simulation, visited: Accumulator, cohort: Tensor) -> Mapping[int, float]:
    clients = cohort.tolist()
    sizes = sim.processes.all_reduce([visited.sizes.get(client, 0.0) for client in clients])
    return {client: size for client, size in zip(clients, sizes, strict=True) if size}


def _log(sim: Simulation, visited: Accumulator, round: int, cohort: int) -> RoundLog:
    """The round in numbers, over all processes; at the first of them all refusals."""
    numbers = sim.processes.all_reduce(visited.numbers)
    refused = sim.processes.gather(json.dumps([asdict(refusal) for refusal in visited.refused]))
    return RoundLog.of(round, cohort, numbers, [Refusal(**facts) for each in refused for facts in json.loads(each)])


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

    def passes(self, setting: Setting) -> tuple[Passes, Passes]:
        """The round's own passes, if they come before the prediction, and those that adapt and prepare."""
        return passes_at(setting, self.point, self.epochs)


def answer(
    sim: Simulation, engine: Engine, state: State, store: Store, asked: Question, round: int
) -> list[list[Tensor]]:
    """Outputs for each part, one tensor per client; nothing is written. At process 0 those of all processes."""
    sim = sim.outside if asked.outside else sim

    def here_of(clients: Tensor) -> Here:
        return receive_stack(sim, engine, state, store, clients, round, asked.newcomers)[0]

    outputs = predict(sim, engine, asked, sim.processes.share(asked.clients), here_of)
    return [sim.processes.joined(part, asked.clients) for part in outputs]


def predict(
    sim: Simulation, engine: Engine, asked: Question, mine: Tensor, here_of: Callable[[Tensor], Here]
) -> list[list[Tensor]]:
    """Outputs for each part: those of the clients `mine`, and nothing at the places of the others."""
    passes, adapt = asked.passes(sim)
    place = {client: i for i, client in enumerate(asked.clients.tolist())}
    outputs = [[torch.empty(0)] * len(place) for _ in asked.parts]

    def take(clients: Tensor) -> None:
        found = engine.predict(sim, passes, adapt, here_of(clients), asked.parts)
        for slot, each in zip(outputs, found, strict=True):
            for client, output in zip(clients.tolist(), each, strict=True):
                slot[place[client]] = output

    take_blocks(sim, mine, (*passes, *adapt), "scoring", take)
    give_back(sim)  # scoring stacks everybody, and rounds follow that need far less
    return outputs


def receive(sim: Simulation, state: State, store: Store, client: int, round: int) -> tuple[Site, Here]:
    """One client's site, and its `here` right after the broadcast. Newcomers have no record."""
    site, late = sim.site(client), client >= sim.federation.members
    shared, own = sim.method.offer(state, None if late else site.client)
    record = None if late or not bool(store.known[client]) else tree_rows(store.read(site.client[None]), 0)
    return site, site.receive(shared, own, record, round)


def personal_model(
    sim: Simulation, state: State, store: Store, client: int, round: int, point: str
) -> tuple[Carry, Here]:
    """One client's carry and `here` at an evaluation point: what `predict` needs. Newcomers have no record."""
    site, here = receive(sim, state, store, client, round)
    carry = personal_at(site, here, point)
    return carry, replace(at(here, keys.PREDICT), kept=carry.kept)
