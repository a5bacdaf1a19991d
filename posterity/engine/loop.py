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

from posterity.core.protocol import Batch, Carry, Here, Message, Pass, Personal
from posterity.core.random import fold
from posterity.core.tree import Tree, tree_leaves, tree_map, tree_rebuilt, tree_stack
from posterity.data.federation import Part
from posterity.engine import keys
from posterity.engine.autotune.trials import with_threads
from posterity.engine.batches import BatchPlan, make_plan
from posterity.engine.simulation import PER_CLIENT, PREDICT_ROWS, Simulation, at, select, solid
from posterity.engine.tracing.in_place import Steps, record_steps
from posterity.engine.tracing.trace import shape_of

name = "loop"
GROUP = 16  # clients whose steps are laid out at once
PATIENCE = 100  # calls before a recording, which costs 25 to 50 of them
BRISK = 0.001  # seconds of a step: briefer ones are mostly Python, which clients cannot have at the same time
Moment = tuple[Tensor, Tensor, Tensor, Tensor]  # rows (width,), mask (width,), key (2,), number of the step ()
Kind = tuple[bool, int, bool]  # of a stretch: whether it is the first, its width, whether there are samples


def offer(sim: Simulation, state: Tree, clients: Tensor | None, count: int) -> tuple[Tree, Tree]:
    """The broadcast and a stack of what each client gets by itself; `clients` None = `count` newcomers."""
    pairs = [sim.method.offer(state, None if clients is None else clients[i]) for i in range(count)]
    return pairs[0][0], tree_stack([own for _, own in pairs])


def join(sim: Simulation, here: Here) -> Personal:
    here = at(sim, here, keys.JOIN)
    return tree_stack([sim.method.join(select(here, i)) for i in range(len(here.client))])


def start(sim: Simulation, here: Here) -> list[Carry]:
    here = at(sim, here, keys.START)
    return [Carry(sim.method.start(select(here, i)), {}, ()) for i in range(len(here.client))]


def work(sim: Simulation, passes: tuple[Pass, ...], carries: list[Carry], here: Here, stage: int) -> list[Carry]:
    """Every client through all passes."""
    here = at(sim, here, stage)
    ids, pool = here.client.cpu(), (sim.federation.x, sim.federation.y)
    common = Common.of((here.shared, here.initial, here.round, *pool))
    for number, each in enumerate(passes):
        now = replace(here, key=sim.fold(here.key, number))
        plan = make_plan(each, sim.part(each.on), ids, now.key, sim.traces)
        carries = _pass(sim, each, carries, now, list(_client_steps(sim, plan, now.key)), common)
    return carries


