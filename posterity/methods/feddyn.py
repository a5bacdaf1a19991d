"""FedDyn: every client's loss is tilted until all of them have their minimum at the same point.

Each client remembers its drift h_k, the sum of the ways that it went from the broadcast; −α h_k is the gradient of its
own loss at the point where it stopped. h̄ is the mean of the drifts of all K clients, and begins at 0 as they do.

    client   θ_k ← SGD on f_k(θ) + (α_k/2) ‖θ − (w − h_k)‖² from w                                           # (1)
             h_k ← h_k + (θ_k − w)                                                                           # (2)
    server   θ̄ ← (1/|S|) Σ_{k∈S} θ_k,    h̄ ← h̄ + (1/K) Σ_{k∈S} (θ_k − w),    w ← θ̄ + h̄                      # (3)

Where this stands still all θ_k are w, the drifts add up to 0, and w minimises Σ_k f_k/α_k: the mean of the clients'
losses for α_k = α (`balance = "clients"`), the mean over all samples for α_k = α N/(K n_k) (`"samples"`, N samples in
all).

Two models live on the server. w is broadcast and trained from; it overshoots, and the published accuracies are not
its. θ̄, the mean of the clients that trained last, is `state.params`: it is scored, fine-tuned, exported, and what a
newcomer or a test set without a client gets (`predicts = "cloud"`: they get w, the cloud model). θ̄ is needed for
scoring alone, so the bytes of training do not count it.

Reference: Acar, Zhao, Matas Navarro, Mattina, Whatmough and Saligrama, "Federated learning based on dynamic
regularization", ICLR 2021, Algorithm 1. The numbers of the equations are ours; the paper's state is −α h_k.

Differs from the paper: no step-size decay over rounds; the gradient-norm clip, where one is set, covers the penalty
too. The penalty is squared and quadratic (one public code takes the root of it, another leaves the quadratic part to
weight decay). Drifts cover trainable leaves, never the buffers of batch norm, whose plain mean is taken. Fine-tuning
(`adapt`) is without penalty: it looks for the client's own minimum.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from posterity import core
from posterity.methods._drift import BALANCES, MODELS, SCORED, cloud, from_cloud, mean_size, scored_beside

AUTHORS_TRAINING = core.Training(lr=0.1, epochs=5, batch=50, weight_decay=1e-3, clip=10.0)


@core.record
class State:
    params: core.Params  # θ̄
    drift: core.Params  # h̄, for every trainable leaf
    size: core.Tree  # N / K, where α_k needs it
    clients: int = field(metadata={core.STATIC: True})  # K


@core.record
class Shared:
    params: core.Params  # w
    average: core.Params  # θ̄, for scoring alone
    size: core.Tree


@dataclass(frozen=True)
class FedDyn(core.Method):
    label: ClassVar[str] = "FedDyn"
    reference: ClassVar[str] = "Acar et al., ICLR 2021"
    absent: ClassVar[str] = "delta messages: an absent client's drift stays part of the mean drift"
    scored: ClassVar[core.Point] = "received"
    differences: ClassVar[tuple[str, ...]] = ("params",)

    local: core.Training = core.hyper(core.Training(), "how the clients train", paper=AUTHORS_TRAINING)
    alpha: float = core.hyper(
        0.1,
        "α: strength of the pull towards w − h_k",
        "FL-bench; paper: to 0.1",
        paper=0.01,
        search=(0.001, 1.0, "log"),
    )
    balance: str = core.hyper(
        "clients", "whose mean loss is minimised: clients' or samples'", "uniform means", BALANCES, paper="samples"
    )
    predicts: str = core.hyper("average", "scored model: mean of the last clients, or w", "authors' tables", MODELS)
    loss: core.Loss = core.fit  # a wrapper may replace it

    def __post_init__(self) -> None:
        core.check_fields(self)
        if not self.alpha > 0:
            raise ValueError(f"alpha must be above 0; {self.alpha} was given. Without a pull take fedavg")

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        drift = {n: torch.zeros_like(params[n]) for n in core.trainable(params, model)}
        size = mean_size(params, facts, self.balance)
        return State(params, drift, size, facts.clients)

    def offer(self, state: State, client: Tensor | None) -> tuple[core.Sparse, core.Own]:
        w = cloud(state.params, state.drift)
        average, unsent = scored_beside(state.params, self.predicts)
        scoring = tuple(f"average/{n}" for n in average)
        return core.Sparse(Shared(w, average, state.size), unsent, known=scoring), ()

    def outside(self) -> str:
        return SCORED[self.predicts]

    def join(self, here: core.Here) -> core.Personal:
        w = here.shared.part.params
        return {n: torch.zeros_like(w[n]) for n in core.trainable(w, here.model)}

    def start(self, here: core.Here) -> core.Params:
        return here.shared.part.average or here.shared.part.params

    def penalised(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        value, buffers = self.loss(params, batch, here)
        known, drift = here.shared.part, here.personal
        alpha = self.alpha * known.size / here.n.clamp(min=1) if self.balance == "samples" else self.alpha
        centre = {n: known.params[n] - h for n, h in drift.items()}
        return value + 0.5 * alpha * core.squared_distance(params, centre, here.model), buffers  # (1)

    def passes(self) -> tuple[core.Pass, ...]:
        return core.opened((self.local.descend(self.penalised),), from_cloud)

    def adapt(self, epochs: int) -> tuple[core.Pass, ...]:
        return core.tuned((self.local.descend(self.loss),), epochs)

    def message(self, carry: core.Carry, here: core.Here) -> tuple[core.Message, core.Personal]:
        w = here.shared.part.params
        moved = {n: p - w[n] for n, p in carry.params.items()}
        drift = {n: h + moved[n] for n, h in here.personal.items()}  # (2)
        return {"params": core.Mean(torch.ones_like(here.n), moved)}, drift

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        moved, count, w = total["params"].mean(), total["params"].weight, cloud(state.params, state.drift)
        params = {n: p + moved[n] for n, p in w.items()}  # (3)
        drift = {n: h + count / state.clients * moved[n] for n, h in state.drift.items()}  # (3)
        return State(params, drift, state.size, state.clients)
