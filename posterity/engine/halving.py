"""Blocks that turn out too large: whoever runs out of memory goes on with half as many clients at once.

How much a block takes is estimated (`blocks.py`), and others may use the same device. A block has no effect before it
is done, so it is simply taken again in halves, and later blocks of the same work are no larger; splitting changes
nothing but the order in which sums are rounded. The round's line says so (`notes`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from posterity.core.protocol import Pass
from posterity.engine.blocks import blocks
from posterity.engine.simulation import Simulation, Work

SIGNS = ("can't allocate memory", "not enough memory")  # what PyTorch says where the host has no more


def take_blocks(
    sim: Simulation, clients: Tensor, passes: Iterable[Pass], work: Work, take: Callable[[Tensor], None]
) -> None:
    """`take` all clients, a block at a time. It may change nothing before its last step that needs memory."""
    for block in blocks(sim, clients, passes, work):
        _take_pieces(sim, block, work, take)


def _take_pieces(sim: Simulation, block: Tensor, work: Work, take: Callable[[Tensor], None]) -> None:
    """A block, in pieces no larger than what has been found to fit since it was planned."""
    while len(block):
        most = sim.limit.of(work, len(block))
        _take(sim, block[:most], work, take)
        block = block[most:]


def _take(sim: Simulation, block: Tensor, work: Work, take: Callable[[Tensor], None]) -> None:
    try:
        take(block)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        if len(block) == 1:
            raise too_large(sim.root.device, error) from None
    else:
        return
    half = (len(block) + 1) // 2  # here, where the frames that hold tensors of the failed block are gone
    sim.limit.lower(work, half, len(block))
    sim.traces.forget()
    free(sim.root.device)
    _take_pieces(sim, block, work, take)


def out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(sign in str(error) for sign in SIGNS)


def too_large(device: torch.device, error: RuntimeError) -> ValueError:
    """What to say where nothing is left to halve."""
    return ValueError(
        f"one client alone does not fit into the memory of {device}: use a smaller --batch-size or network, end other "
        f"programs there, or use another --device ({str(error).splitlines()[0]})"
    )


def free(device: torch.device) -> None:
    """Give back what is only kept to be fast."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def give_back(sim: Simulation) -> None:
    """Hand the device what PyTorch only keeps for later, if it is beyond `--memory`: another program may need it."""
    if torch.cuda.memory_reserved() > sim.memory:
        torch.cuda.empty_cache()


__all__ = ["free", "give_back", "out_of_memory", "take_blocks", "too_large"]
