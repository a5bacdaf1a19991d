"""Several seeds of one experiment at once: their clients are simply more clients.

Every seed keeps its own state, records, partition, cohorts and keys; only the work of the clients is done together.
What the clients of a seed have in common (the broadcast, the first leaves) reaches a client of the joint simulation as
something that it alone was sent, and a wrapper puts it back into its place before the method looks. So neither methods
nor engines know of seeds, and every seed ends as it would by itself, up to rounding. One seed is its own simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posterity.core.network import held, rebound
from posterity.core.protocol import Here, Own, Params, Pass, Shared, State, keep
from posterity.core.tree import Tree, record, tree_cat, tree_map, tree_rows
from posterity.core.wrapper import Wrapper
from posterity.data.federation import Federation, Part
from posterity.engine.blocks import receive_stack, take_blocks
from posterity.engine.cache import TraceCache, send, shape_of
from posterity.engine.client import Visit
from posterity.engine.engines import Engine
from posterity.engine.round import Question, answer, close_round, predict, train_round
from posterity.engine.server import Accumulator, RoundLog
from posterity.engine.simulation import PER_CLIENT, Simulation
from posterity.engine.store import Store


@record
class SeedOffer:
    """What a client of several seeds gets by itself: all that it has in common with its seed's other clients, too."""

    shared: Shared
    own: Own
    initial: Params
    client: Tensor  # () its number within its seed
    still: Params  # what the network holds itself, where seeds differ in it


def of_seed(here: Here) -> Here:
    offer: SeedOffer = here.own
    model = rebound(here.model, offer.still) if offer.still else here.model
    return replace(here, shared=offer.shared, own=offer.own, initial=offer.initial, client=offer.client, model=model)


