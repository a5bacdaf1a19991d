"""A float64 constant makes a float32 run send float64."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from posterity.core.common import weighted
from posterity.methods.fedavg import FedAvg

LAW = "precision"


@dataclass(frozen=True)
class Wrong(FedAvg):
    def message(self, carry, here):
        scale = torch.tensor([0.9], dtype=torch.float64)
        return weighted({n: p * scale for n, p in carry.params.items()}, here), ()


@dataclass(frozen=True)
class Right(FedAvg):
    def message(self, carry, here):
        return weighted({n: p * 0.9 for n, p in carry.params.items()}, here), ()
