"""What of a round can be used: a message, and the state that the messages add up to.

A number is usable up to 2^64, the largest whose square float32 can still hold: beyond it the norms, losses and second
moments of the next steps are infinite, whoever is honest. What is finite and smaller may still be too much for a
network; so a state that has grown a thousandfold in one round is tried before it is taken, by the clients that would
go on from it. If none can, or their loss has grown as much, the round is not committed: state and records stay as they
were. If some messages were a thousand times larger than most, the round is repeated without them, and they are refused
by name.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from posterity.core.tree import Tree, tree_leaves

USABLE = 2.0**64
FAR = 1e3  # times larger: a message than most of its round, a state or a loss than the one before
UNSOLVABLE = (torch._C._LinAlgError, np.linalg.LinAlgError, ArithmeticError)  # how `combine` says that it cannot


def largest_sent(stack: Tree, count: int) -> Tensor:
    """The largest magnitude that each client of a stack sent (clients,), in float64; nan where one is nan."""
    sizes = [_largest(leaf) for leaf in tree_leaves(stack) if leaf.is_floating_point() and leaf[0].numel()]
    if not sizes:
        return torch.zeros(count, dtype=torch.float64)
    return torch.stack([size.double() for size in _on_host(sizes)]).amax(0)


def why_unusable(after: Tree, before: Tree) -> str:
    """Why a state cannot be used, in words; empty if it can. What was infinite before may stay so."""
    for new, old in zip(tree_leaves(after), tree_leaves(before), strict=True):
        if new.is_floating_point() and not bool(((new.abs() <= USABLE) | ~old.isfinite()).all()):
            size = new[old.isfinite()].abs().max()
            return f"it would be as large as {float(size):.3g}" if bool(size.isfinite()) else "it would not be finite"
    return ""


def has_grown(after: Tree, before: Tree) -> bool:
    """Whether the largest number of a state has grown so much that clients might not be able to go on from it."""
    sizes = [max([_size(leaf) for leaf in tree_leaves(tree) if leaf.is_floating_point() and leaf.numel()] or [0.0])
             for tree in (after, before)]  # fmt: skip
    return sizes[0] > FAR * max(1.0, sizes[1])


def outstanding(sizes: Mapping[int, float]) -> list[int]:
    """Clients whose largest number is far beyond what most clients sent: fewer than half of them."""
    if not sizes:
        return []
    usual = statistics.median_low(sizes.values())
    return sorted(client for client, size in sizes.items() if size > FAR * max(usual, 1e-30))


def _largest(leaf: Tensor) -> Tensor:
    flat = leaf.flatten(1) if leaf.dim() > 1 else leaf[:, None]
    return torch.maximum(flat.amax(1), -flat.amin(1))


def _on_host(sizes: list[Tensor]) -> list[Tensor]:
    return [size.cpu() if size.device.type == "mps" else size for size in sizes]  # no float64 there


def _size(leaf: Tensor) -> float:
    return float(leaf.nan_to_num(0.0, 0.0, 0.0).abs().max())


__all__ = ["FAR", "UNSOLVABLE", "USABLE", "has_grown", "largest_sent", "outstanding", "why_unusable"]
