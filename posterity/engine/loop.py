"""One client after another, each function called on plain tensors: the oracle that `stacked` must equal."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from posterity.core.draw import fold
from posterity.core.method import Carry, Here, Message, Pass, Personal
from posterity.core.tree import Tree, tree_stack
from posterity.data.federation import Part
from posterity.engine import keys
from posterity.engine.plan import make_plan
from posterity.engine.world import PREDICT_ROWS, World, at, select

name = "loop"


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
    for i, carry in enumerate(carries):
        for number, each in enumerate(passes):
            carry = _walk(world, each, carry, select(here, i), number)
        done.append(carry)
    return done


def _walk(world: World, each: Pass, carry: Carry, here: Here, number: int) -> Carry:
    here = replace(here, key=fold(here.key, number), kept=carry.kept)
    ids = here.client[None].cpu()
    plan = make_plan(each, world.part(each.on), ids, here.key[None], world.recordings)
    here = replace(here, steps=plan.steps[0].to(here.key.device))
    carry = each.open(carry, here)
    step_keys = fold(here.key, torch.arange(plan.length(), device=here.key.device))
    for step in range(plan.length()):
        (rows,), (real,) = plan.rows(step, step + 1, 1)
        width = max(1, int(real.sum()))  # no padding here: the masks of `stacked` must make no difference
        now = replace(here, step=torch.full_like(here.step, step), key=step_keys[step])
        after = each.step(carry, world.batch(rows[0, :width], real[0, :width]), now)
        carry = after if plan.count[0] else replace(carry, kept=after.kept)  # no data: nothing moves
    return each.close(carry, here)


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
