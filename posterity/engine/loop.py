"""One client after another, each function called on plain tensors: the oracle that `stacked` must equal.

On a CPU a step that has been taken often enough is recorded and replayed (`record.py`): the same operators on the same
numbers. It must be a step that could be mapped over clients, for only then are its operators always the same ones.
Operators of a recording leave Python alone, so as many clients as there are threads are then at work side by side, each
with its part of the threads: they need not wait for each other at every operator. Called or replayed, a step has the
same threads, and so the same bits.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
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
from posterity.engine.record import shape_of
from posterity.engine.reuse import Steps, record_steps
from posterity.engine.trials import with_threads
from posterity.engine.world import PER_CLIENT, PREDICT_ROWS, World, at, select, solid

name = "loop"
GROUP = 16  # clients whose steps are laid out at once
PATIENCE = 100  # calls before a recording, which costs 25 to 50 of them
BRISK = 0.001  # seconds of a step: briefer ones are mostly Python, which clients cannot have at the same time
Moment = tuple[Tensor, Tensor, Tensor, Tensor]  # rows (width,), mask (width,), key (2,), number of the step ()
Kind = tuple[bool, int, bool]  # of a stretch: whether it is the first, its width, whether there are samples


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
    here = at(world, here, stage)
    ids, pool = here.client.cpu(), (world.federation.x, world.federation.y)
    common = Common.of((here.shared, here.initial, here.round, *pool))
    for number, each in enumerate(passes):
        now = replace(here, key=world.fold(here.key, number))
        plan = make_plan(each, world.part(each.on), ids, now.key, world.recordings)
        carries = _pass(world, each, carries, now, list(_routes(world, plan, now.key)), common)
    return carries


def _pass(
    world: World, each: Pass, carries: list[Carry], here: Here, routes: list[Route], common: Common
) -> list[Carry]:
    """Every client through one pass: those whose steps have all been recorded side by side, others by themselves."""
    habit: Habit = world.recordings.once(each, ("habit", id(here.model)), Habit)

    def visit(i: int, replays: bool = False) -> Carry:
        known, begun = habit.knows(routes[i]), time.perf_counter()
        carry = _walk(world, each, carries[i], select(here, i), routes[i], common, habit, replays)
        if known and not replays:
            habit.pace = (time.perf_counter() - begun) / routes[i].length
        return carry

    def could_replay() -> bool:
        return _could_replay(world, each, carries[0], select(here, 0), routes[0], common)

    threads = torch.get_num_threads()
    side = 1 if here.key.is_cuda else max(1, min(threads, len(carries)))
    if side > 1 and not world.recordings.once(each, ("could replay", id(here.model)), could_replay):
        side = 1  # then clients are by themselves for ever, and have all threads
    ready = [i for i, route in enumerate(routes) if side > 1 and habit.pace > BRISK and habit.knows(route)]
    with with_threads(threads // side):
        done = _side_by_side(partial(visit, replays=True), ready, side)
        return [done[i] if i in done else visit(i) for i in range(len(carries))]


@dataclass
class Habit:
    """What is known about the steps of a pass."""

    kinds: set[Kind] = field(default_factory=set)  # that have been replayed
    pace: float = 0.0  # seconds of a step that one client replayed by itself

    def knows(self, route: Route) -> bool:
        return self.kinds.issuperset(route.kinds)


class Unrecorded(Exception):
    """A client that was to replay its steps has one that cannot be: it is visited again, without company."""


def _side_by_side(visit: Callable[[int], Carry], clients: list[int], side: int) -> dict[int, Carry]:
    """So many clients at once; without those that turn out to have a step that has not been recorded.

    Nothing is recorded meanwhile: tracing is not for several threads. A visit has no effect but its result.
    """
    each = torch.get_num_threads()

    def attempt(i: int) -> Carry | None:
        try:
            return visit(i)
        except Unrecorded:
            return None

    if len(clients) < 2:
        return {}
    with ThreadPoolExecutor(side, initializer=torch.set_num_threads, initargs=(each,)) as pool:
        found = zip(clients, pool.map(attempt, clients), strict=True)
        return {i: carry for i, carry in found if carry is not None}


@dataclass(frozen=True)
class Common:
    """What all clients share, and its shape: a part of what a recording is bound to."""

    tree: Tree
    shape: Hashable

    @staticmethod
    def of(tree: Tree) -> Common:
        return Common(solid(tree), shape_of(tree))


@dataclass(frozen=True)
class Route:
    """One client's way through a pass."""

    steps: Tensor  # ()
    whole: bool  # there are samples
    stretches: list[list[Moment]]

    @property
    def length(self) -> int:
        """Steps that are taken: at least one."""
        return sum(len(stretch) for stretch in self.stretches)

    @property
    def kinds(self) -> list[Kind]:
        """What a recording of each stretch depends on, as far as can be seen before the pass."""
        return [(turn == 0, len(some[0][0]), self.whole) for turn, some in enumerate(self.stretches)]


