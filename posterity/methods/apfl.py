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

from posterity import core

ALPHA = "mixing weight"  # α_k lies beside the leaves of the second network, v_k
SOURCE = "FL-bench; PFLlib has 1.0, FedRep's code 0.75"
TWO = 4  # more copies of the leaves that a step holds: there are two networks, their gradients, and the mixture


@core.record
class Personal:
    model: core.Params  # v_k
    alpha: Tensor  # α_k ()


def mixture(params: core.Params, model: core.Network) -> core.Params:
    """v̄_k: the trainable leaves of both networks mixed; the rest is the second one's."""
    mine = core.second_of(params)
    alpha = mine[ALPHA]
    mixed = {n: alpha * mine[n] + (1 - alpha) * params[n] for n in model.leaves if n in model.trainable}  # (1)
    return {n: mixed[n] if n in mixed else mine[n] for n in model.leaves}


def with_alpha(names: Iterable[str], model: core.Network) -> list[str]:
    """Partition: the second network and the mixing weight."""
    return [*core.second_network(names, model), *core.as_second({ALPHA: torch.empty(0)})]


@dataclass(frozen=True)
class Mixing:
    """An optimiser for the second network, and plain descent within [0, 1] for the mixing weight."""

    inner: core.Optimiser
    lr: float

    def open(self, params: core.Tree) -> core.Tree:
        return self.inner.open(_rest(params))

    def update(self, gradient: core.Tree, state: core.Tree, params: core.Tree) -> tuple[core.Tree, core.Tree]:
        moved, state = self.inner.update(_rest(gradient), state, _rest(params))  # (2)
        alpha = {n: (params[n] - self.lr * gradient[n]).clamp(0, 1) for n in params if n not in moved}  # (3)
        return {**moved, **alpha}, state


def _rest(params: core.Params) -> core.Params:
    return {n: p for n, p in params.items() if n not in core.as_second({ALPHA: p})}


def side_by_side(first: core.Pass, second: core.Pass) -> core.Pass:
    """Two passes over the same batches, each step from where both were; `second` moves the second network alone."""

    def begin(carry: core.Carry, here: core.Here) -> core.Carry:
        opened = first.open(carry, here), second.open(carry, here)
        return replace(opened[1], opt=tuple(each.opt for each in opened))

    def step(carry: core.Carry, batch: core.Batch, here: core.Here) -> core.Carry:
        one = first.step(replace(carry, opt=carry.opt[0]), batch, here)
        two = second.step(replace(carry, opt=carry.opt[1]), batch, here)
        params = {**core.first_of(one.params), **core.as_second(core.second_of(two.params))}
        return core.Carry(params, two.kept, (one.opt, two.opt))  # the loss that is reported is of what predicts

    both = replace(first, open=begin, step=step, close=lambda carry, here: replace(carry, opt=()))
    return core.holding((both,), copies=TWO + second.copies - core.Pass.copies)[0]


@dataclass(frozen=True)
class APFL(core.Method):
    label: ClassVar[str] = "APFL"
    reference: ClassVar[str] = "Deng, Kamani and Mahdavi, 2020"
    absent: ClassVar[str] = "cohort only: an absent client keeps its model and its mixing weight"
    scored: ClassVar[core.Point] = "received"

    local: core.Training = core.hyper(core.Training(), "how the clients train both models")
    alpha: float = core.hyper(
        0.5, "α: share of the client's own model, at first", SOURCE, search=(0.1, 0.9, "linear"), ge=0, le=1
    )
    adaptive: bool = core.hyper(True, "whether clients learn α; false: it stays", "Deng et al. 2020")
    loss: core.Loss = core.fit  # a wrapper may replace it

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> core.Leaves:
        return core.Leaves(params)

    def remarks(self, model: core.Network) -> tuple[str, ...]:
        if self.adaptive or 0 < self.alpha < 1:
            return ()
        what = "the clients' models stay unused: this is FedAvg" if not self.alpha else "every client trains alone"
        return (f"APFL with α = {self.alpha:g} that is not learnt: {what}",)

    def join(self, here: core.Here) -> Personal:
        return Personal(dict(here.shared.params), torch.full_like(here.n, self.alpha))

    def start(self, here: core.Here) -> core.Params:
        mine = {**here.personal.model, ALPHA: here.personal.alpha}
        return {**here.shared.params, **core.as_second(mine)}

    def mixed_loss(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        value, buffers = self.loss(mixture(params, here.model), batch, here)
        return value, core.as_second(buffers)

    def passes(self) -> tuple[core.Pass, ...]:
        how, trains = self.local.make_optimiser(), core.second_network
        if self.adaptive:
            how, trains = Mixing(how, self.local.lr), with_alpha
        mixed = core.descend(self.mixed_loss, how, trains, **self.local.schedule())
        return (side_by_side(self.local.descend(self.loss, core.trainable), mixed),)

    def message(self, carry: core.Carry, here: core.Here) -> tuple[core.Message, Personal]:
        mine = core.second_of(carry.params)
        kept = Personal({n: mine[n] for n in here.personal.model}, mine[ALPHA])
        return core.weighted(core.first_of(carry.params), here), kept

    def combine(self, state: core.Leaves, total: core.Message, now: core.Now) -> core.Leaves:
        return core.Leaves(core.averaged(state.params, total))

    def predict(self, carry: core.Carry, x: Tensor, here: core.Here) -> Tensor:
        return core.log_predictive(mixture(carry.params, here.model), x, here)
