"""Several seeds of one experiment at once: their clients are simply more clients.

Every seed keeps its own state, records, partition, cohorts and keys; only the work of the clients is done together.
What the clients of a seed have in common (the broadcast, the first leaves) reaches a client of a fleet as something
that it alone was sent, and a wrapper puts it back into its place before the method looks. So neither methods nor
engines know of seeds, and every seed ends as it would by itself, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from posterity.core.protocol import Batch, Carry, Here, Message, Own, Params, Pass, Personal, Shared, keep
from posterity.core.tree import Tree, record, tree_cat, tree_map, tree_rows
from posterity.core.wrapper import Wrapper
from posterity.data.federation import Federation, Part
from posterity.engine import keys
from posterity.engine.round import Accumulator, Log, Question, answer, blocks, meet, settle, train_round
from posterity.engine.simulation import PER_CLIENT, Simulation
from posterity.engine.store import Store
from posterity.engine.tracing.trace import TraceCache, send, shape_of

End = Callable[[Carry, Here], Carry]


@record
class SeedOffer:
    """What a client of a fleet gets by itself: all that it has in common with its seed's other clients, too."""

    shared: Shared
    own: Own
    initial: Params
    client: Tensor  # () its number within its seed


def of_seed(here: Here) -> Here:
    """`here` as it is without a fleet."""
    offered: SeedOffer = here.own
    return replace(here, shared=offered.shared, own=offered.own, initial=offered.initial, client=offered.client)


@dataclass(frozen=True)
class PerSeed(Wrapper):
    """A method whose clients belong to several seeds: its client functions look at what they would see ashore."""

    def start(self, here: Here) -> Params:
        return self.inner.start(of_seed(here))

    def passes(self) -> tuple[Pass, ...]:
        return tuple(map(_per_seed, self.inner.passes()))

    def adapt(self, epochs: int) -> tuple[Pass, ...]:
        return tuple(map(_per_seed, self.inner.adapt(epochs)))

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        return self.inner.message(carry, of_seed(here))

    def predict(self, carry: Carry, x: Tensor, here: Here) -> Tensor:
        return self.inner.predict(carry, x, of_seed(here))


def _per_seed(each: Pass) -> Pass:
    """A pass whose functions see what they would see ashore; its clients hold two more copies of the leaves."""

    def step(carry: Carry, batch: Batch, here: Here) -> Carry:
        return each.step(carry, batch, of_seed(here))

    return replace(each, step=step, open=_end(each.open), close=_end(each.close), copies=each.copies + 2)


def _end(function: End) -> End:
    """What opens or closes a pass; what does nothing stays what it is, so that engines can leave it out."""
    return keep if function is keep else lambda carry, here: function(carry, of_seed(here))


@dataclass(frozen=True)
class MultiSeed:
    """Worlds that differ in their seed, and one world of all their clients; a fleet of one is its world."""

    sims: tuple[Simulation, ...]
    joint: Simulation
    base: Tensor  # (worlds + 1,) on the host: where each world's clients begin in the joint one
    shifts: tuple[int, ...]  # where its samples begin there

    @staticmethod
    def of(sims: Sequence[Simulation]) -> MultiSeed:
        """A fleet of worlds; they may differ in data, partition, first leaves and keys, but in no shape."""
        _check(sims)
        counts = torch.tensor([sim.federation.clients for sim in sims])
        base = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
        first, federations = sims[0], [sim.federation for sim in sims]
        if len(sims) == 1:
            return MultiSeed((first,), first, base, (0,))
        shifts = _shifts(federations)
        per_seed: Any = PerSeed(first.method)  # a method in all but its class variables
        joint = replace(first, method=per_seed, federation=_join(federations, shifts),
                        traces=TraceCache(first.traces.patience))  # fmt: skip
        return MultiSeed(tuple(sims), joint, base, shifts)

    def numbers(self, clients: Sequence[Tensor]) -> Tensor:
        """The numbers in the joint world of some clients of each world."""
        return torch.cat([some + base for some, base in zip(clients, self.base.tolist()[:-1], strict=True)])

    def part(self, parts: Sequence[Part]) -> Part:
        """A part of each world as one of the joint world."""
        for name in ("validation", "test"):
            if all(part is getattr(w.federation, name) for part, w in zip(parts, self.sims, strict=True)):
                joined: Part = getattr(self.joint.federation, name)
                return joined
        return _join_parts(parts, self.shifts)


@dataclass(frozen=True)
class SeedClients:
    """Clients of one world in a block: their places there, their numbers at home, and what they were offered."""

    sim: int
    places: Tensor
    clients: Tensor
    offered: Tree


