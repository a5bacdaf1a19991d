"""pFedBayes, the method: the personal Gaussian, the copy that travels, the server's mixing.

The paper is summed up in the folder's `__init__.py`; divergence, draws and proximal steps are in `gaussians.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
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
    Tree,
    as_second,
    check_fields,
    first_of,
    fit,
    fold,
    held_by,
    hyper,
    log_predictive,
    mixture,
    record,
    second_of,
    trainable,
    within,
)
from posterity.methods.pfedbayes.gaussians import RHO, copy_step, divergence, drawn, joined, personal_step

RELEASED = "released code"
SOLVERS = ("proximal", "gradient")


@record
class State:
    params: Params  # µ, and running statistics
    rho: Params  # for every trainable leaf


def moving(gaussian: Params, here: Here) -> Params:
    """Means and ρ of the trainable leaves."""
    return {n: p for n, p in gaussian.items() if n.removeprefix(RHO) in here.shared.rho}


@dataclass(frozen=True)
class PFedBayes(Method):
    label: ClassVar[str] = "pFedBayes"
    reference: ClassVar[str] = "Zhang et al., ICML 2022"
    absent: ClassVar[str] = "cohort only"
    scored: ClassVar[Point] = "received"

    local: Training = hyper(
        Training(), "how the personal Gaussian is trained",
        paper=Training(lr=1e-3, optimiser="adam", batch=100, steps=20),
    )  # fmt: skip
    copy_lr: float = hyper(1e-3, "step size of the copy", RELEASED)
    zeta: float = hyper(
        1.0,
        "ζ: weight of the divergence from the copy",
        "ours: (a) bounds the evidence",
        paper=10.0,
        search=(0.1, 10.0, "log"),
    )
    inner: int = hyper(5, "steps of the personal Gaussian on each batch", RELEASED)
    solver: str = hyper("proximal", "steps on the divergences", "ours: stable", SOLVERS, paper="gradient")
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

    def bound(self, leaves: Params, q: Params, copy: Params, batch: Batch, here: Here) -> tuple[Tensor, Params]:
        """The mean loss of one draw, with the divergence's share unless that has steps of its own; new buffers."""
        q = {**q, **leaves}
        value, buffers = self.loss(drawn(q, here.key, self.spread), batch, here)
        if self.solver == "proximal":
            return value, buffers
        return value + self.zeta / here.n.clamp(min=1) * divergence(q, copy), buffers  # (a)

    def personal_steps(
        self, q: Params, copy: Params, opt: Tree, batch: Batch, here: Here
    ) -> tuple[Params, Tree, Tensor]:
        """q_k and its optimiser after the steps on a batch, and the mean of what they minimised."""
        values = []
        for number in range(self.inner):
            now = replace(here, key=fold(here.key, number))
            slope, (value, buffers) = grad_and_value(self.bound, has_aux=True)(moving(q, here), q, copy, batch, now)
            moved, opt = self.local.make_optimiser().update(slope, opt, moving(q, here))
            q = {**q, **buffers, **moved}
            if self.solver == "proximal":
                q = personal_step(q, copy, self.local.lr * self.zeta / here.n.clamp(min=1))  # (a)
            values.append(value.detach())
        return q, opt, torch.stack(values).mean()

    def fitted(self, copy: Params, q: Params, opt: Tree, here: Here) -> tuple[Params, Tree]:
        """The copy and its optimiser after a step on KL(q ‖ copy)."""
        if self.solver == "proximal":
            return copy_step(copy, q, self.copy_lr), opt  # (b)
        slope = grad(lambda leaves: divergence(q, {**copy, **leaves}))(moving(copy, here))
        moved, opt = Adam(self.copy_lr).update(slope, opt, moving(copy, here))  # (b)
        return {**copy, **moved}, opt

    def passes(self) -> tuple[Pass, ...]:
        def begin(carry: Carry, here: Here) -> Carry:
            mine = self.local.make_optimiser().open(moving(second_of(carry.params), here))
            other = Adam(self.copy_lr).open(moving(first_of(carry.params), here)) if self.solver == "gradient" else ()
            loss = carry.kept.get("loss", torch.stack((here.n * 0, here.n * 0)))
            return replace(carry, opt=(mine, other), kept={**carry.kept, "loss": loss})

        def step(carry: Carry, batch: Batch, here: Here) -> Carry:
            q, copy, (mine, other), count = second_of(carry.params), first_of(carry.params), carry.opt, batch.mask.sum()
            q, mine, value = self.personal_steps(q, copy, mine, batch, here)
            copy, other = self.fitted(copy, q, other, here)
            new, loss = {**copy, **as_second(q)}, carry.kept["loss"] + torch.stack((value * count, count))
            return Carry({n: new[n] for n in carry.params}, {**carry.kept, "loss": loss}, (mine, other))

        close = lambda carry, here: replace(carry, opt=())  # noqa: E731
        copies = 20 + held_by(self.local.make_optimiser())
        return (Pass(step, open=begin, close=close, copies=copies, **self.local.schedule()),)

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        q, copy = second_of(carry.params), first_of(carry.params)
        buffers = {n: p for n, p in q.items() if n.removeprefix(RHO) not in here.shared.rho}
        return {"copy": Mean(torch.ones_like(here.n), {**copy, **buffers})}, q

    def combine(self, state: State, total: Message, now: Now) -> State:
        mean, old = total["copy"].mean(), joined(state.params, state.rho)
        rate = {n: self.beta if n.removeprefix(RHO) in state.rho else 1.0 for n in mean}  # buffers: all the way
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

    def remarks(self, model: Network) -> tuple[str, ...]:
        said = []
        if not self.zeta:
            said.append("pFedBayes with zeta = 0 has no prior: every client trains alone from where it joined")
        if self.solver == "gradient" and self.local.optimiser != "adam":
            said.append(
                f"pFedBayes takes gradient steps by {self.local.optimiser} on a divergence of curvature 1/σ²: they may "
                "run away; solver=proximal or the optimiser adam do not"
            )
        return tuple(said)
