"""pFedBayes: every client has a Gaussian over the weights of its own, with the common Gaussian as its prior.

The server keeps w = N(µ, σ²) over all trainable leaves, σ = log(1 + e^ρ). A client trains its personal q_k, which it
keeps, and a copy of w, which it sends:

    personal   q_k ← `inner` steps a batch on E[mean loss(θ)] + (ζ/n_k) KL(q ‖ copy),  θ = µ + σ ε       # (a)
    copy       one step a batch on KL(q_k ‖ copy)                                                       # (b)
    server     (µ, ρ) ← (1 − β)(µ, ρ) + β · mean of the clients' copies                                 # (c)
    KL(q ‖ p) = Σ log(σ_p/σ_q) + (σ_q² + (µ_q − µ_p)²) / 2σ_p² − ½                                     # (d)

A client predicts with the mean of q_k, or with `draws` > 0 with the average over so many draws of θ. A newcomer's q_k
is the server's Gaussian.

Reference: Zhang, Li, Li, Guo and Shao, "Personalized federated learning via variational Bayesian inference", ICML 2022.

The letters (a) to (d) are ours: the specification restates the paper without its numbers.

Differs from the paper: ε has deviation 1 as the paper says; the released code has 0.001, which is almost no noise
(`spread` sets it). First means are the network's own first weights, not draws of deviation 0.1. Both optimisers start
anew each round. The copy never sees data: running statistics of batch norm that are sent are those of q_k, averaged
equally as the rest. The mean of ρ is not that of σ; it is what the paper averages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, grad_and_value

from posterity.core import (
    Adam,
    Batch,
    Carry,
    Facts,
    Here,
    Loss,
    Mean,
    Message,
    Method,
    Network,
    Now,
    Params,
    Pass,
    Personal,
    Point,
    Training,
    as_second,
    check_fields,
    first_of,
    fit,
    fold,
    hyper,
    log_predictive,
    mixture,
    normal,
    record,
    second_of,
    trainable,
    within,
)

RELEASED = "released code"
RHO = "rho/"
DRAW = 2**21  # from here on, numbers that draws of weights fold into the key


@record
class State:
    params: Params  # µ, and running statistics
    rho: Params  # for every trainable leaf


def joined(params: Params, rho: Params) -> Params:
    """A Gaussian as leaves: means under the network's names, ρ under names of their own."""
    return {**params, **{RHO + n: r for n, r in rho.items()}}


def divergence(q: Params, p: Params) -> Tensor:
    """KL(q ‖ p) of two Gaussians as `joined` has them."""
    parts = []
    for n in (n for n in q if n.startswith(RHO)):
        sq, sp, gap = F.softplus(q[n]), F.softplus(p[n]), q[n.removeprefix(RHO)] - p[n.removeprefix(RHO)]
        parts.append((torch.log(sp / sq) + (sq**2 + gap**2) / (2 * sp**2) - 0.5).sum())  # (d)
    return torch.stack(parts).sum()


def drawn(q: Params, key: Tensor, spread: float) -> Params:
    """Weights of the network from a Gaussian; running statistics as they are."""
    names = [n for n in q if not n.startswith(RHO)]
    found = {n: q[n] for n in names}
    for number, n in enumerate(n for n in names if RHO + n in q):
        noise = normal(fold(key, DRAW + number), q[n].shape, q[n].dtype)
        found[n] = q[n] + F.softplus(q[RHO + n]) * spread * noise  # (a)
    return found


