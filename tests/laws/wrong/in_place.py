"""Writes to the broadcast: every client that comes later receives something else."""

from __future__ import annotations

from dataclasses import dataclass

from posterity.methods.fedavg import FedAvg

LAW = "purity"


@dataclass(frozen=True)
class Wrong(FedAvg):
    def start(self, here):
        for p in here.shared.params.values():
            p.mul_(0.99)
        return here.shared.params


@dataclass(frozen=True)
class Right(FedAvg):
    def start(self, here):
        return {n: p * 0.99 for n, p in here.shared.params.items()}
