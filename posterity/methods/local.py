"""Local training: every client by itself, the baseline that sends nothing.

Each client continues SGD on its own data from its own model, with the budget of the federated methods:

    θ_k ← argmin f_k(θ), started at θ_k; θ_k = w₀ at first.

Reference: called "Individual" in FedMAP (2024), Tables 1-4.

Differs from the paper: nothing; the common initial model is made from the seed by every client, so that no byte is
sent in either direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from posterity.core import (
    Carry,
    Facts,
    Here,
    Message,
    Method,
    Network,
    Now,
    Own,
    Params,
    Pass,
    Personal,
    Point,
    Shared,
    Training,
    Tree,
    hyper,
    record,
)


@record
class State:
    params: Params  # w₀, never changed


@dataclass(frozen=True)
class Local(Method):
    label: ClassVar[str] = "Local"
    reference: ClassVar[str] = "every client alone"
    absent: ClassVar[str] = "cohort only: an absent client keeps its model"
    scored: ClassVar[Point] = "trained"

    local: Training = hyper(Training(), "how the clients train")

    def init(self, model: Network, params: Params, facts: Facts) -> State:
        return State(params)

    def offer(self, state: State, client: Any) -> tuple[Shared, Own]:
        return (), ()

    def outside(self) -> str:
        return "the initial model: nothing is sent"

    def join(self, here: Here) -> Personal:
        return here.initial

    def start(self, here: Here) -> Params:
        return here.personal

    def passes(self) -> tuple[Pass, ...]:
        return (self.local.descend(),)

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        return {}, carry.params

    def combine(self, state: State, total: Message, now: Now) -> Tree:
        return state
