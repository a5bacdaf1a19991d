"""The samples of every step of a pass, for a block of clients: in the same order alone or in company."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.core.draw import fold, threefry
from posterity.core.method import Pass
from posterity.data.federation import Part
from posterity.engine.keys import ORDER


@dataclass(frozen=True)
class Plan:
    """Client i walks through `playlist[start[i]:]`: its rows in the order of epoch 0, then of epoch 1, and so on.

    `steps` counts real steps. Every client has a first step, so that what a pass keeps has one shape; a client
    without data takes it with a mask of zeros.
    """

    playlist: Tensor  # rows of the pool
    start: Tensor  # (m,)
    count: Tensor  # (m,) samples of each client in this part
    steps: Tensor  # (m,)
    batch: int  # width of a batch

    def length(self) -> int:
        """Steps until the last client has finished."""
        return max(1, int(self.steps.max()))

    def active(self) -> list[int]:
        """How many clients still work at each step, when they are sorted by falling number of steps."""
        steps = self.steps.cpu()  # one wait for the device, not one per step
        busy = (steps[None, :] > torch.arange(self.length())[:, None]).sum(1).tolist()
        return [len(steps), *busy[1:]]

    def rows(self, step: int, clients: int) -> tuple[Tensor, Tensor]:
        """Rows of the pool (clients, batch) of the first clients at a step, and which are real."""
        count = self.count[:clients]
        per_epoch = torch.div(count + self.batch - 1, self.batch, rounding_mode="floor").clamp(min=1)
        epoch, place = step // per_epoch, (step % per_epoch) * self.batch
        width = torch.arange(self.batch, device=count.device)
        real = (place[:, None] + width) < count[:, None]
        index = (self.start[:clients] + epoch * count + place)[:, None] + torch.where(real, width, 0)
        return self.playlist[index.clamp(max=len(self.playlist) - 1)], real  # padding repeats a real row


def make_plan(work: Pass, part: Part, clients: Tensor, keys: Tensor) -> Plan:
    """Plan a pass for `clients` (m,) whose pass keys are `keys` (m, 2)."""
    count = part.counts[clients]
    widest = max(1, int(count.max()))  # a wider batch would only be padding
    batch = widest if work.batch is None else min(work.batch, widest)
    per_epoch = torch.div(count + batch - 1, batch, rounding_mode="floor")
    steps = per_epoch * work.epochs
    if work.most is not None:
        steps = steps.clamp(max=work.most)
    epochs = torch.div(steps + per_epoch - 1, per_epoch.clamp(min=1), rounding_mode="floor").clamp(min=0)
    length = count * epochs  # entries of each client's playlist
    start = length.cumsum(0) - length
    owner = torch.repeat_interleave(torch.arange(len(clients), device=count.device), length)
    place = torch.arange(int(length.sum()), device=count.device) - start[owner]
    epoch, slot = torch.div(place, count[owner], rounding_mode="floor"), place % count[owner].clamp(min=1)
    if work.shuffle and len(owner):
        slot = _shuffled(keys, owner, epoch, slot, epochs)
    playlist = part.rows[part.offsets[clients[owner]] + slot] if len(owner) else part.rows.new_zeros(1)
    return Plan(playlist, start, count, steps, batch)


def _shuffled(keys: Tensor, owner: Tensor, epoch: Tensor, slot: Tensor, epochs: Tensor) -> Tensor:
    """The slots of each (client, epoch) in an order that depends on its key, the epoch and nothing else."""
    first = epochs.cumsum(0) - epochs
    group = torch.repeat_interleave(torch.arange(len(epochs), device=owner.device), epochs)  # client of each group
    turn = torch.arange(len(group), device=owner.device) - first[group]
    group_keys = fold(fold(keys, ORDER)[group], turn)  # (groups, 2)
    mine = first[owner] + epoch
    lot, _ = threefry(group_keys[mine], slot, torch.zeros_like(slot))
    return slot[torch.argsort((mine << 32) | lot, stable=True)]
