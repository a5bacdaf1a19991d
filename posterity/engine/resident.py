"""The steps of a pass as CUDA graphs: everything stays where it is on the device, and a step is one launch.

Carry, records and the table of rows live in tensors of a fixed size; a graph for each number of clients reads and
writes the first of them and advances a counter. The host only says "again"; it never waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from posterity.core.method import Carry, Here, Pass
from posterity.core.tree import Tree, tree_leaves, tree_map, tree_rows
from posterity.engine.plan import Plan, rung
from posterity.engine.record import WARM, Recordings, capture, fill, play, shape_of
from posterity.engine.stacked import step_keys_of, unmoved
from posterity.engine.world import PER_CLIENT, World, solid

EXACT = 320  # up to so many clients a graph is captured for every number of them
TABLE = 2**24  # entries of the table of rows
MakeStep = Callable[[World, Pass, Here], Callable[..., Carry]]
MakeBody = Callable[[World, Pass, Here, "Seat", int, MakeStep], Callable[[], None]]


@dataclass(frozen=True)
class Seat:
    """The fixed places of one pass, for `size` clients, and the graphs that work on them."""

    shared: Tree
    round: Tensor
    mine: dict[str, Tree]  # (size, ...)
    carry: Carry  # (size, ...)
    rows: Tensor  # (length, size, batch)
    real: Tensor
    keys: Tensor  # (length, size, 2)
    slot: Tensor  # () place in the table of the next step
    offset: Tensor  # () the step at place 0
    graphs: dict[int, Callable[[], None]] = field(default_factory=dict)

    @staticmethod
    def of(carry: Carry, here: Here, size: int, length: int, batch: int) -> Seat:
        def room(leaf: Tensor) -> Tensor:
            return leaf.new_zeros(size, *leaf.shape[1:])

        mine = {name: tree_map(room, getattr(here, name)) for name in PER_CLIENT if name != "key"}
        table, zero = here.client.new_zeros(length, size, batch), here.client.new_zeros(())
        keys = here.key.new_zeros(length, size, 2)
        return Seat(tree_map(torch.clone, here.shared), here.round.clone(), mine, tree_map(room, carry), table,
                    table.bool(), keys, zero, zero.clone())  # fmt: skip


def take_steps(
    world: World, each: Pass, carry: Carry, here: Here, plan: Plan, make: MakeStep, lay: MakeBody | None = None
) -> Carry:
    """All steps of a pass; a first step that begins what is kept, or that idle clients must not take, is by itself.

    `lay` makes what is captured for a number of clients; if not given, `body`.
    """
    active, empty, clients = plan.active(), plan.idle(), len(here.client)
    begins = world.recordings.entry(each, "begins", shape_of(carry))
    first = 0
    if begins.value is not False or empty is not None:
        after = _first(world, each, carry, here, plan, make)
        begins.value = shape_of(after) != shape_of(carry) or after.kept.keys() != carry.kept.keys()
        carry, first = after if empty is None else unmoved(carry, after, empty), 1
    if first == len(active):
        return carry
    seat = _seat(world.recordings, each, carry, here, plan, max(active))
    sizes = [_size(a, seat.rows.shape[1]) for a in active]
    for size in sorted(set(sizes[first:])):
        if size not in seat.graphs:
            seat.slot.zero_()
            seat.graphs[size] = capture(world.recordings, (lay or body)(world, each, here, seat, size, make))
    _fill(seat, carry, here)
    length = len(seat.rows)
    for begin in range(first, len(active), length):
        end = min(len(active), begin + length)
        _lay(world, seat, plan, here, begin, end)
        for size in sizes[begin:end]:
            seat.graphs[size]()
    return tree_map(lambda leaf: leaf[:clients].clone(), seat.carry)  # the places will be used again


def _size(active: int, most: int) -> int:
    """The captured size for `active` clients: their number, or one of few where there are many."""
    return active if most <= EXACT else rung(active, most)


def _first(world: World, each: Pass, carry: Carry, here: Here, plan: Plan, make: MakeStep) -> Carry:
    (rows,), (real,) = plan.rows(0, 1, len(here.client))
    mine = {name: getattr(here, name) for name in PER_CLIENT if name != "key"}
    step, function = torch.zeros_like(here.step), make(world, each, here)
    data = (world.federation.x, world.federation.y)  # stays where it is, and is no input that would be copied

    def first(shared: Tree, round: Tensor, *rest: Tree) -> Carry:
        return function((shared, here.initial, round, *data), *rest)

    trees = (here.shared, here.round, mine, rows, real, world.fold(here.key, step), step, carry)
    return solid(play(world.recordings, each, ("first", id(here.model)), first, *trees))


def _seat(recordings: Recordings, each: Pass, carry: Carry, here: Here, plan: Plan, clients: int) -> Seat:
    size = rung(clients, 2**31)
    widest = plan.longest
    length = max(WARM + 1, min(widest, TABLE // (size * plan.batch)))  # a capture advances the counter too
    key = (id(here.model), size, length, plan.batch, shape_of(tree_rows(carry, 0)), shape_of(here.shared))
    make: Callable[[], Seat] = lambda: Seat.of(carry, here, size, length, plan.batch)  # noqa: E731
    seat: Seat = recordings.once(each, key, make)
    return seat


def body(world: World, each: Pass, here: Here, seat: Seat, size: int, make: MakeStep) -> Callable[[], None]:
    """A step of the first `size` clients of a seat, and the new values put in their places."""
    function = make(world, each, here)
    fixed = (seat.shared, here.initial, seat.round, world.federation.x, world.federation.y)

    def turn() -> None:
        rows, real, keys = (t.index_select(0, seat.slot[None])[0, :size] for t in (seat.rows, seat.real, seat.keys))
        carry = tree_rows(seat.carry, slice(size))
        mine, step = tree_rows(seat.mine, slice(size)), seat.slot + seat.offset
        after = function(fixed, mine, rows, real, keys, step, carry)
        live = None if len(seat.rows[0]) <= EXACT else step < mine["steps"]
        places, values = tree_leaves(carry), tree_leaves(after)
        if live is not None:  # who has finished keeps what it has
            pairs = zip(places, values, strict=True)
            values = [torch.where(live.reshape(-1, *[1] * (p.dim() - 1)), v, p) for p, v in pairs]
        fill(places, values)
        seat.slot.add_(1)

    return turn


def _fill(seat: Seat, carry: Carry, here: Here) -> None:
    """Put the round's values in their places."""
    mine = {name: getattr(here, name) for name in seat.mine}
    stacks, values = tree_leaves((seat.mine, seat.carry)), tree_leaves((mine, carry))
    places = [place[: len(value)] for place, value in zip(stacks, values, strict=True)]
    fill([*tree_leaves(seat.shared), seat.round, *places], [*tree_leaves(here.shared), here.round, *values])
    seat.mine["steps"][len(here.client) :] = 0  # who is not there has finished


def _lay(world: World, seat: Seat, plan: Plan, here: Here, begin: int, end: int) -> None:
    """The rows and keys of steps begin … end-1."""
    clients, count = len(here.client), end - begin
    rows, real = plan.rows(begin, end, clients)
    seat.rows[:count, :clients], seat.real[:count, :clients] = rows, real
    seat.keys[:count, :clients] = step_keys_of(world, here.key, begin, end)
    seat.slot.zero_()
    seat.offset.fill_(begin)
