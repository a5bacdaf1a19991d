"""APFL: every client mixes the shared model with one of its own, and learns how much of each it takes.

Client k keeps a model v_k and a weight α_k in [0, 1]; it predicts with the mixture v̄_k = α_k v_k + (1 − α_k) w   # (1)
of parameters. In a round it trains a copy θ_k of w as FedAvg does, and beside it, step by step on the same batches,

    θ_k ← θ_k − η ∇f_k(θ_k)
    v_k ← v_k − η ∇_v f_k(v̄_k),       ∇_v f_k(v̄_k) = α_k ∇f_k(v̄_k),   v̄_k mixed with θ_k                # (2)
    α_k ← α_k − η ⟨v_k − θ_k, ∇f_k(v̄_k)⟩, clipped to [0, 1]                                              # (3)

where all three gradients are taken before anything moves. The server averages the θ_k: it is FedAvg, whatever α.

Reference: Deng, Kamani and Mahdavi, "Adaptive personalized federated learning", 2020, arXiv:2003.13461, Algorithm 1.

Differs from the paper: the server's mean is weighted by samples, as FedAvg's (the paper counts every client once);
epochs of batches instead of τ steps; α moves at every step, by plain descent with the clients' step size whatever their
optimiser. The authors' code takes the gradient of (3) as a mixture of the gradients at v and w and adds 0.02 α to it;
other libraries mix outputs instead of parameters, or overwrite v by the mixture: here it is as printed. α₀ = 0.5, for
the paper tries several. Running statistics of batch norm are not mixed: those of v̄_k are what v̄_k has seen, and a
client keeps them. A client's v begins as the broadcast of its first contact, so a newcomer predicts with w.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
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
    Optimiser,
    Params,
    Pass,
    Point,
    Training,
    Tree,
    as_second,
    averaged,
    check_fields,
    descend,
    first_of,
    fit,
    holding,
    hyper,
    log_predictive,
    record,
    second_network,
    second_of,
    trainable,
    weighted,
    within,
)

ALPHA = "mixing weight"  # α_k lies beside the leaves of the second network, v_k
SOURCE = "FL-bench; PFLlib has 1.0, FedRep's code 0.75"
TWO = 4  # more copies of the leaves that a step holds: there are two networks, their gradients, and the mixture


@record
class State:
    params: Params  # w


@record
class Personal:
    model: Params  # v_k
    alpha: Tensor  # α_k ()


def mixture(params: Params, model: Network) -> Params:
    """v̄_k: the trainable leaves of both networks mixed; the rest is the second one's."""
    mine = second_of(params)
    alpha = mine[ALPHA]
    mixed = {n: alpha * mine[n] + (1 - alpha) * params[n] for n in model.leaves if n in model.trainable}  # (1)
    return {n: mixed[n] if n in mixed else mine[n] for n in model.leaves}


def with_alpha(names: Iterable[str], model: Network) -> list[str]:
    """Partition: the second network and the mixing weight."""
    return [*second_network(names, model), *as_second({ALPHA: torch.empty(0)})]


@dataclass(frozen=True)
class Mixing:
    """An optimiser for the second network, and plain descent within [0, 1] for the mixing weight."""

    inner: Optimiser
    lr: float

    def open(self, params: Tree) -> Tree:
        return self.inner.open(_rest(params))

    def update(self, gradient: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        moved, state = self.inner.update(_rest(gradient), state, _rest(params))  # (2)
        alpha = {n: (params[n] - self.lr * gradient[n]).clamp(0, 1) for n in params if n not in moved}  # (3)
        return {**moved, **alpha}, state


def _rest(params: Params) -> Params:
    return {n: p for n, p in params.items() if n not in as_second({ALPHA: p})}


def side_by_side(first: Pass, second: Pass) -> Pass:
    """Two passes over the same batches, each step from where both were; `second` moves the second network alone."""

    def begin(carry: Carry, here: Here) -> Carry:
        opened = first.open(carry, here), second.open(carry, here)
        return replace(opened[1], opt=tuple(each.opt for each in opened))

    def step(carry: Carry, batch: Batch, here: Here) -> Carry:
        one = first.step(replace(carry, opt=carry.opt[0]), batch, here)
        two = second.step(replace(carry, opt=carry.opt[1]), batch, here)
        params = {**first_of(one.params), **as_second(second_of(two.params))}
        return Carry(params, two.kept, (one.opt, two.opt))  # the loss that is reported is of what predicts

    both = replace(first, open=begin, step=step, close=lambda carry, here: replace(carry, opt=()))
    return holding((both,), copies=TWO + second.copies - Pass.copies)[0]


@dataclass(frozen=True)
class APFL(Method):
    label: ClassVar[str] = "APFL"
    reference: ClassVar[str] = "Deng, Kamani and Mahdavi, 2020"
    absent: ClassVar[str] = "cohort only: an absent client keeps its model and its mixing weight"
    scored: ClassVar[Point] = "received"

    local: Training = hyper(Training(), "how the clients train both models")
    alpha: float = hyper(0.5, "α: share of the client's own model, at first", SOURCE, search=(0.1, 0.9, "linear"))
    adaptive: bool = hyper(True, "whether clients learn α; false: it stays", "Deng et al. 2020")
    loss: Loss = fit  # a wrapper may replace it

    def __post_init__(self) -> None:
        check_fields(self)
        within(self, alpha=(0, 1))

    def init(self, model: Network, params: Params, facts: Facts) -> State:
        return State(params)

    def remarks(self, model: Network) -> tuple[str, ...]:
        if self.adaptive or 0 < self.alpha < 1:
            return ()
        what = "the clients' models stay unused: this is FedAvg" if not self.alpha else "every client trains alone"
        return (f"APFL with α = {self.alpha:g} that is not learnt: {what}",)

    def join(self, here: Here) -> Personal:
        return Personal(dict(here.shared.params), torch.full_like(here.n, self.alpha))

    def start(self, here: Here) -> Params:
        mine = {**here.personal.model, ALPHA: here.personal.alpha}
        return {**here.shared.params, **as_second(mine)}

    def mixed_loss(self, params: Params, batch: Batch, here: Here) -> tuple[Tensor, Params]:
        value, buffers = self.loss(mixture(params, here.model), batch, here)
        return value, as_second(buffers)

    def passes(self) -> tuple[Pass, ...]:
        how, trains = self.local.make_optimiser(), second_network
        if self.adaptive:
            how, trains = Mixing(how, self.local.lr), with_alpha
        mixed = descend(self.mixed_loss, how, trains, **self.local.schedule())
        return (side_by_side(self.local.descend(self.loss, trainable), mixed),)

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        mine = second_of(carry.params)
        kept = Personal({n: mine[n] for n in here.personal.model}, mine[ALPHA])
        return weighted(first_of(carry.params), here), kept

    def combine(self, state: State, total: Message, now: Now) -> State:
        return State(averaged(state.params, total))

    def predict(self, carry: Carry, x: Tensor, here: Here) -> Tensor:
        return log_predictive(mixture(carry.params, here.model), x, here)
