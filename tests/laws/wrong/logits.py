"""Returns logits where log-probabilities are asked for."""

from __future__ import annotations

from dataclasses import dataclass

from posterity.methods.fedavg import FedAvg as Right

LAW = "probabilities"


@dataclass(frozen=True)
class Wrong(Right):
    def predict(self, carry, x, here):
        return here.model.logits(carry.params, x)
