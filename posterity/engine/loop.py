"""One client after another, each function called on plain tensors: the oracle that `stacked` must equal.

On a CPU a step that has been taken often enough is recorded and replayed (`record.py`): the same operators on the same
numbers. It must be a step that could be mapped over clients, for only then are its operators always the same ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor
from torch.func import vmap

from posterity.core.draw import fold
from posterity.core.method import Batch, Carry, Here, Message, Pass, Personal
from posterity.core.tree import Tree, tree_leaves, tree_map, tree_rebuilt, tree_stack
from posterity.core.whole import mark_whole
from posterity.data.federation import Part
from posterity.engine import keys
from posterity.engine.plan import Plan, make_plan
from posterity.engine.record import shape_of, trace_flat
from posterity.engine.world import PER_CLIENT, PREDICT_ROWS, World, at, select, solid

name = "loop"
Moment = tuple[Tensor, Tensor, Tensor, Tensor]  # rows (width,), mask (width,), key (2,), number of the step ()


def offer(world: World, state: Tree, clients: Tensor | None, count: int) -> tuple[Tree, Tree]:
    """The broadcast and a stack of what each client gets by itself; `clients` None = `count` newcomers."""
    pairs = [world.method.offer(state, None if clients is None else clients[i]) for i in range(count)]
    return pairs[0][0], tree_stack([own for _, own in pairs])


def join(world: World, here: Here) -> Personal:
    here = at(world, here, keys.JOIN)
    return tree_stack([world.method.join(select(here, i)) for i in range(len(here.client))])


def start(world: World, here: Here) -> list[Carry]:
    here = at(world, here, keys.START)
    return [Carry(world.method.start(select(here, i)), {}, ()) for i in range(len(here.client))]


def work(world: World, passes: tuple[Pass, ...], carries: list[Carry], here: Here, stage: int) -> list[Carry]:
    """Every client through all passes."""
    here, done = at(world, here, stage), []
    ids, pool = here.client.cpu(), (world.federation.x, world.federation.y)
    common = Common.of((here.shared, here.initial, here.round, *pool))
    keys = [world.fold(here.key, number) for number in range(len(passes))]  # (m, 2) each
    plans = [make_plan(p, world.part(p.on), ids, k, world.recordings) for p, k in zip(passes, keys, strict=True)]
    for i, carry in enumerate(carries):
        me = select(here, i)
        for each, key, plan in zip(passes, keys, plans, strict=True):
            carry = _walk(world, each, carry, replace(me, key=key[i]), _single(plan, i), common)
        done.append(carry)
    return done


@dataclass(frozen=True)
class Common:
    """What all clients share, and its shape: a part of what a recording is bound to."""

    tree: Tree
    shape: Hashable

    @staticmethod
    def of(tree: Tree) -> Common:
        return Common(solid(tree), shape_of(tree))


def _single(plan: Plan, i: int) -> Plan:
    """The plan of one client."""
    own = {name: getattr(plan, name)[i : i + 1] for name in ("start", "count", "counts", "steps")}
    return replace(plan, **own)


def _walk(world: World, each: Pass, carry: Carry, here: Here, plan: Plan, common: Common) -> Carry:
    here = replace(here, steps=plan.steps[0].to(here.key.device), kept=carry.kept)
    carry, length = each.open(carry, here), plan.length()
    numbers = torch.arange(length, device=here.key.device)
    rows, real = (table[:, 0] for table in plan.rows(0, length, 1))  # (steps, batch)
    moments = list(zip(rows, real, world.fold(here.key, numbers), numbers, strict=True))
    for stretch in _stretches(moments, real.sum(-1).clamp(min=1).tolist()):
        after = _take(world, each, carry, here, stretch, common, bool(plan.counts[0]))
        carry = after if plan.counts[0] else replace(carry, kept=after.kept)  # no data: nothing moves
    return each.close(carry, here)


def _stretches(moments: list[Moment], widths: list[int]) -> Iterator[list[Moment]]:
    """The steps of a pass without padding, in stretches of one width; the first by itself: it may begin what is kept.

    The masks of `stacked` must make no difference, so there is nothing to mask here.
    """
    for (_, width), group in groupby(range(len(moments)), lambda step: (step == 0, widths[step])):
        yield [(rows[:width], real[:width], key, step) for rows, real, key, step in (moments[i] for i in group)]


def _take(
    world: World, each: Pass, carry: Carry, here: Here, stretch: list[Moment], common: Common, whole: bool
) -> Carry:
    """The steps of a stretch, replayed if steps like these have been taken often; `whole`: there are samples."""
    step = _step(world, each, here, whole)
    mine = {name: getattr(here, name) for name in PER_CLIENT if name != "key"}
    shape = (common.shape, len(stretch[0][0]), whole, shape_of((mine, carry)))
    entry = world.recordings.entry(each, "loop", id(here.model), shape)
    with torch.no_grad():
        if entry.value is None and not here.key.is_cuda and world.recordings.pays(entry, here.key.device, len(stretch)):
            first = (common.tree, mine, *stretch[0], carry)
            entry.value = trace_flat(step, *first) if _steady(step, *first) else ()
        if not entry.value:
            for moment in stretch:
                carry = step(common.tree, mine, *moment, carry)
            return carry
        run, result = entry.value
        constant, leaves = tree_leaves((common.tree, solid(mine))), tree_leaves(solid(carry))
        for moment in stretch:
            leaves = run(*constant, *moment, *leaves)
    after: Carry = tree_rebuilt(result, leaves)
    return after


def _step(world: World, each: Pass, here: Here, whole: bool) -> Callable[..., Carry]:
    """One step of one client as a function of everything that changes from step to step, client or round."""

    def step(common: Tree, mine: Tree, rows: Tensor, mask: Tensor, key: Tensor, step: Tensor, carry: Carry) -> Carry:
        shared, initial, round, x, y = common
        now = replace(here, shared=shared, initial=initial, round=round, step=step, key=key, **mine)
        mask = mark_whole(mask.to(world.dtype)) if whole else mask.to(world.dtype)
        return each.step(carry, Batch(x[rows], y[rows], mask), now)

    return step


def _steady(step: Callable[..., Carry], *first: Tree) -> bool:
    """Whether a step always has the same operators: what can be mapped over clients cannot look at values."""
    axes = (None, 0, 0, 0, 0, None, 0)
    alone = [
        tree if axis is None else tree_map(lambda t: t[None], tree) for tree, axis in zip(first, axes, strict=True)
    ]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # how slow that would be is of no interest
            vmap(step, in_dims=axes)(*alone)
    except (RuntimeError, ValueError, TypeError):  # how an operator complains that cannot be mapped, or is not one
        return False
    return True


def message(world: World, carries: list[Carry], here: Here) -> tuple[Message, Personal]:
    here = at(world, here, keys.MESSAGE)
    pairs = [world.method.message(carry, replace(select(here, i), kept=carry.kept)) for i, carry in enumerate(carries)]
    return tree_stack([m for m, _ in pairs]), tree_stack([p for _, p in pairs])


def losses(carries: list[Carry]) -> Tensor | None:
    """Loss times samples, and samples, that each client saw while training (m, 2)."""
    return torch.stack([c.kept["loss"] for c in carries]) if "loss" in carries[0].kept else None


def predict(world: World, carries: list[Carry], here: Here, part: Part) -> list[Tensor]:
    """Outputs for each client's rows of `part`."""
    here, outputs = at(world, here, keys.PREDICT), []
    for i, (carry, client) in enumerate(zip(carries, here.client.tolist(), strict=True)):
        me = replace(select(here, i), kept=carry.kept)
        chunks = [
            world.method.predict(carry, world.federation.x[rows], replace(me, key=fold(me.key, c)))
            for c, rows in enumerate(torch.split(part.client(client), PREDICT_ROWS))
        ]
        outputs.append(torch.cat(chunks))
    return outputs
