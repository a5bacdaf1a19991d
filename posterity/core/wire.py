"""What travels, where that is not what memory holds.

Clients of a stack need tensors of one shape, so pruned weights stay where they are in a simulation. `Sparse` stands
around a message or a broadcast and says how much of it need not be sent; `packed` makes eight booleans a byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.core.tree import STATIC, Tree, record, tree_bytes, tree_parts


@record
class Sparse:
    """Part of a message, or what is offered, of which `unsent` bytes need not travel: the receiver can fill them in.

    Which ones is said by names of leaves within `part`, for `codec.py`. A server that receives a message knows what it
    offered, and so what the sender left out and why; a site that receives an offer is told by `pattern`. Stacked
    messages fold to the kind of their `part`.

    Attributes:
        part: what is sent
        unsent: bytes that are not, () int64
        keep: booleans (...): which numbers of `leaves` travel; one boolean: all of them or none
        leaves: those that `keep` is about
        elsewhere: ends of names in the broadcast: leaves there that `keep` is about too
        pattern: the leaf that holds `packed(keep)`; it travels unless everything is kept
        known: leaves that never travel: the receiver computes them, or they are for scoring alone
    """

    part: Any
    unsent: Tensor
    keep: Tree = ()
    leaves: tuple[str, ...] = field(default=(), metadata={STATIC: True})
    elsewhere: tuple[str, ...] = field(default=(), metadata={STATIC: True})
    pattern: str = field(default="", metadata={STATIC: True})
    known: tuple[str, ...] = field(default=(), metadata={STATIC: True})
    secure_sum: ClassVar[bool] = False  # clients that leave out other numbers than their neighbours show which

    @staticmethod
    def fold(stack: Sparse) -> Any:
        return stack.part.fold(stack.part)

    def wire_bytes(self) -> int:
        return wire_bytes(self.part) - int(self.unsent.sum())


@record
class Offer:
    """What a server sends to one client: the broadcast, and what is for this client alone."""

    shared: Tree
    own: Tree


def wire_bytes(tree: Tree) -> int:
    """Bytes that a message or a broadcast takes on its way."""
    if hasattr(tree, "wire_bytes"):
        return int(tree.wire_bytes())
    return tree_bytes(tree) if isinstance(tree, Tensor) else sum(wire_bytes(child) for _, child in tree_parts(tree))


def packed(mask: Tensor) -> Tensor:
    """Booleans of any shape as bytes (⌈numbers/8⌉,)."""
    bits = F.pad(mask.flatten().to(torch.uint8), (0, -mask.numel() % 8)).reshape(-1, 8)
    return (bits << torch.arange(8, dtype=torch.uint8, device=mask.device)).sum(1).to(torch.uint8)


def unpacked(mask: Tensor, shape: Sequence[int]) -> Tensor:
    """The booleans of `packed`."""
    bits = (mask[:, None] >> torch.arange(8, dtype=torch.uint8, device=mask.device)) & 1
    return (bits.flatten() > 0)[: torch.Size(shape).numel()].reshape(tuple(shape))
