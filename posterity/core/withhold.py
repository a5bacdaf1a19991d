"""What is made of too few samples is not sent: such a class counts as one that the client does not have.

A method declares what it gathers class by class (`Method.class_statistics`). Before it writes its message, classes with
fewer than `min_count` samples are taken out of that, so that whatever follows from it is as if they were not there.
Training has seen all samples, and so have the network's leaves: these are not statistics of a class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posterity.core.losses import one_hot
from posterity.core.protocol import Carry, Here, Message, Personal
from posterity.core.tree import Tree
from posterity.core.wrapper import Wrapper


@dataclass(frozen=True)
class Withholding(Wrapper):
    """A method whose clients say nothing about classes of which they have fewer than `min_count` samples."""

    min_count: int = 1

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        few = {name: without_rare(carry.kept[name], self.min_count, here.model.classes)
               for name in self.class_statistics}  # fmt: skip
        kept = {**carry.kept, **few}
        return self.inner.message(replace(carry, kept=kept), replace(here, kept=kept))

    def inspect(self, message: Message, here: Here) -> str:
        """The message is one of the inner method's: that of a client without the rare classes."""
        return self.inner.inspect(message, here)

    def factor(self, personal: Personal) -> Tree | None:
        return self.inner.factor(personal)


def without_rare(gathered: Tree, least: int, classes: int) -> Tree:
    """What was gathered without classes of fewer than `least` samples: sums (`sum_classes`), counts, or rows."""
    if isinstance(gathered, Tensor):
        return torch.where(gathered >= least, gathered, 0)
    if "mask" in gathered:  # rows with labels `y`
        y, mask = gathered["y"], gathered["mask"]
        many = one_hot(y, classes, mask).sum(0) >= least  # (C,)
        return {**gathered, "mask": torch.where(many[y], mask, 0)}
    many = gathered["count"] >= least
    return {name: torch.where(many.reshape(-1, *[1] * (leaf.dim() - 1)), leaf, 0) for name, leaf in gathered.items()}


__all__ = ["Withholding", "without_rare"]
