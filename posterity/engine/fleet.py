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

from posterity.core.method import Batch, Carry, Here, Message, Own, Params, Pass, Personal, Shared, keep
from posterity.core.tree import Tree, record, tree_cat, tree_map, tree_rows
from posterity.core.wrapper import Wrapper
from posterity.data.federation import Federation, Part
from posterity.engine import keys
from posterity.engine.record import Recordings, send, shape_of
from posterity.engine.round import Harvest, Log, Question, answer, blocks, meet, settle, train_round
from posterity.engine.store import Store
from posterity.engine.world import PER_CLIENT, World

End = Callable[[Carry, Here], Carry]


@record
class Berth:
    """What a client of a fleet gets by itself: all that it has in common with its seed's other clients, too."""

    shared: Shared
    own: Own
    initial: Params
    client: Tensor  # () its number within its seed


def ashore(here: Here) -> Here:
    """`here` as it is without a fleet."""
    berth: Berth = here.own
    return replace(here, shared=berth.shared, own=berth.own, initial=berth.initial, client=berth.client)


@dataclass(frozen=True)
class Aboard(Wrapper):
    """A method whose clients belong to several seeds: its client functions look at what they would see ashore."""

    def start(self, here: Here) -> Params:
        return self.inner.start(ashore(here))

    def passes(self) -> tuple[Pass, ...]:
        return tuple(map(_aboard, self.inner.passes()))

    def adapt(self, epochs: int) -> tuple[Pass, ...]:
        return tuple(map(_aboard, self.inner.adapt(epochs)))

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        return self.inner.message(carry, ashore(here))

    def predict(self, carry: Carry, x: Tensor, here: Here) -> Tensor:
        return self.inner.predict(carry, x, ashore(here))


def _aboard(each: Pass) -> Pass:
    """A pass whose functions see what they would see ashore; its clients hold two more copies of the leaves."""

    def step(carry: Carry, batch: Batch, here: Here) -> Carry:
        return each.step(carry, batch, ashore(here))

    return replace(each, step=step, open=_end(each.open), close=_end(each.close), copies=each.copies + 2)


def _end(function: End) -> End:
    """What opens or closes a pass; what does nothing stays what it is, so that engines can leave it out."""
    return keep if function is keep else lambda carry, here: function(carry, ashore(here))


@dataclass(frozen=True)
class Fleet:
    """Worlds that differ in their seed, and one world of all their clients; a fleet of one is its world."""

    worlds: tuple[World, ...]
    joint: World
    base: Tensor  # (worlds + 1,) on the host: where each world's clients begin in the joint one
    shifts: tuple[int, ...]  # where its samples begin there

    @staticmethod
    def of(worlds: Sequence[World]) -> Fleet:
        """A fleet of worlds; they may differ in data, partition, first leaves and keys, but in no shape."""
        _check(worlds)
        counts = torch.tensor([world.federation.clients for world in worlds])
        base = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
        first, federations = worlds[0], [world.federation for world in worlds]
        if len(worlds) == 1:
            return Fleet((first,), first, base, (0,))
        shifts = _shifts(federations)
        aboard: Any = Aboard(first.method)  # a method in all but its class variables
        joint = replace(first, method=aboard, federation=_join(federations, shifts),
                        recordings=Recordings(first.recordings.patience))  # fmt: skip
        return Fleet(tuple(worlds), joint, base, shifts)

    def numbers(self, clients: Sequence[Tensor]) -> Tensor:
        """The numbers in the joint world of some clients of each world."""
        return torch.cat([some + base for some, base in zip(clients, self.base.tolist()[:-1], strict=True)])

    def part(self, parts: Sequence[Part]) -> Part:
        """A part of each world as one of the joint world."""
        for name in ("validation", "test"):
            if all(part is getattr(w.federation, name) for part, w in zip(parts, self.worlds, strict=True)):
                joined: Part = getattr(self.joint.federation, name)
                return joined
        return _join_parts(parts, self.shifts)


@dataclass(frozen=True)
class Crew:
    """Clients of one world in a block: their places there, their numbers at home, and what they were offered."""

    world: int
    places: Tensor
    clients: Tensor
    offered: Tree


