"""Sharpens its predictions in place: every time it is scored, the global model is another one."""

from __future__ import annotations

from dataclasses import dataclass

from posterity.core.protocol import log_predictive
from posterity.methods.fedavg import FedAvg

LAW = "scoring"


@dataclass(frozen=True)
class Wrong(FedAvg):
    def predict(self, carry, x, here):
        carry.params["head.weight"].mul_(1.5)
        return log_predictive(carry.params, x, here)


@dataclass(frozen=True)
class Right(FedAvg):
    def predict(self, carry, x, here):
        sharp = {**carry.params, "head.weight": 1.5 * carry.params["head.weight"]}
        return log_predictive(sharp, x, here)