def board(
    multi: MultiSeed, engine: ModuleType, states: Sequence[Tree], stores: Sequence[Store], group: Tensor, round: int,
    newcomers: bool = False,
) -> tuple[Here, list[SeedClients]]:  # fmt: skip
    """The stacked `here` of a block of the fleet, after each client has been met in its own world."""
    host = group.cpu()
    owner = torch.searchsorted(multi.base, host, right=True) - 1  # (m,) world of each
    heres, by_seed = [], []
    present, which = torch.unique(owner, return_inverse=True)
    for number in present.tolist():
        places = send(torch.nonzero(owner == number)[:, 0], group.device)
        clients = group[places] - int(multi.base[number])
        met = meet(multi.sims[number], engine, states[number], stores[number], clients, round, newcomers)
        heres.append(met[0])
        by_seed.append(SeedClients(number, places, clients, met[1]))
    place = torch.argsort(torch.cat([seed_clients.places for seed_clients in by_seed]))
    mine = {name: tree_rows(tree_cat([getattr(h, name) for h in heres]), place) for name in PER_CLIENT}
    seats = send(which, group.device)
    shared, initial = (_spread([getattr(h, name) for h in heres], seats) for name in ("shared", "initial"))
    mine |= {"own": SeedOffer(shared, mine["own"], initial, mine["client"]), "client": group}
    return replace(heres[0], **mine, shared=(), initial={}, model=multi.joint.model), by_seed


def train_rounds(
    multi: MultiSeed, engine: ModuleType, states: Sequence[Tree], stores: Sequence[Store], cohorts: Sequence[Tensor],
    round: int, rounds: int,
) -> list[tuple[Tree, Log]]:  # fmt: skip
    """`train_round` of every world."""
    sims, joint = multi.sims, multi.joint
    if len(sims) == 1:
        return [train_round(joint, engine, states[0], stores[0], cohorts[0], round, rounds)]
    passes, everyone = joint.passes(), multi.numbers(cohorts)
    accumulators = [Accumulator() for _ in sims]
    for group in blocks(joint, everyone, passes) if len(everyone) else ():
        here, by_seed = board(multi, engine, states, stores, group, round)
        carry = engine.work(joint, passes, engine.start(joint, here), here, keys.TRAIN)
        sent, records = engine.message(joint, carry, here)
        seen = engine.losses(carry)
        for seed_clients in by_seed:
            own, kept = (tree_rows(tree, seed_clients.places) for tree in (sent, records))
            loss = None if seen is None else seen[seed_clients.places]
            accumulators[seed_clients.sim].take(seed_clients.clients, seed_clients.offered, own, kept, loss)
    ends = zip(sims, accumulators, states, stores, map(len, cohorts), strict=True)
    return [settle(*end, round, rounds) for end in ends]


def answer_all(
    multi: MultiSeed, engine: ModuleType, states: Sequence[Tree], stores: Sequence[Store], asked: Sequence[Question],
    round: int,
) -> list[list[list[Tensor]]]:  # fmt: skip
    """`answer` of every world; the questions differ in clients and parts only."""
    joint, first = multi.joint, asked[0]
    if len(asked) == 1 or first.outside:  # who has no data has no work that would be worth sharing
        each = zip(multi.sims, states, stores, asked, strict=True)
        return [answer(sim, engine, state, store, question, round) for sim, state, store, question in each]
    passes, adapt = first.passes(joint)
    parts = [multi.part(some) for some in zip(*(each.parts for each in asked), strict=True)]
    everyone = multi.numbers([each.clients for each in asked])
    place = {client: i for i, client in enumerate(everyone.tolist())}
    outputs: list[list[Tensor]] = [[torch.empty(0)] * len(place) for _ in parts]
    for group in blocks(joint, everyone, (*passes, *adapt)) if len(everyone) else ():
        here, _ = board(multi, engine, states, stores, group, round, first.newcomers)
        carry = engine.work(joint, passes, engine.start(joint, here), here, keys.TRAIN)
        carry = engine.work(joint, adapt, carry, here, keys.SCORE)
        for slot, part in enumerate(parts):
            for client, output in zip(group.tolist(), engine.predict(joint, carry, here, part), strict=True):
                outputs[slot][place[client]] = output
    ends = torch.tensor([len(each.clients) for each in asked]).cumsum(0).tolist()
    spans = [slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
    return [[each[span] for each in outputs] for span in spans]


def _spread(trees: Sequence[Tree], which: Tensor) -> Tree:
    """What each world has once, for each client of a block: `which` (m,) is its place among `trees`."""
    return tree_map(lambda *leaves: torch.stack(leaves)[which], *trees)


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
    """Where the samples of each federation begin in the joint pool; all at 0 if they are the same."""
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
            "shapes of the network's parameters": (shape_of(first.initial), shape_of(sim.initial)),
            "numbers of clients": (first.federation.clients, sim.federation.clients),
            "shapes of a sample": (first.federation.shape, sim.federation.shape),
            "numbers of classes": (first.federation.classes, sim.federation.classes),
        }
        for what, (one, other) in pairs.items():
            if one != other:
                raise ValueError(f"seeds can only run at once with equal {what}; {one} and {other} were given: "
                                 "run them one by one (--apart)")  # fmt: skip


__all__ = ["MultiSeed", "answer_all", "train_rounds"]
