"""All clients of a block in one tensor program.

Clients are sorted by their number of steps; at each step only the prefix that still has data runs, so nobody waits
and nothing is wasted. The tail that has finished is cut off once and put back at the end of the pass.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.func import vmap

from posterity.core.draw import fold
from posterity.core.method import Carry, Here, Message, Pass, Personal
from posterity.core.tree import Tree, tree_cat, tree_map, tree_rows
from posterity.data.federation import Part
from posterity.engine import keys
from posterity.engine.plan import Plan, make_plan
from posterity.engine.world import PREDICT_ROWS, World, at, over, select, solid

name = "stacked"


def offer(world: World, state: Tree, clients: Tensor | None, count: int) -> tuple[Tree, Tree]:
    """The broadcast and a stack of what each client gets by itself; `clients` None = `count` newcomers."""
    if clients is None:
        shared, own = world.method.offer(state, None)
        return shared, tree_map(lambda leaf: leaf.expand(count, *leaf.shape), own)
    return vmap(world.method.offer, in_dims=(None, 0), out_dims=(None, 0))(state, clients)  # type: ignore[arg-type]


def join(world: World, here: Here) -> Personal:
    return solid(over(world.method.join, at(here, keys.JOIN)))


def start(world: World, here: Here) -> Carry:
    return Carry(solid(over(world.method.start, at(here, keys.START))), {}, ())


def work(world: World, passes: tuple[Pass, ...], carry: Carry, here: Here, stage: int) -> Carry:
    """Every client through all passes."""
    here = at(here, stage)
    for number, each in enumerate(passes):
        here = replace(here, kept=carry.kept)
        carry = _walk(world, each, carry, replace(here, key=fold(here.key, number)))
    return carry


def _walk(world: World, each: Pass, carry: Carry, here: Here) -> Carry:
    plan = make_plan(each, world.part(each.on), here.client, here.key)
    order = torch.argsort(plan.steps, descending=True, stable=True)
    if bool((order.diff() != 1).any()):  # this pass wants another order than the block's
        back = torch.argsort(order)
        return tree_rows(_walk(world, each, tree_rows(carry, order), select(here, order)), back)
    here = replace(here, steps=plan.steps)
    carry = solid(over(each.open, here, carry))
    carry = _steps(world, each, carry, here, plan)
    return over(each.close, here, carry)


def _steps(world: World, each: Pass, carry: Carry, here: Here, plan: Plan) -> Carry:
    length = plan.length()
    step_keys = fold(here.key[:, None], torch.arange(length, device=here.key.device))  # (m, steps, 2)
    finished: list[Carry] = []
    empty = plan.count == 0 if bool((plan.count == 0).any()) else None
    for step, active in enumerate(plan.active()):
        if active < len(here.client):
            finished.append(tree_rows(carry, slice(active, None)))
            carry, here = tree_rows(carry, slice(active)), select(here, slice(active))
        rows, real = plan.rows(step, active)
        now = replace(here, step=torch.full_like(here.step, step), key=step_keys[:active, step])
        after = over(each.step, now, carry, world.batch(rows, real))
        carry = after if step or empty is None else _unmoved(carry, after, empty)
    return tree_cat([carry, *reversed(finished)])


def _unmoved(before: Carry, after: Carry, empty: Tensor) -> Carry:
    """`after`, but clients without data keep their leaves: weight decay must not move them."""
    params, opt = (
        tree_map(
            lambda b, a: torch.where(empty.reshape(-1, *[1] * (a.dim() - 1)), b, a),
            getattr(before, n),
            getattr(after, n),
        )
        for n in ("params", "opt")
    )
    return Carry(params, after.kept, opt)


def message(world: World, carry: Carry, here: Here) -> tuple[Message, Personal]:
    here = at(replace(here, kept=carry.kept), keys.MESSAGE)
    return solid(over(world.method.message, here, carry))


def losses(carry: Carry) -> Tensor | None:
    """Loss times samples, and samples, that each client saw while training (m, 2)."""
    return carry.kept.get("loss")


def predict(world: World, carry: Carry, here: Here, part: Part) -> list[Tensor]:
    """Outputs for each client's rows of `part`."""
    here = at(replace(here, kept=carry.kept), keys.PREDICT)
    look = Pass(step=lambda carry, batch, here: carry, batch=PREDICT_ROWS, shuffle=False)
    plan = make_plan(look, part, here.client, here.key)
    order = torch.argsort(plan.steps, descending=True, stable=True)
    carry, here = tree_rows(carry, order), select(here, order)
    plan = make_plan(look, part, here.client, here.key)
    chunks: list[list[Tensor]] = [[] for _ in here.client]
    counts = plan.count.tolist()
    for step, active in enumerate(plan.active()):
        rows, _ = plan.rows(step, active)
        some = replace(select(here, slice(active)), key=fold(here.key[:active], step))
        outputs = over(world.method.predict, some, tree_rows(carry, slice(active)), world.federation.x[rows])
        for i in range(active):
            chunks[i].append(outputs[i, : max(0, min(PREDICT_ROWS, counts[i] - step * PREDICT_ROWS))])
    inverse = torch.argsort(order).tolist()
    return [torch.cat(chunks[i]) for i in inverse]
