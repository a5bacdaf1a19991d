"""Uses numpy's global generator, which even `vmap` lets pass: all clients of a stack get one draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posterity.core.random import uniform
from posterity.methods.fedavg import FedAvg

LAW = "seed"


@dataclass(frozen=True)
class Wrong(FedAvg):
    def start(self, here):
        return {n: p * (1 + 0.01 * float(np.random.rand())) for n, p in here.shared.params.items()}


@dataclass(frozen=True)
class Right(FedAvg):
    def start(self, here):
        return {n: p * (1 + 0.01 * uniform(here.key, (), p.dtype)) for n, p in here.shared.params.items()}
