"""Adds blocks as if each held one client: the mean of two means, whatever the number of clients behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from posterity.core import Leaves as State
from posterity.core.tree import Tree, record, tree_map
from posterity.methods.fedavg import FedAvg as Right

LAW = "blocks"


@record
class Average:
    value: Tree
    secure_sum: ClassVar[bool] = False

    def __add__(self, other):
        return Average(tree_map(lambda a, b: (a + b) / 2, self.value, other.value))

    @staticmethod
    def fold(stack):
        return Average(tree_map(lambda leaf: leaf.mean(0), stack.value))

    def zero(self):
        return tree_map(lambda leaf: 0 * leaf, self)


@dataclass(frozen=True)
class Wrong(Right):
    def message(self, carry, here):
        return {"params": Average(carry.params)}, ()

    def combine(self, state, total, now):
        return State(total["params"].value)
