"""FedProx: FedAvg whose clients are held near the broadcast model.

    client   θ_k ← E epochs of SGD on f_k(θ) + (µ/2) ‖θ − w‖² from w                                  # (2)
    server   w ← Σ_k p_k θ_k

Reference: Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated optimization in heterogeneous networks",
MLSys 2020.

Differs from the paper: weights p_k by samples, as FedAvg (the paper samples clients by size and averages equally); all
clients finish their epochs (no stragglers). The penalty covers trainable leaves only, never the buffers of batch norm.
FedNP's released code adds an unsquared norm, so its µ is not comparable. Fine-tuning is plain training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from posterity.core import (
    Batch,
    Carry,
    Facts,
    Here,
    Loss,
    Message,
    Method,
    Network,
    Now,
    Params,
    Pass,
    Personal,
    Point,
    Training,
    averaged,
    check_fields,
    fit,
    hyper,
    record,
    squared_distance,
    tuned,
    weighted,
    within,
)


@record
class State:
    params: Params  # w


@dataclass(frozen=True)
class FedProx(Method):
    label: ClassVar[str] = "FedProx"
    reference: ClassVar[str] = "Li et al., MLSys 2020"
    absent: ClassVar[str] = "cohort only"
    scored: ClassVar[Point] = "received"

    local: Training = hyper(Training(), "how the clients train")
    mu: float = hyper(0.01, "µ: pull towards the broadcast model", "FedNP's tuned value; the paper tries 0.001 … 1",
                      search=(1e-3, 1.0, "log"))  # fmt: skip
    loss: Loss = fit  # a wrapper may replace it

    def __post_init__(self) -> None:
        check_fields(self)
        within(self, mu=(0, None))

    def init(self, model: Network, params: Params, facts: Facts) -> State:
        return State(params)

    def start(self, here: Here) -> Params:
        return here.shared.params

    def penalised(self, params: Params, batch: Batch, here: Here) -> tuple[Tensor, Params]:
        value, buffers = self.loss(params, batch, here)
        return value + 0.5 * self.mu * squared_distance(params, here.shared.params, here.model), buffers  # (2)

    def passes(self) -> tuple[Pass, ...]:
        return (self.local.descend(self.penalised if self.mu else self.loss),)

    def adapt(self, epochs: int) -> tuple[Pass, ...]:
        return tuned((self.local.descend(self.loss),), epochs)

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        return weighted(carry.params, here), ()

    def combine(self, state: State, total: Message, now: Now) -> State:
        return State(averaged(state.params, total))
