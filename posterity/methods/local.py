"""Local training: every client by itself, the baseline that sends nothing.

Each client continues SGD on its own data from its own model, with the budget of the federated methods:

    θ_k ← argmin f_k(θ), started at θ_k; θ_k = w₀ at first.

Reference: called "Individual" in FedMAP (2024), Tables 1-4.

Differs from the paper: nothing; the common initial model is made from the seed by every client, so that no byte is
sent in either direction.
"""

from dataclasses import dataclass
from typing import Any

from posterity import core


@dataclass(frozen=True)
class Local(core.Method):
    label = "Local"
    reference = "every client alone"
    absent = "cohort only: an absent client keeps its model"
    outside = "the initial model: nothing is sent"
    scored = "trained"

    local: core.Training = core.hyper(core.Training(), "how the clients train")

    def offer(self, state: core.Leaves, client: Any) -> tuple[core.Shared, core.Own]:
        return (), ()

    def join(self, here: core.Here) -> core.Personal:
        return here.initial

    def start(self, here: core.Here) -> core.Params:
        return here.personal

    def passes(self) -> core.Passes:
        return (self.local.descend(),)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        return {}, carry.params

    def combine(self, state: core.Leaves, total: core.Message, now: core.Now) -> core.Tree:
        return state
