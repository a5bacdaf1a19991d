"""Asks a tensor whether it is true: fine for one client, impossible for a stack of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from posterity.core.common import weighted
from posterity.methods.fedavg import FedAvg

LAW = "stacking"


@dataclass(frozen=True)
class Wrong(FedAvg):
    def message(self, carry, here):
        if carry.params["head.bias"].abs().sum() > 0.5:
            return weighted(carry.params, here), ()
        return weighted(here.shared.params, here), ()


@dataclass(frozen=True)
class Right(FedAvg):
    def message(self, carry, here):
        far = carry.params["head.bias"].abs().sum() > 0.5
        kept = {n: torch.where(far, p, here.shared.params[n]) for n, p in carry.params.items()}
        return weighted(kept, here), ()
