"""Centres what it predicts by the rows that happen to be there: padding and company change every prediction."""

from __future__ import annotations

from dataclasses import dataclass

from posterity.core.protocol import log_predictive
from posterity.methods.fedavg import FedAvg

LAW = "engines"


@dataclass(frozen=True)
class Wrong(FedAvg):
    def predict(self, carry, x, here):
        return log_predictive(carry.params, x - x.mean(0), here)


@dataclass(frozen=True)
class Right(FedAvg):
    def predict(self, carry, x, here):
        return log_predictive(carry.params, x - x.mean(-1, keepdim=True), here)
