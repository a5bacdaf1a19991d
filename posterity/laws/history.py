"""Runs whose every message, record and state is kept, so that several laws can look at one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posterity.core.messages import Message
from posterity.core.protocol import Here, Pass, Personal
from posterity.core.tree import Tree, tree_cat, tree_map, tree_rows
from posterity.engine.api import Engine
from posterity.engine.client import Visit
from posterity.engine.engines import ENGINES
from posterity.engine.round import first_state, score, train_round
from posterity.engine.server import RoundLog
from posterity.engine.simulation import Simulation
from posterity.engine.store import Memory
from posterity.laws.case import COHORTS, SCORED, Case

Change = Callable[[Tensor, Message, Personal], tuple[Message, Personal]]


@dataclass(frozen=True)
class RoundHistory:
    """One round, as it ended; messages and records in the order of the clients."""

    clients: Tensor
    sent: Message
    records: Tree
    state: Tree
    known: Tensor
    rows: Tree  # of all members
    log: RoundLog


@dataclass(frozen=True)
class History:
    first: Tree
    rounds: tuple[RoundHistory, ...]

    @property
    def state(self) -> Tree:
        return self.rounds[-1].state

    def at(self, number: int) -> RoundHistory:
        """The round of that number; the first is round 1."""
        return self.rounds[number - 1]

    def store(self, after: int | None = None) -> Memory:
        """The records as they were after a round (before the first: 0), free to be written to."""
        end = self.rounds[-1] if after is None else self.at(max(after, 1))
        store = Memory(len(end.known))
        if after is None or after >= 1:
            store.known, store.rows = end.known.clone(), copied(end.rows)
        return store

    def before(self, number: int) -> tuple[Tree, Memory]:
        """State and records with which a round began."""
        return (self.first if number == 1 else self.at(number - 1).state), self.store(number - 1)


def copied(tree: Tree) -> Tree:
    return tree_map(lambda leaf: leaf.clone(), tree)


@dataclass(frozen=True)
class Spy:
    """An engine whose visits are noted in `seen` after `change` had its way with them."""

    engine: Engine
    seen: list[tuple[Tensor, Message, Personal]]
    change: Change | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)  # everything else is the engine's

    def visit(self, sim: Simulation, passes: tuple[Pass, ...], here: Here) -> Visit:
        done = self.engine.visit(sim, passes, here)
        sent, records = done.message, done.record
        if self.change is not None:
            sent, records = self.change(here.client, sent, records)
        self.seen.append((here.client, sent, records))
        return Visit(sent, records, done.loss)


def one_round(
    sim: Simulation,
    engine: str,
    state: Tree,
    store: Memory,
    cohort: Sequence[int],
    number: int,
    change: Change | None = None,
) -> RoundHistory:
    """One round; `store` is written to, as the engine does."""
    seen: list[tuple[Tensor, Message, Personal]] = []
    ids = torch.tensor(cohort, dtype=torch.int64)
    state, log = train_round(sim, Spy(ENGINES[engine], seen, change), state, store, ids, number, len(COHORTS))
    clients = torch.cat([c for c, _, _ in seen])
    order = torch.argsort(clients)
    sent, records = (tree_rows(tree_cat([v[i] for v in seen]), order) for i in (1, 2))
    return RoundHistory(clients[order], sent, records, state, store.known.clone(), copied(store.rows), log)


def run(sim: Simulation, engine: str, cohorts: Sequence[Sequence[int]] = COHORTS) -> History:
    """Rounds from the first state on."""
    state = first = first_state(sim)
    store, rounds = Memory(sim.federation.members), []
    for number, cohort in enumerate(cohorts, 1):
        rounds.append(one_round(sim, engine, state, store, cohort, number))
        state = rounds[-1].state
    return History(first, tuple(rounds))


def history(case: Case, engine: str) -> History:
    """The case's run with one engine, made once."""
    made: History = case.once(f"trace {engine}", lambda: run(case.sim(), engine))
    return made


def outputs(
    case: Case, engine: str, point: str, newcomers: bool = False, state: Tree = None, store: Memory | None = None
) -> list[Tensor]:
    """Outputs on everything held out, one tensor per scored client (or newcomer); by default after the last round."""
    if state is None or store is None:
        name, end = f"outputs {engine} {point} {newcomers}", history(case, "stacked")
        made: list[Tensor] = case.once(name, lambda: outputs(case, engine, point, newcomers, end.state, end.store()))
        return made
    federation = case.federation
    ids = range(federation.members, federation.clients) if newcomers else SCORED
    parts = [federation.test, federation.validation]
    clients = torch.tensor(list(ids))
    found = score(case.sim(), ENGINES[engine], state, store, clients, len(COHORTS), parts, point, newcomers=newcomers)
    return [torch.cat(pair) for pair in zip(*found, strict=True)]