def _routes(world: World, plan: Plan, keys: Tensor) -> Iterator[Route]:
    """The routes of all clients of a plan, laid out for some of them at once: one by one costs as much as a step."""
    for first in range(0, len(plan.counts), GROUP):
        group = slice(first, first + GROUP)
        some = replace(plan, **{name: getattr(plan, name)[group] for name in ("start", "count", "counts", "steps")})
        length, steps = some.length(), some.steps.to(keys.device)
        numbers = torch.arange(length, device=keys.device)
        rows, real = (table.transpose(0, 1) for table in some.rows(0, length, len(steps)))  # (clients, steps, batch)
        own, widths = world.fold(keys[group, None], numbers), real.sum(-1).clamp(min=1).tolist()
        for i, taken in enumerate(some.steps.clamp(min=1).tolist()):
            moments = list(zip(rows[i, :taken], real[i, :taken], own[i, :taken], numbers[:taken], strict=True))
            yield Route(steps[i], bool(some.counts[i]), list(_stretches(moments, widths[i])))


def _walk(
    world: World, each: Pass, carry: Carry, here: Here, route: Route, common: Common, habit: Habit, replays: bool
) -> Carry:
    """One client through a pass; with `replays` only if all its steps have been recorded."""
    here = replace(here, steps=route.steps, kept=carry.kept)
    carry = each.open(carry, here)
    for stretch, kind in zip(route.stretches, route.kinds, strict=True):
        steps = _recording(world, each, carry, here, stretch, common, route.whole, replays)
        if steps is not None:
            habit.kinds.add(kind)
        after = _take(world, each, carry, here, stretch, common, route.whole, steps)
        carry = after if route.whole else replace(carry, kept=after.kept)  # no data: nothing moves
    return each.close(carry, here)


def _could_replay(world: World, each: Pass, carry: Carry, here: Here, route: Route, common: Common) -> bool:
    """Whether the steps of a pass can be recorded, as its first step says."""
    here = replace(here, steps=route.steps, kept=carry.kept)
    first = (common.tree, _mine(here), *route.stretches[0][0], each.open(carry, here))
    with torch.no_grad():
        return _steady(_step(world, each, here, route.whole), *first)


def _stretches(moments: list[Moment], widths: list[int]) -> Iterator[list[Moment]]:
    """The steps of a pass without padding, in stretches of one width; the first by itself: it may begin what is kept.

    The masks of `stacked` must make no difference, so there is nothing to mask here.
    """
    for (_, width), group in groupby(range(len(moments)), lambda step: (step == 0, widths[step])):
        yield [(rows[:width], real[:width], key, step) for rows, real, key, step in (moments[i] for i in group)]


def _recording(
    world: World, each: Pass, carry: Carry, here: Here, stretch: list[Moment], common: Common, whole: bool, made: bool
) -> Steps | None:
    """Steps like these, recorded if they have been taken often; with `made`, whoever has none is sent back."""
    mine = _mine(here)
    shape = (common.shape, len(stretch[0][0]), whole, shape_of((mine, carry)))
    entry = world.recordings.entry(each, "loop", id(here.model), shape)
    if made and not entry.value:
        raise Unrecorded
    on_host = not here.key.is_cuda
    if entry.value is None and on_host and world.recordings.pays(entry, here.key.device, len(stretch), PATIENCE):
        step, first = _step(world, each, here, whole), (common.tree, mine, *stretch[0], carry)
        with torch.no_grad():
            entry.value = record_steps(step, *first) if _steady(step, *first) else ()
    return entry.value or None


def _take(
    world: World, each: Pass, carry: Carry, here: Here, stretch: list[Moment], common: Common, whole: bool,
    steps: Steps | None,
) -> Carry:  # fmt: skip
    """The steps of a stretch, replayed or called."""
    mine = _mine(here)
    with torch.no_grad():
        if steps is not None:
            leaves = steps.take(tree_leaves((common.tree, solid(mine))), stretch, tree_leaves(solid(carry)))
            after: Carry = tree_rebuilt(steps.result, leaves)
            return after
        step = _step(world, each, here, whole)
        for moment in stretch:
            carry = step(common.tree, mine, *moment, carry)
    return carry


def _mine(here: Here) -> dict[str, Tree]:
    """What differs between clients and stays for a pass."""
    return {name: getattr(here, name) for name in PER_CLIENT if name != "key"}


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
