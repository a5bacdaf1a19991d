"""Wrappers: methods made of a method. Everything is delegated; a wrapper overrides what it changes.

A wrapper leaves its mark in `carry.kept` and in the passes, never in the leaves of the inner method.

What is made of too few samples is not sent: such a class counts as one that the client does not have.

A method declares what it gathers class by class (`Method.class_statistics`). Before it writes its message, classes with
fewer than `min_count` samples are taken out of that, so that whatever follows from it is as if they were not there.
Training has seen all samples, and so have the network's leaves: these are not statistics of a class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posterity.core.likelihood import one_hot
from posterity.core.network import Network
from posterity.core.protocol import (
    Carry,
    Facts,
    Here,
    Message,
    Method,
    Now,
    Own,
    Params,
    Pass,
    Personal,
    Plan,
    Shared,
    State,
)
from posterity.core.tree import Tree


@dataclass(frozen=True)
class Wrapper:
    method: Any  # the method that is wrapped

    @property
    def inner(self) -> Method:
        """The method that everything is handed to: `method`, or `method` with some fields replaced."""
        return self.method

    @property
    def label(self) -> str:
        return self.inner.label

    @property
    def reference(self) -> str:
        return self.inner.reference

    @property
    def absent(self) -> str:
        return self.inner.absent

    @property
    def scored(self) -> Any:
        return self.inner.scored

    @property
    def adaptation(self) -> int:
        return self.inner.adaptation

    @property
    def differences(self) -> tuple[str, ...]:
        return self.inner.differences

    @property
    def class_statistics(self) -> Mapping[str, tuple[str, ...]]:
        return getattr(self.inner, "class_statistics", {})

    def init(self, model: Network, params: Params, facts: Facts) -> State:
        return self.inner.init(model, params, facts)

    def offer(self, state: State, client: Tensor | None) -> tuple[Shared, Own]:
        return self.inner.offer(state, client)

    def combine(self, state: State, total: Message, now: Now) -> State:
        return self.inner.combine(state, total, now)

    def forget(self, state: State, factor: Tree) -> State:
        return self.inner.forget(state, factor)

    def report(self, state: State, total: Message) -> dict[str, Tensor]:
        return self.inner.report(state, total)

    def inspect(self, message: Message, here: Here) -> str:
        """The inner method's, unless this wrapper changes messages: the inner one would not know them."""
        return self.inner.inspect(message, here) if type(self).message is Wrapper.message else ""

    def outside(self) -> str:
        return self.inner.outside()

    def remarks(self, model: Network) -> tuple[str, ...]:
        return self.inner.remarks(model)

    def announce(self, plan: Plan) -> tuple[str, ...]:
        return self.inner.announce(plan)

    def join(self, here: Here) -> Personal:
        return self.inner.join(here)

    def start(self, here: Here) -> Params:
        return self.inner.start(here)

    def passes(self) -> tuple[Pass, ...]:
        return self.inner.passes()

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        return self.inner.message(carry, here)

    def factor(self, personal: Personal) -> Tree | None:
        """The inner method's, unless this wrapper changes what is sent or kept: State is then no sum of factors."""
        names = ("init", "combine", "join", "message")
        changed = any(getattr(type(self), name) is not getattr(Wrapper, name) for name in names)
        return None if changed else self.inner.factor(personal)

    def adapt(self, epochs: int) -> tuple[Pass, ...]:
        return self.inner.adapt(epochs)

    def prepare(self) -> tuple[Pass, ...]:
        return self.inner.prepare()

    def predict(self, carry: Carry, x: Tensor, here: Here) -> Tensor:
        return self.inner.predict(carry, x, here)


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
