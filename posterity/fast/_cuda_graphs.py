"""The steps of a pass as CUDA graphs: everything stays where it is on the device, and a step is one launch.

Carry, records and the table of rows live in tensors of a fixed size; a graph for each number of clients reads and
writes the first of them and advances a counter. The host only says "again"; it never waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from posterity.core.protocol import Carry, Here, Pass
from posterity.core.tree import Tree, tree_leaves, tree_map, tree_rows
from posterity.engine.batches import BatchPlan, bucket
from posterity.engine.blocks import give_back
from posterity.engine.cache import Captures, Same, TraceCache, play, shape_of
from posterity.engine.engines import step_keys_of, unmoved
from posterity.engine.simulation import PER_CLIENT, Simulation, solid
from posterity.fast._trace import WARM, capture, fill

EXACT = 320  # up to so many clients a graph is captured for every number of them
COARSE = 2  # of a size is the way to the next, where a batch is all data: blocks of few clients, and of many shapes
TABLE = 2**24  # entries of the table of rows
MakeStep = Callable[[Simulation, Pass, Here], Callable[..., Carry]]
MakeBody = Callable[[Simulation, Pass, Here, "StaticBuffers", int, MakeStep], Callable[[], None]]


@dataclass(frozen=True)
class StaticBuffers:
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
    exact: bool  # whether there is a graph for every number of clients; if not, who has finished must be told apart
    graphs: dict[int, Callable[[], None]] = field(default_factory=dict)

    @staticmethod
    def of(
        carry: Carry, here: Here, size: int, length: int, batch: int, exact: bool, captures: Captures
    ) -> StaticBuffers:
        place = captures.placing("step")

        def room(leaf: Tensor) -> Tensor:
            """Shared with other passes, but for whole numbers: a capture is warmed up with what it finds there."""
            shape = (size, *leaf.shape[1:])
            if not leaf.is_floating_point():
                return leaf.new_zeros(shape)
            return place((leaf.device, leaf.dtype, shape), lambda: leaf.new_zeros(shape))

        mine = {name: tree_map(room, getattr(here, name)) for name in PER_CLIENT if name != "key"}
        table, zero = here.client.new_zeros(length, size, batch), here.client.new_zeros(())
        keys = here.key.new_zeros(length, size, 2)
        return StaticBuffers(tree_map(torch.clone, here.shared), here.round.clone(), mine, tree_map(room, carry), table,
                    table.bool(), keys, zero, zero.clone(), exact)  # fmt: skip


def take_steps(
    sim: Simulation, each: Pass, carry: Carry, here: Here, plan: BatchPlan, make: MakeStep, lay: MakeBody | None = None
) -> Carry:
    """All steps of a pass; a first step that begins what is kept, or that idle clients must not take, is by itself.

    Whether it begins something is seen by taking it, once for each shape; if it does not, that step is taken again with
    the others: what is compiled rounds otherwise, and a resumed run must have the bits of one that was not interrupted.
    `lay` makes what is captured for a number of clients; if not given, `body`.
    """
    active, empty, clients = plan.active(), plan.idle(), len(here.client)
    begins = sim.traces.entry(each, "begins", shape_of(carry))
    first = 0
    if begins.value is not False or empty is not None:
        after = _first(sim, each, carry, here, plan, make)
        begins.value = shape_of(after) != shape_of(carry) or after.kept.keys() != carry.kept.keys()
        if begins.value or empty is not None:
            carry, first = after if empty is None else unmoved(carry, after, empty), 1
    if first == len(active):
        return carry
    static = _static_buffers(sim.traces, each, carry, here, plan, max(active))
    sizes = [_size(each, static, a) for a in active]
    new = sorted(set(sizes[first:]) - static.graphs.keys(), reverse=True)
    for size in new:  # smaller ones find room in the memory of larger ones
        static.slot.zero_()
        static.graphs[size] = capture(sim.traces, (lay or body)(sim, each, here, static, size, make))
    if new:
        give_back(sim)  # what they took to warm up
    _fill(static, carry, here)
    length = len(static.rows)
    for begin in range(first, len(active), length):
        end = min(len(active), begin + length)
        _lay(sim, static, plan, here, begin, end)
        for size in sizes[begin:end]:
            static.graphs[size]()
    return tree_map(lambda leaf: leaf[:clients].clone(), static.carry)  # the places will be used again


def _size(each: Pass, static: StaticBuffers, active: int) -> int:
    """The captured size for `active` clients: their number, or one of few: of many, or where all finish together."""
    most = static.rows.shape[1]
    return active if static.exact else most if each.batch is None else bucket(active, most)


def _first(sim: Simulation, each: Pass, carry: Carry, here: Here, plan: BatchPlan, make: MakeStep) -> Carry:
    (rows,), (real,) = plan.rows(0, 1, len(here.client))
    mine = {name: getattr(here, name) for name in PER_CLIENT if name != "key"}
    step, function = torch.zeros_like(here.step), make(sim, each, here)
    data = (sim.federation.x, sim.federation.y)  # stays where it is, and is no input that would be copied

    def first(shared: Tree, round: Tensor, *rest: Tree) -> Carry:
        return function((shared, here.initial, round, *data), *rest)

    trees = (here.shared, here.round, mine, rows, real, sim.fold(here.key, step), step, carry)
    return solid(play(sim.traces, each, ("first", Same(here.model)), first, *trees))


def _static_buffers(
    traces: TraceCache, each: Pass, carry: Carry, here: Here, plan: BatchPlan, clients: int
) -> StaticBuffers:
    full_batch = each.batch is None
    size = bucket(clients, max(clients, plan.most), COARSE) if full_batch else bucket(clients, 2**31)
    exact = not full_batch and size <= EXACT
    widest = plan.longest
    length = max(WARM + 1, min(widest, TABLE // (size * plan.batch)))  # a capture advances the counter too
    key = (Same(here.model), size, length, plan.batch, shape_of(tree_rows(carry, 0)), shape_of(here.shared))
    make: Callable[[], StaticBuffers] = lambda: StaticBuffers.of(  # noqa: E731
        carry, here, size, length, plan.batch, exact, traces.captures)  # fmt: skip
    static: StaticBuffers = traces.once(each, key, make, holds=True)
    return static


def body(
    sim: Simulation, each: Pass, here: Here, static: StaticBuffers, size: int, make: MakeStep
) -> Callable[[], None]:
    """A step of the first `size` clients of a seat, and the new values put in their places."""
    function = make(sim, each, here)
    fixed = (static.shared, here.initial, static.round, sim.federation.x, sim.federation.y)

    def turn() -> None:
        rows, real, keys = (
            t.index_select(0, static.slot[None])[0, :size] for t in (static.rows, static.real, static.keys)
        )
        carry = tree_rows(static.carry, slice(size))
        mine, step = tree_rows(static.mine, slice(size)), static.slot + static.offset
        after = function(fixed, mine, rows, real, keys, step, carry)
        live = None if static.exact else step < mine["steps"]
        places, values = tree_leaves(carry), tree_leaves(after)
        if live is not None:  # who has finished keeps what it has
            pairs = zip(places, values, strict=True)
            values = [torch.where(live.reshape(-1, *[1] * (p.dim() - 1)), v, p) for p, v in pairs]
        fill(places, values)
        static.slot.add_(1)

    return turn


def _fill(static: StaticBuffers, carry: Carry, here: Here) -> None:
    """Put the round's values in their places."""
    mine = {name: getattr(here, name) for name in static.mine}
    stacks, values = tree_leaves((static.mine, static.carry)), tree_leaves((mine, carry))
    places = [place[: len(value)] for place, value in zip(stacks, values, strict=True)]
    fill([*tree_leaves(static.shared), static.round, *places], [*tree_leaves(here.shared), here.round, *values])
    static.mine["steps"][len(here.client) :] = 0  # who is not there has finished


def _lay(sim: Simulation, static: StaticBuffers, plan: BatchPlan, here: Here, begin: int, end: int) -> None:
    """The rows and keys of steps begin … end-1."""
    clients, count = len(here.client), end - begin
    rows, real = plan.rows(begin, end, clients)
    static.rows[:count, :clients], static.real[:count, :clients] = rows, real
    static.keys[:count, :clients] = step_keys_of(sim, here.key, begin, end)
    static.slot.zero_()
    static.offset.fill_(begin)
