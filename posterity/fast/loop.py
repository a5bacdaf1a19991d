"""The loop with recorded steps: one client after another, or a few side by side, each step replayed.

On a CPU a step that has been taken often enough is recorded and replayed: the same operators on the same numbers. It
must be a step that could be mapped over clients, for only then are its operators always the same ones. Operators of a
recording leave Python alone, so as many clients as there are threads are then at work side by side, each with its part
of the threads: they need not wait for each other at every operator. Called or replayed, a step has the same threads,
and so the same bits. Whatever is not recorded is called as `engine/engines.py` calls it.
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

from posterity.core.protocol import Carry, Here, Pass
from posterity.core.tree import Tree, tree_leaves, tree_map, tree_rebuilt
from posterity.engine.batches import BatchPlan, plan_batches
from posterity.engine.cache import Same, shape_of
from posterity.engine.engines import Loop
from posterity.engine.process_settings import with_threads
from posterity.engine.simulation import PER_CLIENT, Simulation, at, select, solid
from posterity.fast._trace import Steps, record_steps

GROUP = 16  # clients whose steps are laid out at once
PATIENCE = 100  # calls before a recording, which costs 25 to 50 of them
BRIEF = 0.001  # seconds of a step: briefer ones are mostly Python, which clients cannot have at the same time
StepInput = tuple[Tensor, Tensor, Tensor, Tensor]  # rows (width,), real (width,), key (2,), number of the step ()
Kind = tuple[bool, int, bool]  # of a segment: whether it is the first, its width, whether there are samples


def work(sim: Simulation, passes: tuple[Pass, ...], carries: list[Carry], here: Here, stage: int) -> list[Carry]:
    """Every client through all passes."""
    here = at(sim, here, stage)
    ids, pool = here.client.cpu(), (sim.federation.x, sim.federation.y)
    common = Common.of((here.shared, here.initial, here.round, *pool))
    for number, each in enumerate(passes):
        now = replace(here, key=sim.fold(here.key, number))
        plan = plan_batches(each, sim.part(each.on), ids, now.key, sim.traces)
        carries = _take_pass(sim, each, carries, now, list(_client_steps(sim, plan, now.key)), common)
    return carries


@dataclass
class Seen:
    """What is known about the steps of a pass."""

    kinds: set[Kind] = field(default_factory=set)  # that have been replayed
    pace: float = 0.0  # seconds of a step that one client replayed by itself

    def covers(self, steps: ClientSteps) -> bool:
        return self.kinds.issuperset(steps.kinds)


def _take_pass(
    sim: Simulation, each: Pass, carries: list[Carry], here: Here, steps: list[ClientSteps], common: Common
) -> list[Carry]:
    """Every client through one pass: those whose steps have all been recorded side by side, others by themselves."""
    seen: Seen = sim.traces.once(each, ("seen", Same(here.model)), Seen)

    def take(i: int, replays: bool = False) -> Carry | None:
        known, begun = seen.covers(steps[i]), time.perf_counter()
        carry = _take(sim, each, carries[i], select(here, i), steps[i], common, seen, replays)
        if known and not replays:
            seen.pace = (time.perf_counter() - begun) / steps[i].length
        return carry

    def alone(i: int) -> Carry:
        carry = take(i)
        assert carry is not None  # it may call what is not recorded
        return carry

    def could_replay() -> bool:
        return _could_replay(sim, each, carries[0], select(here, 0), steps[0], common)

    threads = torch.get_num_threads()
    side = 1 if here.key.is_cuda else max(1, min(threads, len(carries)))
    if side > 1 and not sim.traces.once(each, ("could replay", Same(here.model)), could_replay):
        side = 1  # then clients are by themselves for ever, and have all threads
    ready = [i for i, mine in enumerate(steps) if side > 1 and seen.pace > BRIEF and seen.covers(mine)]
    with with_threads(threads // side):
        done = take_side_by_side(partial(take, replays=True), ready, side)
        return [done[i] if i in done else alone(i) for i in range(len(carries))]


def take_side_by_side(take: Callable[[int], Carry | None], clients: list[int], side: int) -> dict[int, Carry]:
    """So many clients at once; without those that turn out to have a step that has not been recorded (None).

    Nothing is recorded meanwhile: tracing is not for several threads. A visit has no effect but its result.
    """
    if len(clients) < 2:
        return {}
    threads = torch.get_num_threads()
    with ThreadPoolExecutor(side, initializer=torch.set_num_threads, initargs=(threads,)) as pool:
        found = zip(clients, pool.map(take, clients), strict=True)
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
    """One client's steps in a pass, in segments of one width; the first step by itself: it may begin what is kept."""

    steps: Tensor  # ()
    has_data: bool
    segments: list[list[StepInput]]

    @property
    def length(self) -> int:
        """Steps that are taken: at least one."""
        return sum(len(segment) for segment in self.segments)

    @property
    def kinds(self) -> list[Kind]:
        """What a recording of each segment depends on, as far as can be seen before the pass."""
        return [(turn == 0, len(some[0][0]), self.has_data) for turn, some in enumerate(self.segments)]


