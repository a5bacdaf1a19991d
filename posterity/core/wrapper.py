"""Wrappers: methods made of a method. Everything is delegated; a wrapper overrides what it changes.

A wrapper leaves its mark in `carry.kept` and in the passes, never in the leaves of the inner method.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posterity.core.likelihood import one_hot
from posterity.core.protocol import Carry, Here, Message, Method, Personal
from posterity.core.tree import Tree
from posterity.settings.hyperparameters import check_fields


@dataclass(frozen=True)
class Wrapper:
    method: Any  # the method that is wrapped

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def inner(self) -> Method:
        """The method that everything is handed to: `method`, or `method` with some fields replaced."""
        return self.method

    def __getattr__(self, name: str) -> Any:
        if name in Method.__annotations__ or name in vars(Method):
            return getattr(self.inner, name)
        raise AttributeError(f"{type(self).__name__} has no {name!r}")

    def inspect(self, message: Message, here: Here) -> str:
        """The inner method's, unless this wrapper changes messages: the inner one would not know them."""
        return "" if hasattr(type(self), "message") else self.inner.inspect(message, here)

    def factor(self, personal: Personal) -> Tree | None:
        """The inner method's, unless this wrapper changes what is sent or kept: State is then no sum of factors."""
        changed = any(hasattr(type(self), name) for name in ("init", "combine", "join", "message"))
        return None if changed else self.inner.factor(personal)


@dataclass(frozen=True)
class Withholding(Wrapper):
    """A method whose clients say nothing about classes of which they have fewer than `min_count` samples.

    A method declares what it gathers class by class (`Method.class_statistics`). Before it writes its message, such
    classes are taken out of that, so that whatever follows from it is as if the client did not have them. Training has
    seen all samples, and so have the network's leaves: these are not statistics of a class.
    """

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
