"""The batches of every step of a pass, for one client or a block of them: in the same order alone or in company.

Counts are known to the host, so that planning never waits for the device; only the order is drawn there. Every engine
makes its batches by `build_batch`, or by what a simulation has in its place (the law about padding).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posterity.core import _random_numpy as random_numpy
from posterity.core import random
from posterity.core.protocol import Batch, Pass
from posterity.data.federation import Part
from posterity.engine.cache import Same, TraceCache, TraceEntry, play, send
from posterity.engine.keys import ORDER

ENTRIES = 2**22  # of the rows that are laid out at once
SMALL = 100  # rows: kernels of fewer cost what it takes to launch them
SIMILAR = 0.7  # of the largest client of a class of sizes
BOUND = frozenset({"cuda"})  # devices where recordings are bound to shapes, and a new shape costs more than padding
BuildBatch = Callable[..., Batch]  # as `build_batch`


def build_batch(x: Tensor, y: Tensor, rows: Tensor, real: Tensor, dtype: torch.dtype, padded: bool = True) -> Batch:
    """Samples `rows` (..., B) of a pool; those that are not `real` are padding, and there are none unless `padded`."""
    return Batch(x[rows], y[rows], real.to(dtype), padded)


@dataclass(frozen=True)
class BatchPlan:
    """Client i walks through `playlist[start[i]:]`: its rows in the order of epoch 0, then of epoch 1, and so on.

    `steps` counts real steps. Every client has a first step, so that what a pass keeps has one shape; a client
    without data takes it with a mask of zeros.
    """

    playlist: Tensor  # rows of the pool
    start: Tensor  # (m,)
    count: Tensor  # (m,) samples of each client in this part
    counts: Tensor  # (m,) the same, on the host
    steps: Tensor  # (m,) on the host
    batch: int  # width of a batch
    longest: int  # steps that any client of the federation could have
    most: int  # clients of the federation that could be in one such batch

    def length(self) -> int:
        return max(1, int(self.steps.max()))

    def active(self) -> list[int]:
        """How many clients still work at each step, when they are sorted by falling number of steps."""
        steps = self.steps.flip(0).contiguous()  # rising
        busy = len(steps) - torch.searchsorted(steps, torch.arange(self.length()), right=True)
        return [len(steps), *busy[1:].tolist()]

    def idle(self) -> Tensor | None:
        """Which clients have no data (m,); None if all have some."""
        return self.count == 0 if bool((self.counts == 0).any()) else None

    def rows(self, first: int, last: int, clients: int) -> tuple[Tensor, Tensor]:
        """Rows of the pool (steps, clients, batch) of the first clients at steps first … last-1, and which are real."""
        count = self.count[:clients]
        per_epoch = torch.div(count + self.batch - 1, self.batch, rounding_mode="floor").clamp(min=1)
        step = torch.arange(first, last, device=count.device)[:, None]  # (steps, 1)
        epoch, place = step // per_epoch, (step % per_epoch) * self.batch  # (steps, clients)
        width = torch.arange(self.batch, device=count.device)
        real = (place[..., None] + width) < count[:, None]
        index = (self.start[:clients] + epoch * count + place)[..., None] + torch.where(real, width, 0)
        return self.playlist[index.clamp(max=len(self.playlist) - 1)], real  # padding repeats a real row

    def unpadded(self) -> list[tuple[Tensor, Tensor]]:
        """Rows, and which are real, of every step of a plan for one client; all are, unless it has no data."""
        rows, real = (table[:, 0] for table in self.rows(0, self.length(), 1))  # (steps, batch)
        widths = real.sum(-1).clamp(min=1).tolist()
        return [(rows[step, :width], real[step, :width]) for step, width in enumerate(widths)]


@dataclass(frozen=True)
class Segment:
    """Steps first … last-1, all taken with a recording for `size` clients."""

    first: int
    last: int
    size: int


def bucket(active: int, most: int, part: int = 5) -> int:
    """The recorded size that carries `active` clients: one by one, then in steps of a `part`th; at most `most`."""
    size = 1
    while size < active:
        size += max(1, size // part)
    return min(size, most)


def segments(active: list[int], batch: int, part: int = 5) -> Iterator[Segment]:
    """The steps of a pass in stretches of one size; the first step by itself, for it may begin what is kept."""
    sizes = [bucket(a, active[0], part) for a in active]
    first = 0
    for step in range(1, len(active) + 1):
        most = max(1, ENTRIES // (sizes[first] * batch))
        if step == 1 or step == len(active) or sizes[step] != sizes[first] or step - first >= most:
            yield Segment(first, step, sizes[first])
            first = step


def size_classes(sizes: Iterable[int]) -> list[int]:
    """The largest of each class of similar sizes, falling; small ones are one class."""
    largest = list[int]()
    for size in sorted(sizes, reverse=True):
        if not largest or (largest[-1] > SMALL and size < SIMILAR * largest[-1]):
            largest.append(size)
    return largest


def widths(part: Part, device: torch.device, traces: TraceCache | None) -> dict[int, int] | None:
    """What batches of all data of a client are padded to, falling, and how many clients are padded to each.

    A random cohort has another largest client in every round. Where steps are bound to shapes it is padded to the
    largest of its class in the whole federation instead, so that it meets what was recorded for another. None where
    they are not: a batch is padded to the largest of those who run together.
    """
    if traces is None or device.type not in BOUND:
        return None
    known: dict[int, int] = traces.once(part, "widths", lambda: count_widths(part.sizes.tolist()))
    return known


def count_widths(sizes: list[int]) -> dict[int, int]:
    """The width of each class of sizes, falling, and how many are padded to it."""
    classes = size_classes(sizes)
    return dict(Counter(width_for(size, classes) for size in sorted(sizes, reverse=True)))


def width_for(rows: int, known: Iterable[int] | None) -> int:
    return max(1, rows if known is None else min(width for width in known if width >= rows))


Layout = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]  # see `_lay_out`


def plan_batches(work: Pass, part: Part, clients: Tensor, keys: Tensor, traces: TraceCache | None = None) -> BatchPlan:
    """Plan a pass for `clients` (m,), given on the host, whose pass keys are `keys` (m, 2).

    With `traces`, the layout of the last cohort is kept, and on a GPU drawing the order is recorded.
    """
    count = part.sizes[clients]
    widest, known = int(count.max()), widths(part, keys.device, traces) if work.batch is None else None
    batch = width_for(widest, known)  # a wider one would only be padding
    batch = batch if work.batch is None else min(work.batch, batch)
    per_epoch = torch.div(count + batch - 1, batch, rounding_mode="floor")
    steps = per_epoch * work.epochs
    if work.max_steps is not None:
        steps = steps.clamp(max=work.max_steps)
    epochs = torch.div(steps + per_epoch - 1, per_epoch.clamp(min=1), rounding_mode="floor").clamp(min=0)
    length = count * epochs  # entries of each client's playlist
    start = length.cumsum(0) - length
    if int(length.sum()):
        playlist = _playlist(work, part, clients, count, epochs, keys, traces)
    else:
        playlist = part.rows.new_zeros(1)
    longest = -(-int(part.sizes.max()) // batch) * work.epochs
    longest = longest if work.max_steps is None else min(longest, work.max_steps)
    on_device = send(torch.stack((start, count)), keys.device)
    most = len(part.sizes) if known is None else known[batch]
    return BatchPlan(playlist, on_device[0], on_device[1], count, steps, batch, longest, most)


def _playlist(
    work: Pass, part: Part, clients: Tensor, count: Tensor, epochs: Tensor, keys: Tensor, traces: TraceCache | None
) -> Tensor:
    asked, device = torch.stack((clients, epochs)), keys.device
    last = TraceEntry() if traces is None else traces.entry(work, "layout", Same(part))
    if last.value is None or not torch.equal(last.value[0], asked):
        last.value = (asked, _lay_out(count, epochs, part.host[clients], device))
    layout: Layout = last.value[1]
    if not work.shuffle:
        *_, slot, base = layout
        return part.rows[base + slot]
    if device.type == "cpu":
        return _shuffled(keys, part.rows, *layout, random_numpy)
    if traces is None:
        return _shuffled(keys, part.rows, *layout)
    playlist: Tensor = play(traces, plan_batches, "order", _shuffled, keys, part.rows, *layout)
    return playlist


def _lay_out(count: Tensor, epochs: Tensor, offset: Tensor, device: torch.device) -> Layout:
    """All entries of all playlists, client by client and epoch by epoch.

    Returns client and epoch of each (client, epoch), (groups,); and of each entry its group, its place within the epoch
    and where its client's rows begin in the part, (N,).
    """
    group = torch.repeat_interleave(torch.arange(len(epochs)), epochs)
    turn = torch.arange(len(group)) - (epochs.cumsum(0) - epochs)[group]
    size = count[group]
    mine = torch.repeat_interleave(torch.arange(len(group)), size)
    slot = torch.arange(len(mine)) - (size.cumsum(0) - size)[mine]
    groups, entries = send(torch.stack((group, turn)), device), send(torch.stack((mine, slot)), device)
    return groups[0], groups[1], entries[0], entries[1], send(offset, device)[groups[0][entries[0]]]


def _shuffled(
    keys: Tensor, rows: Tensor, group: Tensor, turn: Tensor, mine: Tensor, slot: Tensor, base: Tensor, by: Any = random
) -> Tensor:
    """The rows of each (client, epoch) in an order that depends on its key, the epoch and nothing else."""
    group_keys = by.fold(by.fold(keys, ORDER)[group], turn)  # (groups, 2)
    lot, _ = by.threefry(group_keys[mine], slot, torch.zeros_like(slot))
    return rows[base + slot[torch.argsort((mine << 32) | lot, stable=True)]]