@dataclass(frozen=True)
class PFedBayes(Method):
    label: ClassVar[str] = "pFedBayes"
    reference: ClassVar[str] = "Zhang et al., ICML 2022"
    absent: ClassVar[str] = "cohort only"
    scored: ClassVar[Point] = "received"

    local: Training = hyper(
        Training(lr=1e-3, optimiser="adam"), "how the personal Gaussian is trained", RELEASED,
        paper=Training(lr=1e-3, optimiser="adam", batch=100, steps=20),
    )  # fmt: skip
    copy_lr: float = hyper(1e-3, "step size of the copy's Adam", RELEASED)
    zeta: float = hyper(10.0, "ζ: weight of the divergence from the copy", RELEASED)
    inner: int = hyper(5, "steps of the personal Gaussian on each batch", RELEASED)
    rho: float = hyper(-3.0, "ρ₀: first deviations are log(1 + e^ρ₀)", RELEASED)
    spread: float = hyper(1.0, "deviation of ε", "the paper; the released code has 0.001")
    beta: float = hyper(1.0, "β: how far the server moves to the clients' mean", "the usual choice")
    draws: int = hyper(0, "draws of the weights for a prediction; 0: the means alone", "ours")
    loss: Loss = fit  # a wrapper may replace it

    def __post_init__(self) -> None:
        check_fields(self)
        within(self, copy_lr=(0, None), zeta=(0, None), inner=(1, None), spread=(0, None), beta=(0, 1), draws=(0, None))
        within(self, rho=(-20, 20))

    def init(self, model: Network, params: Params, facts: Facts) -> State:
        return State(params, {n: torch.full_like(params[n], self.rho) for n in trainable(params, model)})

    def join(self, here: Here) -> Personal:
        return joined(here.shared.params, here.shared.rho)

    def start(self, here: Here) -> Params:
        return {**joined(here.shared.params, here.shared.rho), **as_second(here.personal)}

    def bound(self, moving: Params, q: Params, copy: Params, batch: Batch, here: Here) -> tuple[Tensor, Params]:
        """The mean loss of one draw and the divergence's share, and new running statistics."""
        q = {**q, **moving}
        value, buffers = self.loss(drawn(q, here.key, self.spread), batch, here)
        return value + self.zeta / here.n.clamp(min=1) * divergence(q, copy), buffers  # (a)

    def passes(self) -> tuple[Pass, ...]:
        mine, theirs = self.local.make_optimiser(), Adam(self.copy_lr)

        def moving(q: Params, here: Here) -> Params:
            return {n: p for n, p in q.items() if n.removeprefix(RHO) in here.shared.rho}

        def begin(carry: Carry, here: Here) -> Carry:
            opened = (
                mine.open(moving(second_of(carry.params), here)),
                theirs.open(moving(first_of(carry.params), here)),
            )
            loss = carry.kept.get("loss", torch.stack((here.n * 0, here.n * 0)))
            return replace(carry, opt=opened, kept={**carry.kept, "loss": loss})

        def step(carry: Carry, batch: Batch, here: Here) -> Carry:
            q, copy, (opt, other), count = second_of(carry.params), first_of(carry.params), carry.opt, batch.mask.sum()
            loss = carry.kept["loss"]
            for number in range(self.inner):
                now = replace(here, key=fold(here.key, number))
                slope, (value, buffers) = grad_and_value(self.bound, has_aux=True)(moving(q, here), q, copy, batch, now)
                moved, opt = mine.update(slope, opt, moving(q, here))
                q = {**q, **buffers, **moved}
                loss = loss + torch.stack((value.detach() * count, count)) / self.inner
            slope = grad(lambda leaves: divergence(q, {**copy, **leaves}))(moving(copy, here))
            moved, other = theirs.update(slope, other, moving(copy, here))  # (b)
            new = {**copy, **moved, **as_second(q)}
            return Carry({n: new[n] for n in carry.params}, {**carry.kept, "loss": loss}, (opt, other))

        close = lambda carry, here: replace(carry, opt=())  # noqa: E731
        return (Pass(step, open=begin, close=close, copies=20, **self.local.schedule()),)

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        q, copy = second_of(carry.params), first_of(carry.params)
        buffers = {n: p for n, p in q.items() if n.removeprefix(RHO) not in here.shared.rho}
        return {"copy": Mean(torch.ones_like(here.n), {**copy, **buffers})}, q

    def combine(self, state: State, total: Message, now: Now) -> State:
        mean, old = total["copy"].mean(), joined(state.params, state.rho)
        rate = {
            n: self.beta if n.removeprefix(RHO) in state.rho else 1.0 for n in mean
        }  # running statistics: all the way
        new = {n: old[n].to(m) + rate[n] * (m - old[n].to(m)) for n, m in mean.items()}  # (c)
        return State({n: new[n] for n in state.params}, {n: new[RHO + n] for n in state.rho})

    def predict(self, carry: Carry, x: Tensor, here: Here) -> Tensor:
        q = second_of(carry.params)
        if not self.draws:
            return log_predictive(q, x, here)
        some = [drawn(q, fold(here.key, i), self.spread) for i in range(self.draws)]
        return mixture(torch.stack([log_predictive(params, x, here) for params in some]), here.model.task)

    def outside(self) -> str:
        return "the mean of the server's Gaussian"
