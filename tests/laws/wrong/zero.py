"""A wrong zero: the neutral element of a maximum is minus infinity, not 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from posterity.core.common import weighted
from posterity.core.tree import Tree, record, tree_map
from posterity.methods.fedavg import FedAvg

LAW = "sums"


@record
class Highest:
    value: Tree
    secure_sum: ClassVar[bool] = False

    def __add__(self, other):
        return type(self)(tree_map(torch.maximum, self.value, other.value))

    @staticmethod
    def fold(stack):
        return type(stack)(tree_map(lambda v: v.amax(0), stack.value))

    def zero(self):
        return type(self)(tree_map(lambda v: torch.full_like(v, -torch.inf), self.value))


@record
class Careless(Highest):
    value: Tree

    def zero(self):
        return Careless(tree_map(torch.zeros_like, self.value))


@dataclass(frozen=True)
class Right(FedAvg):
    def message(self, carry, here):
        return {**weighted(carry.params, here), "top": Highest(carry.params["head.bias"])}, ()


@dataclass(frozen=True)
class Wrong(FedAvg):
    def message(self, carry, here):
        return {**weighted(carry.params, here), "top": Careless(carry.params["head.bias"])}, ()
