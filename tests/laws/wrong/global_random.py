"""Uses PyTorch's global generator for the noise that it adds to what it received."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from posterity.core.random import fold, normal
from posterity.methods.fedavg import FedAvg

LAW = "seed"


@dataclass(frozen=True)
class Wrong(FedAvg):
    def start(self, here):
        return {n: p + 0.01 * torch.randn_like(p) for n, p in here.shared.params.items()}


@dataclass(frozen=True)
class Right(FedAvg):
    def start(self, here):
        return {
            n: p + 0.01 * normal(fold(here.key, i), p.shape, p.dtype)
            for i, (n, p) in enumerate(here.shared.params.items())
        }
