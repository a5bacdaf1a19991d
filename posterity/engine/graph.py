"""`stacked`, recorded once and replayed (`record.py`).

The number of clients that are still at work falls from step to step, and a recording is bound to it. So a few sizes are
recorded (`rung`), and a step runs with the next larger one: clients that have finished are carried along and keep
what they have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posterity.core.method import Batch, Carry, Here, Message, Pass, Personal
from posterity.core.tree import Tree, tree_cat, tree_leaves, tree_map, tree_rebuilt, tree_rows
from posterity.data.federation import Part
from posterity.engine import resident, stacked
from posterity.engine.plan import Leg, Plan, legs
from posterity.engine.record import play, shape_of, trace_flat
from posterity.engine.stacked import losses, offer, unmoved
from posterity.engine.world import PER_CLIENT, World, at, over, select, solid

name = "graph"


def apply(world: World, function: Callable[..., Any], here: Here, *stacks: Any) -> Any:
    """`over`, recorded."""
    owner = getattr(function, "__self__", function)  # a method's function is a new object each time it is named
    key = (getattr(function, "__name__", ""), id(here.model))
    return play(world.recordings, owner, key, lambda here, *stacks: over(function, here, *stacks), here, *stacks)


def join(world: World, here: Here) -> Personal:
    """New records; a method that keeps none is asked once."""
    none = world.recordings.entry(world.method, "no record")
    if none.value is None:
        made = stacked.join(world, here, apply)
        if tree_leaves(made):
            return made
        none.value = (made,)
    return none.value[0]


def start(world: World, here: Here) -> Carry:
    return stacked.start(world, here, apply)


def work(world: World, passes: tuple[Pass, ...], carry: Carry, here: Here, stage: int) -> Carry:
    """Every client through all passes."""
    return stacked.walk(world, passes, carry, at(world, here, stage), apply, take_steps)


def message(world: World, carry: Carry, here: Here) -> tuple[Message, Personal]:
    return stacked.message(world, carry, here, apply)


def predict(world: World, carry: Carry, here: Here, part: Part) -> list[Tensor]:
    return stacked.predict(world, carry, here, part, apply)


@dataclass(frozen=True)
class Manner:
    """How steps are recorded on a CPU, when that pays, and how many sizes there are."""

    make: Callable[..., tuple[Callable[..., list[Tensor]], Tree]] = trace_flat
    calls: int | None = None  # after which a recording pays, if not as many as for a plain one
    part: int = 5  # of a size is the way to the next


def take_steps(world: World, each: Pass, carry: Carry, here: Here, plan: Plan, manner: Manner = Manner()) -> Carry:
    """All steps of a pass: `stacked.take_steps`, replayed."""
    if here.key.is_cuda:
        return resident.take_steps(world, each, carry, here, plan, _step)
    fixed = solid((here.shared, here.initial, here.round, world.federation.x, world.federation.y))
    finished: list[Carry] = []
    empty = plan.idle()
    for leg in legs(plan.active(), plan.batch, manner.part):
        if leg.size < len(here.client):
            finished.append(tree_rows(carry, slice(leg.size, None)))
            carry, here = tree_rows(carry, slice(leg.size)), select(here, slice(leg.size))
        after = _replay(world, each, carry, here, plan, leg, fixed, manner)
        carry = after if leg.first or empty is None else unmoved(carry, after, empty)
    return tree_cat([carry, *reversed(finished)])


def _replay(
    world: World, each: Pass, carry: Carry, here: Here, plan: Plan, leg: Leg, fixed: Tree, manner: Manner
) -> Carry:
    """The steps of a leg."""
    rows, real = plan.rows(leg.first, leg.last, leg.size)  # (steps, size, batch)
    steps = torch.arange(leg.first, leg.last)
    keys = stacked.step_keys_of(world, here.key, leg.first, leg.last)  # (steps, size, 2)
    mine = {name: getattr(here, name) for name in PER_CLIENT if name != "key"}
    function = _step(world, each, here, leg.ragged)
    first = (fixed, mine, rows[0], real[0], keys[0], steps[0], carry)
    entry = world.recordings.entry(each, id(here.model), leg.ragged, shape_of(first))
    moments = list(zip(rows, real, keys, steps, strict=True))
    with torch.no_grad():
        if entry.value is None and not world.recordings.pays(entry, rows.device, len(moments), manner.calls):
            for moment in moments:
                carry = function(fixed, mine, *moment, carry)
            return solid(carry)
        if entry.value is None:
            entry.value = manner.make(function, *first)
        run, result = entry.value
        constant, leaves = tree_leaves((fixed, mine)), tree_leaves(carry)
        for moment in moments:
            leaves = run(*constant, *moment, *leaves)
    after: Carry = tree_rebuilt(result, leaves)
    return after


def _step(world: World, each: Pass, here: Here, ragged: bool) -> Callable[..., Carry]:
    """One step as a function of everything that changes from step to step or from round to round."""

    def step(fixed: Tree, mine: Any, row: Tensor, mask: Tensor, key: Tensor, step: Tensor, carry: Carry) -> Carry:
        shared, initial, round, x, y = fixed
        now = replace(here, shared=shared, initial=initial, round=round, step=step, key=key, **mine)
        after: Carry = over(each.step, now, carry, Batch(x[row], y[row], mask.to(world.dtype)))
        return _held(carry, after, step < mine["steps"]) if ragged else after

    return step


def _held(before: Carry, after: Carry, live: Tensor) -> Carry:
    """`after` for clients that are still at work, `before` for those that have finished."""
    held: Carry = tree_map(lambda b, a: torch.where(live.reshape(-1, *[1] * (a.dim() - 1)), a, b), before, after)
    return held


__all__ = ["join", "losses", "message", "name", "offer", "predict", "start", "work"]
