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

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from posterity import core

ALPHA = f"{core.PREFIX}mixing weight"  # α_k lies beside the leaves of the second network, v_k
SOURCE = "FL-bench; PFLlib has 1.0, FedRep's code 0.75"
TWO = 4  # more copies of the leaves that a step holds: there are two networks, their gradients, and the mixture


@core.record
class Personal:
    model: core.Params  # v_k
    alpha: Tensor  # α_k ()


def mixture(params: core.Params, model: core.Network) -> core.Params:
    """v̄_k: the trainable leaves of both networks mixed; the rest is the second one's."""
    mine, alpha = core.second_of(params), params[ALPHA]
    mixed = {n: alpha * mine[n] + (1 - alpha) * params[n] for n in model.leaves if n in model.trainable}  # (1)
    return {n: mixed[n] if n in mixed else mine[n] for n in model.leaves}


@dataclass(frozen=True)
class Bounded:
    """Plain descent within [0, 1], for the mixing weight."""

    lr: float

    def open(self, params: core.Tree) -> core.Tree:
        return ()

    def update(self, gradient: core.Tree, state: core.Tree, params: core.Tree) -> tuple[core.Tree, core.Tree]:
        return core.tree_map(lambda a, g: (a - self.lr * g).clamp(0, 1), params, gradient), ()  # (3)


def group(name: str) -> int:
    """The leaves of w, of v, and α: an optimiser for each."""
    return 2 if name == ALPHA else int(name.startswith(core.PREFIX))


@dataclass(frozen=True)
class APFL(core.Method):
    label = "APFL"
    reference = "Deng, Kamani and Mahdavi, 2020"
    absent = "cohort only: an absent client keeps its model and its mixing weight"

    local: core.Training = core.hyper(core.Training(), "how the clients train both models")
    alpha: float = core.hyper(0.5, "α: first share of v_k", SOURCE, search=(0.1, 0.9, "linear"), ge=0, le=1)
    adaptive: bool = core.hyper(True, "whether clients learn α; false: it stays", "Deng et al. 2020")
    loss: core.Loss = core.fit  # a wrapper may replace it

    combine = core.combine_mean

    def join(self, here: core.Here) -> Personal:
        return Personal(dict(here.shared.params), torch.full_like(here.n, self.alpha))

    def start(self, here: core.Here) -> core.Params:
        return {**here.shared.params, **core.as_second(here.personal.model), ALPHA: here.personal.alpha}

    def mixed_loss(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        value, buffers = self.loss(mixture(params, here.model), batch, here)
        return value, core.as_second(buffers)

    def slopes(self, moving: core.Params, still: core.Params, batch: core.Batch, here: core.Here) -> core.Update:
        """Of f_k at θ, and of the mixture by v and α, both before anything moves; the loss is of what predicts."""
        theta, mine = core.first_of(moving), core.as_second(core.second_of(moving))
        slope, _, buffers = core.slope_of(self.loss, theta, still, batch, here)
        own, value, more = core.slope_of(self.mixed_loss, mine, {**still, **theta}, batch, here)  # (2)
        return {**slope, **own}, value, {**buffers, **more}

    def trains(self, names: Iterable[str], model: core.Network) -> list[str]:
        moving = core.trainable(names, model) + core.second_network(names, model)
        return [*moving, ALPHA] if self.adaptive else moving

    def passes(self) -> core.Passes:
        how = self.local.make_optimiser()
        apart = core.Groups(group, (how, how, Bounded(self.local.lr)))
        both = core.directed(self.slopes, apart, self.trains, **self.local.schedule())
        return core.holding((both,), copies=TWO + core.held_by(how))

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        mine = core.second_of(carry.params)
        kept = Personal({n: mine[n] for n in here.personal.model}, carry.params[ALPHA])
        return core.weighted(core.first_of(carry.params), here), kept

    def predict(self, carry: core.Carry, x: Tensor, here: core.Here) -> Tensor:
        return core.log_predictive(mixture(carry.params, here.model), x, here)