def _client_steps(sim: Simulation, plan: BatchPlan, keys: Tensor) -> Iterator[ClientSteps]:
    """The steps of all clients of a plan, laid out for some of them at once: one by one costs as much as a step."""
    for first in range(0, len(plan.counts), GROUP):
        group = slice(first, first + GROUP)
        some = replace(plan, **{name: getattr(plan, name)[group] for name in ("start", "count", "counts", "steps")})
        length, steps = some.length(), some.steps.to(keys.device)
        numbers = torch.arange(length, device=keys.device)
        rows, real = (table.transpose(0, 1) for table in some.rows(0, length, len(steps)))  # (clients, steps, batch)
        own, widths = sim.fold(keys[group, None], numbers), real.sum(-1).clamp(min=1).tolist()
        for i, taken in enumerate(some.steps.clamp(min=1).tolist()):
            inputs = list(zip(rows[i, :taken], real[i, :taken], own[i, :taken], numbers[:taken], strict=True))
            yield ClientSteps(steps[i], bool(some.counts[i]), list(_segments(inputs, widths[i])))


def _segments(inputs: list[StepInput], widths: list[int]) -> Iterator[list[StepInput]]:
    """The steps without padding: masks must make no difference, so there is nothing to mask here."""
    for (_, width), group in groupby(range(len(inputs)), lambda step: (step == 0, widths[step])):
        yield [(rows[:width], real[:width], key, step) for rows, real, key, step in (inputs[i] for i in group)]


def _take(
    sim: Simulation, each: Pass, carry: Carry, here: Here, steps: ClientSteps, common: Common, seen: Seen,
    replays: bool,
) -> Carry | None:  # fmt: skip
    """One client through a pass; with `replays`, None if one of its steps has not been recorded."""
    here = replace(here, steps=steps.steps, kept=carry.kept)
    carry = each.open(carry, here)
    for segment, kind in zip(steps.segments, steps.kinds, strict=True):
        recorded = _recording(sim, each, carry, here, segment, common, steps.has_data, replays)
        if recorded is None and replays:
            return None
        if recorded is not None:
            seen.kinds.add(kind)
        after = _take_segment(sim, each, carry, here, segment, common, steps.has_data, recorded)
        carry = after if steps.has_data else replace(carry, kept=after.kept)  # no data: nothing moves
    return each.close(carry, here)


def _could_replay(sim: Simulation, each: Pass, carry: Carry, here: Here, steps: ClientSteps, common: Common) -> bool:
    """Whether the steps of a pass can be recorded, as its first step says."""
    here = replace(here, steps=steps.steps, kept=carry.kept)
    first = (common.tree, _mine(here), *steps.segments[0][0], each.open(carry, here))
    with torch.no_grad():
        return _can_map(_step(sim, each, here, steps.has_data), *first)


def _recording(
    sim: Simulation, each: Pass, carry: Carry, here: Here, segment: list[StepInput], common: Common, has_data: bool,
    made: bool,
) -> Steps | None:  # fmt: skip
    """Steps like these, recorded if they have been taken often; with `made`, only if there is one already."""
    mine = _mine(here)
    shape = (common.shape, len(segment[0][0]), has_data, shape_of((mine, carry)))
    entry = sim.traces.entry(each, "loop", Same(here.model), shape)
    on_host = not here.key.is_cuda and not made
    if entry.value is None and on_host and sim.traces.pays(entry, here.key.device, len(segment), PATIENCE):
        step, first = _step(sim, each, here, has_data), (common.tree, mine, *segment[0], carry)
        with torch.no_grad():
            entry.value = record_steps(step, *first) if _can_map(step, *first) else ()
    return entry.value or None


def _take_segment(
    sim: Simulation, each: Pass, carry: Carry, here: Here, segment: list[StepInput], common: Common, has_data: bool,
    recorded: Steps | None,
) -> Carry:  # fmt: skip
    """The steps of a segment, replayed or called."""
    mine = _mine(here)
    with torch.no_grad():
        if recorded is not None:
            leaves = recorded.take(tree_leaves((common.tree, solid(mine))), segment, tree_leaves(solid(carry)))
            after: Carry = tree_rebuilt(recorded.result, leaves)
            return after
        step = _step(sim, each, here, has_data)
        for inputs in segment:
            carry = step(common.tree, mine, *inputs, carry)
    return carry


def _mine(here: Here) -> dict[str, Tree]:
    """What differs between clients and stays for a pass."""
    return {name: getattr(here, name) for name in PER_CLIENT if name != "key"}


def _step(sim: Simulation, each: Pass, here: Here, has_data: bool) -> Callable[..., Carry]:
    """One step of one client as a function of everything that changes from step to step, client or round."""

    def step(common: Tree, mine: Tree, rows: Tensor, real: Tensor, key: Tensor, step: Tensor, carry: Carry) -> Carry:
        shared, initial, round, x, y = common
        now = replace(here, shared=shared, initial=initial, round=round, step=step, key=key, **mine)
        return each.step(carry, sim.build(x, y, rows, real, sim.dtype, padded=not has_data), now)

    return step


def _can_map(step: Callable[..., Carry], *first: Tree) -> bool:
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


engine = Loop("loop", work)
