"""pFedMe: personal models around a common one, which learns from where they go (Moreau envelopes).

The common model minimises the mean of the envelopes F_k(w) = min_θ f_k(θ) + (λ/2) ‖θ − w‖², whose gradient at w is
λ (w − θ_k(w)), where θ_k(w) is the minimiser: the client's personal model. For every batch, from w_k = w:

    θ_k ≈ argmin_θ f_batch(θ) + (λ/2) ‖θ − w_k‖²       K steps of size η_p from w_k                           # (a)
    w_k ← w_k − η λ (w_k − θ_k)                                                                               # (b)
    server   w ← (1 − β) w + β Σ_k p_k w_k                                                                    # (c)

θ_k stays with its client and predicts.

Reference: Dinh, Tran and Nguyen, "Personalized federated learning with Moreau envelopes", NeurIPS 2020, Algorithm 1.
The letters are ours.

Differs from the paper: epochs of batches instead of R of them (`local.steps` is R); weights p_k by samples, as the
authors' code (the paper averages equally). (b) is a step of the client's optimiser along λ (w_k − θ_k): with SGD it is
the paper's; momentum, Adam, decay and clip then mean what they mean elsewhere. The paper does not say where the K steps
begin; the authors' code goes on from the θ_k of the visit's batch before (`warm`). Its µ, a decay of θ, is left out.
Running statistics of batch norm are renewed by the K steps, and are both models'; their mean has no β. A newcomer has θ
= w until it adapts, which is the work of a round. In FL-bench the personal model is not renewed after training, and the
first one is scored; here θ_k is what the last batch left.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from posterity.core import (
    STATIC,
    Batch,
    Carry,
    Facts,
    Here,
    Loss,
    Message,
    Method,
    Network,
    Now,
    Own,
    Params,
    Pass,
    Personal,
    Point,
    Training,
    as_second,
    averaged,
    check_fields,
    directed,
    first_network,
    first_of,
    fit,
    hyper,
    log_predictive,
    proximal,
    record,
    second_of,
    weighted,
    within,
)

AUTHORS = "authors' code"


@record
class State:
    params: Params  # w
    buffers: frozenset[str] = field(metadata={STATIC: True})  # names of leaves that have no β


@record
class Shared:
    params: Params


@dataclass(frozen=True)
class PFedMe(Method):
    label: ClassVar[str] = "pFedMe"
    reference: ClassVar[str] = "Dinh et al., NeurIPS 2020"
    absent: ClassVar[str] = "cohort only: an absent client keeps its model"
    scored: ClassVar[Point] = "received"

    local: Training = hyper(Training(), "how the clients train; lr is η", paper=Training(lr=0.005, steps=20, batch=20))
    lam: float = hyper(15.0, "λ: pull of the personal model to the local one", AUTHORS, search=(1.0, 50.0, "log"))
    prox_steps: int = hyper(5, "K: steps of the personal model for a batch", AUTHORS)
    prox_lr: float = hyper(
        0.05, "η_p: step size of the personal model", "ours: K steps come near the minimiser", paper=0.01
    )
    warm: bool = hyper(False, "begin the K steps where those of the batch before ended", "ours; true in " + AUTHORS)
    beta: float = hyper(1.0, "β: step size of the server", AUTHORS)
    loss: Loss = fit  # a wrapper may replace it

    def __post_init__(self) -> None:
        check_fields(self)
        within(self, lam=(0, None), prox_steps=(1, None), prox_lr=(0, None), beta=(0, None))

    def init(self, model: Network, params: Params, facts: Facts) -> State:
        return State(params, model.buffers)

    def offer(self, state: State, client: Tensor | None) -> tuple[Shared, Own]:
        return Shared(state.params), ()

    def join(self, here: Here) -> Personal:
        return dict(here.shared.params)

    def start(self, here: Here) -> Params:
        return {**here.shared.params, **as_second(here.personal)}

    def direction(self, moving: Params, still: Params, batch: Batch, here: Here) -> tuple[Params, Tensor, Params]:
        """The gradient of the envelope at the local model, and the personal model that it comes from."""
        begin = moving
        if self.warm:
            begin = {n: torch.where(here.step > 0, second_of(still)[n], w) for n, w in moving.items()}
        theta, value, buffers = proximal(
            self.loss, begin, moving, first_of(still), batch, here, self.lam, self.prox_lr, self.prox_steps
        )  # (a)
        slope = {n: self.lam * (w - theta[n]) for n, w in moving.items()}  # (b)
        return slope, value, {**buffers, **as_second({**theta, **buffers})}

    def passes(self) -> tuple[Pass, ...]:
        how = self.local.schedule()
        return (directed(self.direction, self.local.make_optimiser(), first_network, copies=12, **how),)

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        return weighted(first_of(carry.params), here), second_of(carry.params)

    def combine(self, state: State, total: Message, now: Now) -> State:
        mean = total["params"].mean()
        mixed = averaged(state.params, total, self.beta)  # (c)
        return State({**mixed, **{n: p for n, p in mean.items() if n in state.buffers}}, state.buffers)

    def predict(self, carry: Carry, x: Tensor, here: Here) -> Tensor:
        return log_predictive(second_of(carry.params), x, here)

    def remarks(self, model: Network) -> tuple[str, ...]:
        said = []
        if not self.lam:
            said.append("pFedMe with lam = 0 never moves the common model")
        if self.lam * self.prox_lr >= 2:
            said.append(
                f"pFedMe's personal models run away from their centre: lam · prox_lr = {self.lam * self.prox_lr:g} "
                "should stay below 1; lower prox_lr"
            )
        if self.lam * self.local.lr > 1 and self.local.optimiser == "sgd":
            said.append(
                f"pFedMe's local model steps beyond the personal one: lam · lr = {self.lam * self.local.lr:g} "
                "should be at most 1; lower lr"
            )
        return tuple(said)
