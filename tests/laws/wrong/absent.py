"""Touches absent clients: the server's table of client factors is built anew from those that came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from posterity.core.common import averaged, weighted
from posterity.core.messages import Rows
from posterity.core.protocol import Params
from posterity.core.tree import record
from posterity.methods.fedavg import FedAvg

LAW = "absent"


@record
class State:
    params: Params
    biases: Tensor  # every client's head bias, one row per client


@dataclass(frozen=True)
class Right(FedAvg):
    absent: ClassVar[str] = "remembered factor: an absent client's bias stays in the table"

    def init(self, model, params, facts):
        return State(params, params["head.bias"].new_zeros(facts.clients, facts.classes))

    def message(self, carry, here):
        return {**weighted(carry.params, here), "bias": Rows(here.client, carry.params["head.bias"])}, ()

    def combine(self, state, total, now):
        return State(averaged(state.params, total), total["bias"].into(state.biases))


@dataclass(frozen=True)
class Wrong(Right):
    def combine(self, state, total, now):
        return State(averaged(state.params, total), total["bias"].into(torch.zeros_like(state.biases)))
