"""Counts its rounds by itself: after a restart the count begins anew, and with it the schedule of the server."""

from __future__ import annotations

from dataclasses import dataclass, field

from posterity.core import Leaves as State
from posterity.core.common import averaged
from posterity.methods.fedavg import FedAvg

LAW = "resume"


@dataclass(frozen=True)
class Wrong(FedAvg):
    count: list = field(default_factory=lambda: [0])

    def combine(self, state, total, now):
        self.count[0] += 1
        return State(averaged(state.params, total, 1 / self.count[0]))


@dataclass(frozen=True)
class Right(FedAvg):
    def combine(self, state, total, now):
        return State(averaged(state.params, total, 1 / now.round))
