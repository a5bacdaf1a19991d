"""Reckons with the client's number, as if it said something about the client."""

from __future__ import annotations

from dataclasses import dataclass

from posterity.core.messages import Mean
from posterity.methods.fedavg import FedAvg as Right

LAW = "renumbering"


@dataclass(frozen=True)
class Wrong(Right):
    def message(self, carry, here):
        return {"params": Mean(here.n * (1 + here.client.to(here.n)), carry.params)}, ()
