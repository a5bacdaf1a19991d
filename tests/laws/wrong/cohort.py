"""Divides by the cohort what the mean has divided already: more clients, smaller steps."""

from __future__ import annotations

from dataclasses import dataclass

from posterity.core import Leaves as State
from posterity.core.common import averaged
from posterity.methods.fedavg import FedAvg as Right

LAW = "weights"


@dataclass(frozen=True)
class Wrong(Right):
    def combine(self, state, total, now):
        return State(averaged(state.params, total, self.server_lr / now.cohort))