def _within_seed(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a client, who sees its own seed; `keep` stays what it is, so that engines can leave it out."""
    return keep if function is keep else lambda *args: function(*args[:-1], of_seed(args[-1]))


def _per_seed(each: Pass) -> Pass:
    """A pass whose functions see their own seed; its clients hold two more copies of the leaves."""
    parts: dict[str, Any] = {name: _within_seed(getattr(each, name)) for name in ("open", "step", "close")}
    return replace(each, copies=each.copies + 2, **parts)


def _client(name: str) -> Any:
    return lambda self, *args: _within_seed(getattr(self.inner, name))(*args)


def _passes(name: str) -> Any:
    return lambda self, *args: tuple(map(_per_seed, getattr(self.inner, name)(*args)))


@dataclass(frozen=True)
class PerSeed(Wrapper):
    start = _client("start")
    message = _client("message")
    predict = _client("predict")
    passes = _passes("passes")
    adapt = _passes("adapt")
    prepare = _passes("prepare")


@dataclass(frozen=True)
class MultiSeed:
    sims: tuple[Simulation, ...]
    joint: Simulation
    base: Tensor  # (seeds + 1,) on the host: where each seed's clients begin in the joint simulation
    shifts: tuple[int, ...]  # where its samples begin there
    apart: bool = False  # whether their networks hold different frozen leaves

    @staticmethod
    def of(sims: Sequence[Simulation]) -> MultiSeed:
        """They may differ in data, partition, first leaves and keys, but in no shape."""
        _check(sims)
        counts = torch.tensor([sim.federation.clients for sim in sims])
        base = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
        first, federations = sims[0], [sim.federation for sim in sims]
        if len(sims) == 1:
            return MultiSeed((first,), first, base, (0,))
        shifts = _shifts(federations)
        per_seed: Any = PerSeed(first.method)  # a method in all but its class variables
        joint = replace(first, method=per_seed, federation=_join(federations, shifts),
                        traces=TraceCache(first.traces.patience, notes=first.traces.notes))  # fmt: skip
        frozen = [held(sim.model) for sim in sims]
        apart = any(not torch.equal(leaf, other[n]) for other in frozen[1:] for n, leaf in frozen[0].items())
        return MultiSeed(tuple(sims), joint, base, shifts, apart)

    def numbers(self, clients: Sequence[Tensor]) -> Tensor:
        return torch.cat([some + base for some, base in zip(clients, self.base.tolist()[:-1], strict=True)])

    def receive_stack(
        self, engine: Engine, states: Sequence[State], stores: Sequence[Store], clients: Tensor, round: int,
        newcomers: bool = False,
    ) -> tuple[Here, list[SeedClients]]:  # fmt: skip
        """The stacked `here` of a block, each of whose clients has received the broadcast of its own seed."""
        owner = torch.searchsorted(self.base, clients.cpu(), right=True) - 1  # (m,) seed of each
        heres, by_seed = [], []
        present, which = torch.unique(owner, return_inverse=True)
        for seed in present.tolist():
            places = send(torch.nonzero(owner == seed)[:, 0], clients.device)
            mine = clients[places] - int(self.base[seed])
            here, offered = receive_stack(self.sims[seed], engine, states[seed], stores[seed], mine, round, newcomers)
            heres.append(here)
            by_seed.append(SeedClients(seed, places, mine, offered))
        return self._stack(heres, by_seed, send(which, clients.device), clients), by_seed

    def _stack(self, heres: list[Here], by_seed: list[SeedClients], which: Tensor, clients: Tensor) -> Here:
        """One `here` of several; `which` (m,) is the place of each client's among them."""
        place = torch.argsort(torch.cat([each.places for each in by_seed]))
        mine = {name: tree_rows(tree_cat([getattr(h, name) for h in heres]), place) for name in PER_CLIENT}
        frozen = [held(self.sims[each.seed].model) if self.apart else {} for each in by_seed]
        shared, initial, still = (
            tree_map(lambda *leaves: torch.stack(leaves)[which], *trees)
            for trees in ([h.shared for h in heres], [h.initial for h in heres], frozen)
        )
        mine |= {"own": SeedOffer(shared, mine["own"], initial, mine["client"], still), "client": clients}
        return replace(heres[0], **mine, shared=(), initial={}, model=self.joint.model)


@dataclass(frozen=True)
class SeedClients:
    """Clients of one seed in a block: their places there, their numbers within the seed, and what they were offered."""

    seed: int
    places: Tensor
    clients: Tensor
    offered: Tree

    def of(self, visit: Visit) -> Visit:
        sent, kept = (tree_rows(tree, self.places) for tree in (visit.message, visit.record))
        return Visit(sent, kept, None if visit.loss is None else visit.loss[self.places])


def train_rounds(
    seeds: MultiSeed, engine: Engine, states: Sequence[State], stores: Sequence[Store], cohorts: Sequence[Tensor],
    round: int, rounds: int,
) -> list[tuple[State, RoundLog]]:  # fmt: skip
    """One round of every seed: clients visit together, and each seed's round ends by itself."""
    if len(seeds.sims) == 1:
        return [train_round(seeds.joint, engine, states[0], stores[0], cohorts[0], round, rounds)]
    joint, visited = seeds.joint, [Accumulator() for _ in seeds.sims]
    passes = joint.passes()

    def take(clients: Tensor) -> None:
        here, by_seed = seeds.receive_stack(engine, states, stores, clients, round)
        done = engine.visit(joint, passes, here)
        parts = [Accumulator.of(some.clients, some.offered, some.of(done)) for some in by_seed]
        for some, part in zip(by_seed, parts, strict=True):  # only now: a block without room is taken again
            visited[some.seed].join(part)

    take_blocks(joint, seeds.numbers(cohorts), passes, "training", take)
    ends = zip(seeds.sims, states, stores, cohorts, visited, strict=True)
    return [close_round(sim, engine, state, store, cohort, round, rounds, sent)
            for sim, state, store, cohort, sent in ends]  # fmt: skip


def answers(
    seeds: MultiSeed, engine: Engine, states: Sequence[State], stores: Sequence[Store], asked: Sequence[Question],
    round: int,
) -> list[list[list[Tensor]]]:  # fmt: skip
    """Every seed's outputs for each part, one tensor per client; the questions differ in clients and parts only."""
    if len(seeds.sims) == 1 or asked[0].outside:  # who has no data has no work that would be worth sharing
        each = zip(seeds.sims, states, stores, asked, strict=True)
        return [answer(sim, engine, state, store, question, round) for sim, state, store, question in each]
    everyone = seeds.numbers([question.clients for question in asked])
    parts = [_join_parts(some, seeds.shifts) for some in zip(*(question.parts for question in asked), strict=True)]

    def here_of(clients: Tensor) -> Here:
        return seeds.receive_stack(engine, states, stores, clients, round, asked[0].newcomers)[0]

    outputs = predict(seeds.joint, engine, replace(asked[0], clients=everyone, parts=parts), everyone, here_of)
    ends = torch.tensor([len(question.clients) for question in asked]).cumsum(0).tolist()
    spans = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
    return [[part[span] for part in outputs] for span in spans]


def _join(federations: Sequence[Federation], shifts: Sequence[int]) -> Federation:
    """The clients of all federations as one; samples that are the same in all are held once."""
    first = federations[0]
    pools = federations if shifts[-1] else [first]
    parts: dict[str, Any] = {
        n: _join_parts([getattr(f, n) for f in federations], shifts) for n in ("train", "validation", "test")
    }
    names = tuple(name for f in federations for name in f.names)
    return replace(first, x=torch.cat([f.x for f in pools]), y=torch.cat([f.y for f in pools]), **parts,
                   members=len(names), names=names, common=None, public=None)  # fmt: skip


def _shifts(federations: Sequence[Federation]) -> tuple[int, ...]:
    """Where the samples of each begin in the joint pool; all at 0 if they are the same."""
    first = federations[0]
    if all(f.x.shape == first.x.shape and torch.equal(f.x, first.x) and torch.equal(f.y, first.y) for f in federations):
        return (0,) * len(federations)
    return tuple(sum(len(f.x) for f in federations[:i]) for i in range(len(federations)))


def _join_parts(parts: Sequence[Part], shifts: Sequence[int]) -> Part:
    rows = torch.cat([part.rows + shift for part, shift in zip(parts, shifts, strict=True)])
    counts = torch.cat([part.counts for part in parts])
    return Part(rows, torch.cat((counts.new_zeros(1), counts.cumsum(0))))


def _check(sims: Sequence[Simulation]) -> None:
    first = sims[0]
    if len(sims) > 1 and first.processes.size > 1:
        raise ValueError("several seeds at once need one process; run them one by one, or without torchrun")
    for sim in sims[1:]:
        pairs = {
            "methods": (first.method, sim.method),
            "shapes of the network's parameters": tuple(shape_of((s.initial, held(s.model))) for s in (first, sim)),
            "numbers of clients": (first.federation.clients, sim.federation.clients),
            "shapes of a sample": (first.federation.shape, sim.federation.shape),
            "numbers of classes": (first.federation.classes, sim.federation.classes),
            "augmentations": (first.augment, sim.augment),
        }
        for what, (one, other) in pairs.items():
            if one != other:
                raise ValueError(f"seeds can only run at once with equal {what}; {one} and {other} were given: "
                                 "run them one by one (--apart)")  # fmt: skip
