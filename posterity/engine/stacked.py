"""All clients of a block in one tensor program.

Clients are sorted by their number of steps; at each step only the prefix that still has data runs, so nobody waits
and nothing is wasted. The tail that has finished is cut off once and put back at the end of the pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from posterity.core.protocol import Carry, Here, Message, Method, Pass, Personal, keep
from posterity.core.tree import Tree, tree_cat, tree_map, tree_rows
from posterity.data.federation import Part
from posterity.engine import keys
from posterity.engine.batches import BatchPlan, make_plan
from posterity.engine.simulation import PREDICT_ROWS, Simulation, at, over, select, solid
from posterity.engine.tracing.trace import send

name = "stacked"
Apply = Callable[..., Any]  # (world, function, here, *stacks)
Stepping = Callable[[Simulation, Pass, Carry, Here, BatchPlan], Carry]


def offer(sim: Simulation, state: Tree, clients: Tensor | None, count: int) -> tuple[Tree, Tree]:
    """The broadcast and a stack of what each client gets by itself; `clients` None = `count` newcomers."""
    if getattr(sim.method.offer, "__func__", None) is Method.offer:
        return state, ()  # the default needs no mapping
    if clients is None:
        shared, own = sim.method.offer(state, None)
        return shared, tree_map(lambda leaf: leaf.expand(count, *leaf.shape), own)
    return vmap(sim.method.offer, in_dims=(None, 0), out_dims=(None, 0))(state, clients)  # type: ignore[arg-type]


def apply(sim: Simulation, function: Callable[..., Any], here: Here, *stacks: Any) -> Any:
    """`function(*stacks, here)` for every client at once."""
    return over(function, here, *stacks)


def join(sim: Simulation, here: Here, apply: Apply = apply) -> Personal:
    return solid(apply(sim, sim.method.join, at(sim, here, keys.JOIN)))


def start(sim: Simulation, here: Here, apply: Apply = apply) -> Carry:
    return Carry(solid(apply(sim, sim.method.start, at(sim, here, keys.START))), {}, ())


def work(sim: Simulation, passes: tuple[Pass, ...], carry: Carry, here: Here, stage: int) -> Carry:
    """Every client through all passes."""
    return walk(sim, passes, carry, at(sim, here, stage), apply, take_steps)


def walk(
    sim: Simulation, passes: tuple[Pass, ...], carry: Carry, here: Here, apply: Apply, stepping: Stepping
) -> Carry:
    """Every client through all passes; `apply` maps a function over clients, `stepping` takes the steps of a pass."""
    ids = here.client.cpu()  # once, before there is anything to wait for
    for number, each in enumerate(passes):
        here = replace(here, kept=carry.kept)
        carry = _walk(sim, each, carry, replace(here, key=sim.fold(here.key, number)), ids, apply, stepping)
    return carry


def _walk(
    sim: Simulation, each: Pass, carry: Carry, here: Here, ids: Tensor, apply: Apply, stepping: Stepping
) -> Carry:
    counts = sim.part(each.on).sizes[ids]
    order = torch.argsort(counts, descending=True, stable=True)  # who has more samples has no fewer steps
    if bool((order.diff() != 1).any()):  # this pass wants another order than the block's
        there, back = send(order, here.key.device), send(torch.argsort(order), here.key.device)
        carry, here = tree_rows(carry, there), select(here, there)
        return tree_rows(_walk(sim, each, carry, here, ids[order], apply, stepping), back)
    plan = make_plan(each, sim.part(each.on), ids, here.key, sim.traces)
    here = replace(here, steps=send(plan.steps, here.key.device))
    if each.open is not keep:
        carry = solid(apply(sim, each.open, here, carry))
    carry = stepping(sim, each, carry, here, plan)
    return carry if each.close is keep else apply(sim, each.close, here, carry)


def take_steps(sim: Simulation, each: Pass, carry: Carry, here: Here, plan: BatchPlan) -> Carry:
    """All steps of a pass, one call of the mapped function each."""
    step_keys = step_keys_of(sim, here.key, 0, plan.length())  # (steps, m, 2)
    finished: list[Carry] = []
    empty = plan.idle()
    for step, active in enumerate(plan.active()):
        if active < len(here.client):
            finished.append(tree_rows(carry, slice(active, None)))
            carry, here = tree_rows(carry, slice(active)), select(here, slice(active))
        (rows,), (real,) = plan.rows(step, step + 1, active)
        now = replace(here, step=torch.full_like(here.step, step), key=step_keys[step, :active])
        after = over(each.step, now, carry, sim.batch(rows, real))
        carry = after if step or empty is None else unmoved(carry, after, empty)
    return tree_cat([carry, *reversed(finished)])


def step_keys_of(sim: Simulation, key: Tensor, first: int, last: int) -> Tensor:
    """Keys (steps, m, 2) of the steps first … last-1."""
    return sim.fold(key, torch.arange(first, last, device=key.device)[:, None])


def unmoved(before: Carry, after: Carry, empty: Tensor) -> Carry:
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


def message(sim: Simulation, carry: Carry, here: Here, apply: Apply = apply) -> tuple[Message, Personal]:
    here = at(sim, replace(here, kept=carry.kept), keys.MESSAGE)
    return solid(apply(sim, sim.method.message, here, carry))


def losses(carry: Carry) -> Tensor | None:
    """Loss times samples, and samples, that each client saw while training (m, 2)."""
    return carry.kept.get("loss")


def predict(sim: Simulation, carry: Carry, here: Here, part: Part, apply: Apply = apply) -> list[Tensor]:
    """Outputs for each client's rows of `part`."""
    here = at(sim, replace(here, kept=carry.kept), keys.PREDICT)
    look = Pass(step=lambda carry, batch, here: carry, batch=PREDICT_ROWS, shuffle=False)
    ids = here.client.cpu()
    order = torch.argsort(part.sizes[ids], descending=True, stable=True)
    carry, here = (tree_rows(carry, send(order, here.key.device)), select(here, send(order, here.key.device)))
    plan = make_plan(look, part, ids[order], here.key, sim.traces)
    chunks: list[list[Tensor]] = [[] for _ in here.client]
    counts = plan.counts.tolist()
    for step, active in enumerate(plan.active()):
        (rows,), _ = plan.rows(step, step + 1, active)
        some = replace(select(here, slice(active)), key=sim.fold(here.key[:active], step))
        outputs = apply(sim, sim.method.predict, some, tree_rows(carry, slice(active)), sim.federation.x[rows])
        for i in range(active):
            chunks[i].append(outputs[i, : max(0, min(PREDICT_ROWS, counts[i] - step * PREDICT_ROWS))])
    inverse = torch.argsort(order).tolist()
    return [torch.cat(chunks[i]) for i in inverse]