def _pass(
    sim: Simulation, each: Pass, carries: list[Carry], here: Here, client_steps: list[ClientSteps], common: Common
) -> list[Carry]:
    """Every client through one pass: those whose steps have all been recorded side by side, others by themselves."""
    seen: SeenSteps = sim.traces.once(each, ("habit", id(here.model)), SeenSteps)

    def visit(i: int, replays: bool = False) -> Carry:
        known, begun = seen.knows(client_steps[i]), time.perf_counter()
        carry = _walk(sim, each, carries[i], select(here, i), client_steps[i], common, seen, replays)
        if known and not replays:
            seen.pace = (time.perf_counter() - begun) / client_steps[i].length
        return carry

    def could_replay() -> bool:
        return _could_replay(sim, each, carries[0], select(here, 0), client_steps[0], common)

    threads = torch.get_num_threads()
    side = 1 if here.key.is_cuda else max(1, min(threads, len(carries)))
    if side > 1 and not sim.traces.once(each, ("could replay", id(here.model)), could_replay):
        side = 1  # then clients are by themselves for ever, and have all threads
    ready = [i for i, steps_of in enumerate(client_steps) if side > 1 and seen.pace > BRISK and seen.knows(steps_of)]
    with with_threads(threads // side):
        done = _side_by_side(partial(visit, replays=True), ready, side)
        return [done[i] if i in done else visit(i) for i in range(len(carries))]


@dataclass
class SeenSteps:
    """What is known about the steps of a pass."""

    kinds: set[Kind] = field(default_factory=set)  # that have been replayed
    pace: float = 0.0  # seconds of a step that one client replayed by itself

    def knows(self, steps_of: ClientSteps) -> bool:
        return self.kinds.issuperset(steps_of.kinds)


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
class ClientSteps:
    """One client's way through a pass."""

    steps: Tensor  # ()
    whole: bool  # there are samples
    segments: list[list[Moment]]

    @property
    def length(self) -> int:
        """Steps that are taken: at least one."""
        return sum(len(segment) for segment in self.segments)

    @property
    def kinds(self) -> list[Kind]:
        """What a recording of each stretch depends on, as far as can be seen before the pass."""
        return [(turn == 0, len(some[0][0]), self.whole) for turn, some in enumerate(self.segments)]


def _client_steps(sim: Simulation, plan: BatchPlan, keys: Tensor) -> Iterator[ClientSteps]:
    """The routes of all clients of a plan, laid out for some of them at once: one by one costs as much as a step."""
    for first in range(0, len(plan.counts), GROUP):
        group = slice(first, first + GROUP)
        some = replace(plan, **{name: getattr(plan, name)[group] for name in ("start", "count", "counts", "steps")})
        length, steps = some.length(), some.steps.to(keys.device)
        numbers = torch.arange(length, device=keys.device)
        rows, real = (table.transpose(0, 1) for table in some.rows(0, length, len(steps)))  # (clients, steps, batch)
        own, widths = sim.fold(keys[group, None], numbers), real.sum(-1).clamp(min=1).tolist()
        for i, taken in enumerate(some.steps.clamp(min=1).tolist()):
            moments = list(zip(rows[i, :taken], real[i, :taken], own[i, :taken], numbers[:taken], strict=True))
            yield ClientSteps(steps[i], bool(some.counts[i]), list(_segments(moments, widths[i])))


def _walk(
    sim: Simulation,
    each: Pass,
    carry: Carry,
    here: Here,
    steps_of: ClientSteps,
    common: Common,
    seen: SeenSteps,
    replays: bool,
) -> Carry:
    """One client through a pass; with `replays` only if all its steps have been recorded."""
    here = replace(here, steps=steps_of.steps, kept=carry.kept)
    carry = each.open(carry, here)
    for segment, kind in zip(steps_of.segments, steps_of.kinds, strict=True):
        steps = _recording(sim, each, carry, here, segment, common, steps_of.whole, replays)
        if steps is not None:
            seen.kinds.add(kind)
        after = _take(sim, each, carry, here, segment, common, steps_of.whole, steps)
        carry = after if steps_of.whole else replace(carry, kept=after.kept)  # no data: nothing moves
    return each.close(carry, here)


def _could_replay(sim: Simulation, each: Pass, carry: Carry, here: Here, steps_of: ClientSteps, common: Common) -> bool:
    """Whether the steps of a pass can be recorded, as its first step says."""
    here = replace(here, steps=steps_of.steps, kept=carry.kept)
    first = (common.tree, _mine(here), *steps_of.segments[0][0], each.open(carry, here))
    with torch.no_grad():
        return _steady(_step(sim, each, here, steps_of.whole), *first)


def _segments(moments: list[Moment], widths: list[int]) -> Iterator[list[Moment]]:
    """The steps of a pass without padding, in stretches of one width; the first by itself: it may begin what is kept.

    The masks of `stacked` must make no difference, so there is nothing to mask here.
    """
    for (_, width), group in groupby(range(len(moments)), lambda step: (step == 0, widths[step])):
        yield [(rows[:width], real[:width], key, step) for rows, real, key, step in (moments[i] for i in group)]


def _recording(
    sim: Simulation,
    each: Pass,
    carry: Carry,
    here: Here,
    segment: list[Moment],
    common: Common,
    whole: bool,
    made: bool,
) -> Steps | None:
    """Steps like these, recorded if they have been taken often; with `made`, whoever has none is sent back."""
    mine = _mine(here)
    shape = (common.shape, len(segment[0][0]), whole, shape_of((mine, carry)))
    entry = sim.traces.entry(each, "loop", id(here.model), shape)
    if made and not entry.value:
        raise Unrecorded
    on_host = not here.key.is_cuda
    if entry.value is None and on_host and sim.traces.pays(entry, here.key.device, len(segment), PATIENCE):
        step, first = _step(sim, each, here, whole), (common.tree, mine, *segment[0], carry)
        with torch.no_grad():
            entry.value = record_steps(step, *first) if _steady(step, *first) else ()
    return entry.value or None


def _take(
    sim: Simulation, each: Pass, carry: Carry, here: Here, segment: list[Moment], common: Common, whole: bool,
    steps: Steps | None,
) -> Carry:  # fmt: skip
    """The steps of a stretch, replayed or called."""
    mine = _mine(here)
    with torch.no_grad():
        if steps is not None:
            leaves = steps.take(tree_leaves((common.tree, solid(mine))), segment, tree_leaves(solid(carry)))
            after: Carry = tree_rebuilt(steps.result, leaves)
            return after
        step = _step(sim, each, here, whole)
        for moment in segment:
            carry = step(common.tree, mine, *moment, carry)
    return carry


def _mine(here: Here) -> dict[str, Tree]:
    """What differs between clients and stays for a pass."""
    return {name: getattr(here, name) for name in PER_CLIENT if name != "key"}


def _step(sim: Simulation, each: Pass, here: Here, whole: bool) -> Callable[..., Carry]:
    """One step of one client as a function of everything that changes from step to step, client or round."""

    def step(common: Tree, mine: Tree, rows: Tensor, mask: Tensor, key: Tensor, step: Tensor, carry: Carry) -> Carry:
        shared, initial, round, x, y = common
        now = replace(here, shared=shared, initial=initial, round=round, step=step, key=key, **mine)
        return each.step(carry, Batch(x[rows], y[rows], mask.to(sim.dtype), padded=not whole), now)

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


def message(sim: Simulation, carries: list[Carry], here: Here) -> tuple[Message, Personal]:
    here = at(sim, here, keys.MESSAGE)
    pairs = [sim.method.message(carry, replace(select(here, i), kept=carry.kept)) for i, carry in enumerate(carries)]
    return tree_stack([m for m, _ in pairs]), tree_stack([p for _, p in pairs])


def losses(carries: list[Carry]) -> Tensor | None:
    """Loss times samples, and samples, that each client saw while training (m, 2)."""
    return torch.stack([c.kept["loss"] for c in carries]) if "loss" in carries[0].kept else None


def predict(sim: Simulation, carries: list[Carry], here: Here, part: Part) -> list[Tensor]:
    """Outputs for each client's rows of `part`."""
    here, outputs = at(sim, here, keys.PREDICT), []
    for i, (carry, client) in enumerate(zip(carries, here.client.tolist(), strict=True)):
        me = replace(select(here, i), kept=carry.kept)
        chunks = [
            sim.method.predict(carry, sim.federation.x[rows], replace(me, key=fold(me.key, c)))
            for c, rows in enumerate(torch.split(part.client(client), PREDICT_ROWS))
        ]
        outputs.append(torch.cat(chunks))
    return outputs