def board(
    fleet: Fleet, engine: ModuleType, states: Sequence[Tree], stores: Sequence[Store], group: Tensor, round: int,
    strangers: bool = False,
) -> tuple[Here, list[Crew]]:  # fmt: skip
    """The stacked `here` of a block of the fleet, after each client has been met in its own world."""
    host = group.cpu()
    owner = torch.searchsorted(fleet.base, host, right=True) - 1  # (m,) world of each
    heres, crews = [], []
    present, which = torch.unique(owner, return_inverse=True)
    for number in present.tolist():
        places = send(torch.nonzero(owner == number)[:, 0], group.device)
        clients = group[places] - int(fleet.base[number])
        met = meet(fleet.worlds[number], engine, states[number], stores[number], clients, round, strangers)
        heres.append(met[0])
        crews.append(Crew(number, places, clients, met[1]))
    place = torch.argsort(torch.cat([crew.places for crew in crews]))
    mine = {name: tree_rows(tree_cat([getattr(h, name) for h in heres]), place) for name in PER_CLIENT}
    seats = send(which, group.device)
    shared, initial = (_spread([getattr(h, name) for h in heres], seats) for name in ("shared", "initial"))
    mine |= {"own": Berth(shared, mine["own"], initial, mine["client"]), "client": group}
    return replace(heres[0], **mine, shared=(), initial={}, model=fleet.joint.model), crews


def train_rounds(
    fleet: Fleet, engine: ModuleType, states: Sequence[Tree], stores: Sequence[Store], cohorts: Sequence[Tensor],
    round: int, rounds: int,
) -> list[tuple[Tree, Log]]:  # fmt: skip
    """`train_round` of every world."""
    worlds, joint = fleet.worlds, fleet.joint
    if len(worlds) == 1:
        return [train_round(joint, engine, states[0], stores[0], cohorts[0], round, rounds)]
    passes, everyone = joint.passes(), fleet.numbers(cohorts)
    harvests = [Harvest() for _ in worlds]
    for group in blocks(joint, everyone, passes) if len(everyone) else ():
        here, crews = board(fleet, engine, states, stores, group, round)
        carry = engine.work(joint, passes, engine.start(joint, here), here, keys.TRAIN)
        sent, records = engine.message(joint, carry, here)
        seen = engine.losses(carry)
        for crew in crews:
            own, kept = (tree_rows(tree, crew.places) for tree in (sent, records))
            loss = None if seen is None else seen[crew.places]
            harvests[crew.world].take(crew.clients, crew.offered, own, kept, loss)
    ends = zip(worlds, harvests, states, stores, map(len, cohorts), strict=True)
    return [settle(*end, round, rounds) for end in ends]


def answer_all(
    fleet: Fleet, engine: ModuleType, states: Sequence[Tree], stores: Sequence[Store], asked: Sequence[Question],
    round: int,
) -> list[list[list[Tensor]]]:  # fmt: skip
    """`answer` of every world; the questions differ in clients and parts only."""
    joint, first = fleet.joint, asked[0]
    if len(asked) == 1 or first.outside:  # who has no data has no work that would be worth sharing
        each = zip(fleet.worlds, states, stores, asked, strict=True)
        return [answer(world, engine, state, store, question, round) for world, state, store, question in each]
    passes, adapt = first.passes(joint)
    parts = [fleet.part(some) for some in zip(*(each.parts for each in asked), strict=True)]
    everyone = fleet.numbers([each.clients for each in asked])
    place = {client: i for i, client in enumerate(everyone.tolist())}
    outputs: list[list[Tensor]] = [[torch.empty(0)] * len(place) for _ in parts]
    for group in blocks(joint, everyone, (*passes, *adapt)) if len(everyone) else ():
        here, _ = board(fleet, engine, states, stores, group, round, first.strangers)
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


def _check(worlds: Sequence[World]) -> None:
    first = worlds[0]
    if len(worlds) > 1 and first.ranks.size > 1:
        raise ValueError("several seeds at once need one process; run them one by one, or without torchrun")
    for world in worlds[1:]:
        pairs = {
            "methods": (first.method, world.method),
            "shapes of the network's parameters": (shape_of(first.initial), shape_of(world.initial)),
            "numbers of clients": (first.federation.clients, world.federation.clients),
            "shapes of a sample": (first.federation.shape, world.federation.shape),
            "numbers of classes": (first.federation.classes, world.federation.classes),
        }
        for what, (one, other) in pairs.items():
            if one != other:
                raise ValueError(f"seeds can only run at once with equal {what}; {one} and {other} were given: "
                                 "run them one by one (--apart)")  # fmt: skip


__all__ = ["Fleet", "answer_all", "train_rounds"]
