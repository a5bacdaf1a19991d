"""Depends on the order of the clients: the server moves halfway to every message that comes in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from posterity.core import Leaves as State
from posterity.core.tree import Tree, record, tree_map, tree_rows
from posterity.methods.fedavg import FedAvg as Right

LAW = "order"


@record
class Running:
    value: Tree
    secure_sum: ClassVar[bool] = False

    def __add__(self, other):
        return Running(tree_map(lambda a, b: 0.5 * a + 0.5 * b, self.value, other.value))

    @staticmethod
    def fold(stack):
        rows = [Running(tree_rows(stack.value, i)) for i in range(len(next(iter(stack.value.values()))))]
        total = rows[0]
        for row in rows[1:]:
            total = total + row
        return total

    def zero(self):
        return tree_map(lambda v: 0 * v, self)


@dataclass(frozen=True)
class Wrong(Right):
    def message(self, carry, here):
        return {"params": Running(carry.params)}, ()

    def combine(self, state, total, now):
        return State(total["params"].value)
