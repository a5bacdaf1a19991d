"""A mask that is known to be 1 throughout. It says so itself, so that a layer may leave it aside.

Only who made the mask can know, without looking at its numbers, that nothing is padding: the engine that runs one
client at a time. What is computed from such a mask is an ordinary mask again; so is its stack under `vmap`.
"""

from __future__ import annotations

from torch import Tensor


def mark_unpadded(mask: Tensor) -> Tensor:
    """`mask`, which the caller knows to be 1 throughout."""
    mask.whole = True  # type: ignore[attr-defined]
    return mask


def is_unpadded(mask: Tensor | None) -> bool:
    """Whether `mask` was marked."""
    return getattr(mask, "whole", False)


__all__ = ["is_unpadded", "mark_unpadded"]
