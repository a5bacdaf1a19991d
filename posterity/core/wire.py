"""What travels, where that is not what memory holds.

Clients of a stack need tensors of one shape, so pruned weights stay where they are in a simulation. `Sparse` stands
around a message or a broadcast and says how much of it need not be sent; `packed` makes eight booleans a byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.core.tree import Tree, record, tree_bytes


@record
class Sparse:
    """Part of a message, or what is offered, of which `unsent` bytes need not travel: the receiver can fill them in.

    Stacked messages fold to the kind of their `part`.
    """

    part: Any
    unsent: Tensor  # () int64
    secure_sum: ClassVar[bool] = False  # clients that leave out other numbers than their neighbours show which

    @staticmethod
    def fold(stack: Sparse) -> Any:
        return stack.part.fold(stack.part)

    def wire_bytes(self) -> int:
        return wire_bytes(self.part) - int(self.unsent.sum())


def wire_bytes(tree: Tree) -> int:
    """Bytes that a message or a broadcast takes on its way."""
    return int(tree.wire_bytes()) if hasattr(tree, "wire_bytes") else tree_bytes(tree)


def packed(mask: Tensor) -> Tensor:
    """Booleans of any shape as bytes (⌈numbers/8⌉,)."""
    bits = F.pad(mask.flatten().to(torch.uint8), (0, -mask.numel() % 8)).reshape(-1, 8)
    return (bits << torch.arange(8, dtype=torch.uint8, device=mask.device)).sum(1).to(torch.uint8)


def unpacked(mask: Tensor, shape: Sequence[int]) -> Tensor:
    """The booleans of `packed`."""
    bits = (mask[:, None] >> torch.arange(8, dtype=torch.uint8, device=mask.device)) & 1
    return (bits.flatten() > 0)[: torch.Size(shape).numel()].reshape(tuple(shape))
