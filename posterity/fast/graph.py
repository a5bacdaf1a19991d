"""`stacked`, recorded once and replayed; on a GPU as CUDA graphs (`_cuda_graphs.py`).

The number of clients that are still at work falls from step to step, and a recording is bound to it. So a few sizes are
recorded (`bucket`), and a step runs with the next larger one: clients that have finished are carried along and keep
what they have.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posterity.core.protocol import Carry, Here, Pass
from posterity.core.tree import Tree, tree_cat, tree_leaves, tree_map, tree_rebuilt
from posterity.engine.batches import ENTRIES, BatchPlan, segments
from posterity.engine.cache import Same, TraceEntry, play, shape_of
from posterity.engine.engines import Stacked, cut_off, step_keys_of, unmoved
from posterity.engine.simulation import PER_CLIENT, Simulation, over, select, solid
from posterity.fast import _cuda_graphs as cuda_graphs
from posterity.fast._trace import trace_flat


def apply(sim: Simulation, function: Callable[..., Any], here: Here, *stacks: Any) -> Any:
    """`over`, recorded."""
    owner = getattr(function, "__self__", function)  # a method's function is a new object each time it is named
    key = (getattr(function, "__name__", ""), Same(here.model))
    return play(sim.traces, owner, key, lambda here, *stacks: over(function, here, *stacks), here, *stacks)


@dataclass(frozen=True)
class StepCompiler:
    """How steps are recorded on a CPU, when that pays, and how many sizes there are."""

    make: Callable[..., tuple[Callable[..., list[Tensor]], Tree]] = trace_flat
    calls: int | None = None  # after which it pays, of what rounds otherwise; None: bits are those of calls
    part: int = 5  # of a size is the way to the next


def take_steps(
    sim: Simulation, each: Pass, carry: Carry, here: Here, plan: BatchPlan, compiler: StepCompiler = StepCompiler()
) -> Carry:
    """All steps of a pass: `stacked.take_steps`, replayed."""
    if here.key.is_cuda:
        return cuda_graphs.take_steps(sim, each, carry, here, plan, make_step)
    fixed = solid((here.shared, here.initial, here.round, sim.federation.x, sim.federation.y))
    finished: list[Carry] = []
    empty, active = plan.idle(), plan.active()
    few = len(active) * len(here.client) <= ENTRIES
    keys = step_keys_of(sim, here.key, 0, len(active)) if few else None  # (steps, m, 2)
    for segment in segments(active, plan.batch, compiler.part):
        if segment.size < len(here.client):
            carry, done = cut_off(carry, segment.size)
            finished.append(done)
            here = select(here, slice(segment.size))
        first, last, size = segment.first, segment.last, segment.size
        own = step_keys_of(sim, here.key, first, last) if keys is None else keys[first:last]
        steps = list(zip(*plan.rows(first, last, size), own[:, :size], torch.arange(first, last), strict=True))
        after = _replay(sim, each, carry, here, steps, active[first:last], fixed, compiler)
        carry = after if segment.first or empty is None else unmoved(carry, after, empty)
    return tree_cat([carry, *reversed(finished)])


def _replay(
    sim: Simulation, each: Pass, carry: Carry, here: Here, steps: Sequence[tuple[Tensor, ...]], active: Sequence[int],
    fixed: Tree, compiler: StepCompiler,
) -> Carry:  # fmt: skip
    """The steps of a segment (rows, mask, keys and number of each), called or replayed.

    `active` clients are at work at each step; those behind them keep what they have.
    """
    mine = {name: getattr(here, name) for name in PER_CLIENT if name != "key"}
    size = len(here.client)
    function = make_step(sim, each, here)
    first = (fixed, mine, *steps[0], carry)
    entry = sim.traces.entry(each, Same(here.model), shape_of(first))
    with torch.no_grad():
        if not _pays(sim, entry, here, len(steps), compiler):
            for step, count in zip(steps, active, strict=True):
                after = function(fixed, mine, *step, carry)
                carry = after if count == size else tree_map(partial(_joined, count), after, carry)
            return solid(carry)
        if entry.value is None:
            entry.value = compiler.make(function, *first)
        run, result = entry.value
        constant, leaves = tree_leaves((fixed, mine)), tree_leaves(carry)
        for step, count in zip(steps, active, strict=True):
            before, leaves = leaves, list(run(*constant, *step, *leaves))
            if count < size:
                _put_back(count, leaves, before, [*constant, *step, *before])
    done: Carry = tree_rebuilt(result, leaves)
    return done


def _pays(sim: Simulation, entry: TraceEntry, here: Here, steps: int, compiler: StepCompiler) -> bool:
    """Whether so many steps are replayed.

    What is compiled rounds otherwise than what is called, so the round alone decides, and not how often this process
    has met such steps: a run that is resumed, or that comes after another, has the bits of one by itself.
    """
    if compiler.calls is None or sim.traces.patience is not None:
        return entry.value is not None or sim.traces.pays(entry, here.key.device, steps)
    return steps * int(here.round) > compiler.calls


def _joined(count: int, after: Tensor, before: Tensor) -> Tensor:
    """`after` for the first `count` clients, `before` for those behind them: they have finished."""
    return torch.cat((after[:count], before[count:]))


def _put_back(count: int, after: list[Tensor], before: list[Tensor], others: list[Tensor]) -> None:
    """`_joined` for all leaves in place, where no other tensor lies in the same memory."""
    taken = {tensor.untyped_storage().data_ptr() for tensor in others}
    for i, (new, old) in enumerate(zip(after, before, strict=True)):
        place = new.untyped_storage().data_ptr()
        if place in taken:
            after[i] = _joined(count, new, old)
        else:
            new[count:] = old[count:]
            taken.add(place)


def make_step(sim: Simulation, each: Pass, here: Here) -> Callable[..., Carry]:
    """One step as a function of everything that changes from step to step or from round to round."""

    def step(fixed: Tree, mine: Any, row: Tensor, mask: Tensor, key: Tensor, step: Tensor, carry: Carry) -> Carry:
        shared, initial, round, x, y = fixed
        now = replace(here, shared=shared, initial=initial, round=round, step=step, key=key, **mine)
        after: Carry = over(each.step, now, carry, sim.build(x, y, row, mask, sim.dtype))
        return after

    return step


engine = Stacked("graph", apply, take_steps)
