"""FedLA: the server's model is the mean of the clients' Laplace approximations, each number weighted by its precision.

The server keeps a mean w and a diagonal precision Ω, 0 at first; the product of the clients' Gaussians N(θ_k, Ω_k⁻¹) is
sharp where somebody's data says much about a number, and clients are held near w there. In round r, with the gradient
g_b of a batch's mean loss,

    client   θ_k ← E epochs on f_k(θ) + (λ/2r) Σ Ω ⊙ (θ − w)² from w                                     # (a)
             Ω_k = Ω + Σ_b (|b| / n_k) g_b², over all batches of all epochs                              # (b)
    server   Ω ← Σ_k p_k Ω_k,    w ← Σ_k p_k (Ω_k + ε) ⊙ θ_k / (Ω + ε)                                   # (c)

Ω grows by a round's curvature every round; 1/r in (a) makes a mean of it. A newcomer gets w.

Reference: Liu, Jiang, Zheng, Chen, Qi, Huang and Shao, "A Bayesian federated learning framework with online Laplace
approximation", 2021, arXiv:2102.01936.

The letters (a) to (c) are ours: the paper's own numbers were not at hand.

Differs from the paper: its server divides Σ_k p_k Ω_k ⊙ θ_k by Ω + ε, which moves numbers without curvature (dead
units) to 0. Ours adds ε to the precision of every client, so that they have FedAvg's mean; `fallback=false` is the
printed rule. The released code computes the penalty of (a) from detached tensors, so that it has no gradient: that is
λ = 0 here. It also needs a second backward pass for (b), which here takes the gradient that the step has anyway, less
the penalty's part of it. Precisions cover trainable leaves; running statistics of batch norm are averaged by samples.
Fine-tuning (`adapt`) is without the penalty: it looks for the client's own minimum.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from posterity import core

RELEASED = "released code"
RELEASED_TRAINING = core.Training(lr=0.01, epochs=40, batch=32, clip=10.0)


@core.record
class State:
    params: core.Params  # w
    precision: core.Params  # Ω, for every trainable leaf


@dataclass(frozen=True)
class FedLA(core.Method):
    label = "FedLA"
    reference = "Liu et al. 2021, arXiv:2102.01936"
    absent = "cohort only"

    local: core.Training = core.hyper(core.Training(), "how the clients train", paper=RELEASED_TRAINING)
    importance: float = core.hyper(1.0, "λ: pull to w", f"{RELEASED}: 0, 1, 100", search=(0.1, 10.0, "log"), ge=0)
    eps: float = core.hyper(1e-5, "ε: precision that every number has at least", RELEASED, gt=0)
    fallback: bool = core.hyper(True, "numbers without curvature are averaged, not moved to 0", "ours", paper=False)
    loss: core.Loss = core.fit  # a wrapper may replace it

    adapt = core.adapt_plainly

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        return State(params, core.zeros(params, model))

    def pull(self, here: core.Here) -> core.Params:
        """λΩ/r: how steeply the penalty rises."""
        return {n: self.importance / here.round.to(here.n) * omega for n, omega in here.shared.precision.items()}

    def penalised(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        value, buffers = self.loss(params, batch, here)
        pull, w = self.pull(here), here.shared.params
        squares = torch.stack([(pull[n] * (params[n] - w[n]) ** 2).sum() for n in pull])
        return value + 0.5 * squares.sum(), buffers  # (a)

    def curvature(self, slope: core.Params, params: core.Params, batch: core.Batch, here: core.Here) -> core.Params:
        """The share of a batch in (b); `slope` is that of (a)."""
        pull, w, share = self.pull(here), here.shared.params, batch.mask.sum() / here.n.clamp(min=1)
        own = {n: slope[n] - pull[n] * (params[n] - w[n]) if self.importance else slope[n] for n in pull}
        return {n: share * g**2 for n, g in own.items()}  # (b)

    def passes(self) -> core.Passes:
        loss = self.penalised if self.importance else self.loss
        how = self.local.schedule()
        found = core.watched("curvature", self.curvature, loss, self.local.make_optimiser(), core.everything, **how)
        return core.holding((found,), copies=4)  # the pull, the precision, and what is sent

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        precision = {n: omega + carry.kept["curvature"][n] for n, omega in here.shared.precision.items()}  # (b)
        least = self.eps if self.fallback else 0.0
        shift = {n: (omega + least) * carry.params[n] for n, omega in precision.items()}
        rest = {n: p for n, p in carry.params.items() if n not in precision}
        return {"laplace": core.Mean(here.n, {"precision": precision, "shift": shift, "rest": rest})}, ()

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        found = total["laplace"].mean()
        mean = {n: found["shift"][n] / (omega + self.eps) for n, omega in found["precision"].items()}  # (c)
        new = mean | found["rest"]
        return State({n: new[n] for n in state.params}, found["precision"])
