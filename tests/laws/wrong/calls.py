"""Counts its calls: a recording keeps the count that it saw."""

from __future__ import annotations

from dataclasses import dataclass

from posterity.core.common import weighted
from posterity.methods.fedavg import FedAvg

LAW = "recording"
SEEN = [0]  # outside of every tensor


@dataclass(frozen=True)
class Right(FedAvg):
    def message(self, carry, here):
        shrunken = {n: p / here.round for n, p in carry.params.items()}
        return weighted(shrunken, here), ()


@dataclass(frozen=True)
class Wrong(FedAvg):
    def message(self, carry, here):
        SEEN[0] += 1
        shrunken = {n: p / SEEN[0] for n, p in carry.params.items()}
        return weighted(shrunken, here), ()
