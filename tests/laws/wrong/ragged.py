"""Broadcasts a table with a row for everyone who came: its size is another in every seed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.core.common import averaged, weighted
from posterity.core.messages import Bag
from posterity.core.protocol import Params
from posterity.core.tree import record
from posterity.methods.fedavg import FedAvg

LAW = "seeds"


@record
class State:
    params: Params
    sizes: Tensor  # (1,) or (cohort,): samples of those who came


@dataclass(frozen=True)
class Right(FedAvg):
    """The server says once what it learned from all of them."""

    def init(self, model, params, facts):
        return State(params, next(iter(params.values())).new_ones(1))

    def message(self, carry, here):
        return {**weighted(carry.params, here), "sizes": Bag(here.client, here.n)}, ()

    def combine(self, state, total, now):
        mean = {name: part for name, part in total.items() if name != "sizes"}
        return State(averaged(state.params, mean, self.server_lr), self.told(total["sizes"].value))

    def told(self, sizes):
        return sizes.mean()[None]


@dataclass(frozen=True)
class Wrong(Right):
    def told(self, sizes):
        return torch.as_tensor(sizes)
