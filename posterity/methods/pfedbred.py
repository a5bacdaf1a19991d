"""pFedBreD: personal models around a prior mean that every client reads off its copy of the common model.

The prior of a client's model belongs to an exponential family, whose Bregman divergence is here half a squared
distance (a Gaussian). For every batch, with w_k the client's copy of w, θ_k its model and l_k the w_k that its last
visit ended with:

    lg    µ = w_k − η_p ∇f(w_k)                                                                               # (a)
    meg   µ = w_k − η_p (l_k − θ_k)                                                                           # (b)
    mh    w_k ← w_k − α ∇f_B′(w_k − α ∇f_B(w_k)) on two batches, then as meg, on B′                           # (c)
    θ_k ≈ argmin_θ f(θ) + (λ/2) ‖θ − µ‖²,    K steps of size η_θ from µ (lg) or from w_k                      # (d)
    w_k ← w_k − η λ (µ − θ_k)                                                                                 # (e)
    server   w ← (1 − β) w + β Σ_k p_k w_k                                                                    # (f)

θ_k and l_k stay with their client, and θ_k predicts. With η_p = 0, lg and meg are pFedMe.

Reference: Shi, Zhang, Shu, Li, Shen and Ma, "PRIOR: Personalized prior for reactivating the information overlooked in
federated learning", NeurIPS 2023. The letters are ours: the paper's own numbers were not at hand.

Differs from the paper: epochs of batches instead of R of them (`local.steps` is R), and mh takes twice
`local.batch` samples for its two; where a client has a single sample left, (c) does nothing and (d) has that sample.
(e) is a step of the client's optimiser along λ (µ − θ_k): with SGD it is the paper's. Other generators than the
Gaussian are left out, as in the authors' code, whose second one is the first under another name. Running statistics of
batch norm are renewed by the steps of (c) and (d), and are both models'; their mean has no β. θ_k and l_k begin at the
first broadcast that a client receives, so a newcomer has θ = w until it adapts, which is the work of a round.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.func import grad

from posterity import core
from posterity.methods.pfedme import PFedMe

AUTHORS = "authors' code"
AUTHORS_TRAINING = core.Training(lr=0.01, steps=20, batch=20)
PRIORS = ("mh", "meg", "lg")
AHEAD = 1  # folded into the key for the meta-step: draws of its own


def second_batch(batch: core.Batch) -> core.Batch:
    """B′, the second of the two batches that `meta` deals; the first where the second is empty."""
    first, second = core.deal(batch, 1, 1)
    some, size = second.mask.sum() > 0, len(second.mask)
    x, y, mask = (torch.where(some, getattr(second, n), getattr(first, n)[:size]) for n in ("x", "y", "mask"))
    return core.Batch(x, y, mask)


@dataclass(frozen=True)
class PFedBreD(core.Method):
    label = "pFedBreD"
    reference = "Shi et al., NeurIPS 2023"
    absent = "cohort only: an absent client keeps its models"

    local: core.Training = core.hyper(core.Training(), "how the clients train; lr is η", paper=AUTHORS_TRAINING)
    prior: str = core.hyper("mh", "how the prior mean is read off the common model", "the paper's main method", PRIORS)
    lam: float = core.hyper(
        15.0, "λ: pull of the personal model to µ", AUTHORS + "; 30 for its DNN", search=(1.0, 50.0, "log"), ge=0
    )
    eta_p: float = core.hyper(0.05, "η_p: step from the common model to the prior mean", AUTHORS, ge=0)
    alpha: float = core.hyper(0.01, "α: both steps of mh", AUTHORS, ge=0)
    prox_steps: int = core.hyper(5, "K: steps of the personal model for a batch", AUTHORS, ge=1)
    prox_lr: float = core.hyper(
        0.05, "η_θ: step size of the personal model", "ours: K steps come near the minimiser", paper=0.01, ge=0
    )
    beta: float = core.hyper(1.0, "β: step size of the server", AUTHORS, ge=0)
    loss: core.Loss = core.fit  # a wrapper may replace it

    predict = PFedMe.predict
    remarks = PFedMe.remarks

    def kept(self, theta: core.Params, local: core.Params, here: core.Here) -> core.Personal:
        """θ_k, and l_k where the prior looks at it."""
        last = {n: local[n] for n in core.trainable(local, here.model)}
        return {"theta": theta} if self.prior == "lg" else {"theta": theta, "last": last}

    def join(self, here: core.Here) -> core.Personal:
        return self.kept(dict(here.shared.params), here.shared.params, here)

    def start(self, here: core.Here) -> core.Params:
        return {**here.shared.params, **core.as_second(here.personal["theta"])}

    def centre(self, moving: core.Params, still: core.Params, batch: core.Batch, here: core.Here) -> core.Params:
        """µ, the mean of the prior."""
        if self.prior == "lg":
            pull = grad(lambda m: self.loss({**core.first_of(still), **m}, batch, here)[0])(moving)  # (a)
        else:
            theta, last = core.second_of(still), here.personal["last"]
            pull = {n: last[n] - theta[n] for n in moving}  # (b)
        return core.tree_map(lambda w, p: w - self.eta_p * p, moving, pull)  # (a), (b)

    def direction(self, moving: core.Params, still: core.Params, batch: core.Batch, here: core.Here) -> core.Update:
        """Where the local model goes, and the personal model that says so."""
        centre = self.centre(moving, still, batch, here)
        begin = centre if self.prior == "lg" else moving
        theta, value, buffers = core.proximal(
            self.loss, begin, centre, core.first_of(still), batch, here, self.lam, self.prox_lr, self.prox_steps
        )  # (d)
        slope = core.tree_map(lambda m, p: self.lam * (m - p), centre, theta)  # (e)
        return slope, value, {**buffers, **core.as_second({**theta, **buffers})}

    def passes(self) -> core.Passes:
        how: dict[str, Any] = {**self.local.schedule(), "copies": 12}
        if self.prior == "mh":
            how["batch"] = 2 * self.local.batch
        train = core.directed(self.direction, self.local.make_optimiser(), core.first_network, **how)
        ahead = core.meta(self.loss, self.loss, self.alpha, core.SGD(self.alpha), core.first_network, order="first")

        def step(carry: core.Carry, batch: core.Batch, here: core.Here) -> core.Carry:
            met = ahead.step(replace(carry, opt=()), batch, replace(here, key=core.fold(here.key, AHEAD)))  # (c)
            return train.step(replace(carry, params=met.params), second_batch(batch), here)

        return (replace(train, step=step) if self.prior == "mh" else train,)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        local = core.first_of(carry.params)
        return core.weighted(local, here), self.kept(core.second_of(carry.params), local, here)

    def combine(self, state: core.Leaves, total: core.Message, now: core.Now) -> core.Leaves:
        return core.Leaves(core.averaged(state.params, total, self.beta, now.model))  # (f)
