"""FedALA: before a client trains, it learns for each weight of its last layers how much of the broadcast it takes.

Client k keeps the last p layers θ_k of its trained model and weights W_k in [0, 1], one for each of their numbers. It
starts from the broadcast w below, and in the last p layers from

    θ̂ = θ_k + (w − θ_k) ⊙ W_k                                                                                # (1)

First W_k descends on its loss, over a share s of its samples, everything else at rest,

    W_k ← W_k − η_W ∇_θ̂ f_k(θ̂) ⊙ (w − θ_k), clipped to [0, 1]                                                 # (2)

and then the client trains all of θ̂ as FedAvg does and sends it; the server averages.

Reference: Zhang, Hua, Wang, Song, Xue, Ma and Guan, "FedALA: Adaptive local aggregation for personalized federated
learning", AAAI 2023.

Differs from the paper: the first time that a client learns W (its second visit: at the first, θ_k = w) the paper goes
on until the losses of ten epochs vary by less than 0.1. How many steps a visit has cannot depend on a loss, so here it
is `first_epochs` epochs, and one epoch later. As all clients of a round walk together, `first_epochs` are walked in
every round, and those that a client does not need rest: hence one by default, while the authors' rule never stops
before its eleventh epoch. The samples of the share s are drawn anew for each epoch, and not once for a visit. A client
keeps its last p layers only, for nothing else of θ_k is read. Scored with the broadcast just received, the W of the
client's last visit are used. A newcomer has θ_k = w and so predicts with w. Running statistics of batch norm are the
broadcast's until the client trains.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import grad

from posterity import core

AUTHORS = "authors' code"


@core.record
class Personal:
    model: core.Params  # θ_k, of the last p layers
    weights: core.Params  # W_k
    visits: Tensor  # () how often the client has trained


def last_layers(model: core.Network, count: int) -> list[str]:
    """The trainable leaves of the last `count` layers; leaves of one module (weight and bias) are a layer."""
    names = [n for n in model.leaves if n in model.trainable]
    layers = list(dict.fromkeys(n.rpartition(".")[0] for n in names))
    last = set(layers[-count:])
    return [n for n in names if n.rpartition(".")[0] in last]


def between(mine: core.Params, broadcast: core.Params, weights: core.Params) -> core.Params:
    """θ̂: bit for bit θ_k where a weight is 0 and w where it is 1."""
    return {n: torch.lerp(mine[n], broadcast[n], weights[n]) for n in weights}  # (1)


@dataclass(frozen=True)
class FedALA(core.Method):
    label = "FedALA"
    reference = "Zhang et al., AAAI 2023"
    absent = "cohort only: an absent client keeps its last layers and their weights"

    local: core.Training = core.hyper(core.Training(), "how the clients train", paper=core.Training(lr=0.005))
    layers: int = core.hyper(1, "p: how many of the last layers, counted by modules with weights", AUTHORS, ge=1)
    weight_lr: float = core.hyper(1.0, "η_W: step size of the weights W", AUTHORS, search=(0.1, 10.0, "log"), ge=0)
    share: float = core.hyper(0.8, "s: share of a client's samples that W learns from", AUTHORS, gt=0, le=1)
    first_epochs: int = core.hyper(1, "epochs for W at first; one later", "ours: see the docstring", paper=11, ge=1)
    loss: core.Loss = core.fit  # a wrapper may replace it

    combine = core.combine_mean

    def join(self, here: core.Here) -> Personal:
        mine = {n: here.shared.params[n] for n in last_layers(here.model, self.layers)}
        return Personal(mine, core.tree_map(torch.ones_like, mine), torch.zeros_like(here.n))

    def start(self, here: core.Here) -> core.Params:
        mixed = between(here.personal.model, here.shared.params, here.personal.weights)
        return {n: mixed.get(n, p) for n, p in here.shared.params.items()}

    def learning(self, batch: core.Batch, here: core.Here) -> core.Batch:
        """The rows of a batch that W learns from: the first ⌈s n⌉ of an epoch, in epochs that this client needs."""
        size = self.local.batch
        steps = torch.div(here.n + size - 1, size, rounding_mode="floor").clamp(min=1).to(here.step)
        row = here.step % steps * size + torch.arange(len(batch.mask), device=batch.mask.device)
        epochs = torch.where(here.personal.visits > 1, 1, self.first_epochs)
        used = (row < torch.ceil(self.share * here.n)) & (here.step // steps < epochs)
        return replace(batch, mask=batch.mask * used.to(batch.mask), padded=True)

    def learn_weights(self) -> core.Pass:
        def begin(carry: core.Carry, here: core.Here) -> core.Carry:
            return replace(carry, kept={**carry.kept, "weights": here.personal.weights})

        def step(carry: core.Carry, batch: core.Batch, here: core.Here) -> core.Carry:
            some, weights = self.learning(batch, here), carry.kept["weights"]

            def lost(weights: core.Params) -> Tensor:
                mixed = between(here.personal.model, here.shared.params, weights)
                return self.loss({**carry.params, **mixed}, some, here)[0]

            slope = grad(lost)(weights)
            moved = core.tree_map(lambda w, g: (w - self.weight_lr * g).clamp(0, 1), weights, slope)  # (2)
            return replace(carry, kept={**carry.kept, "weights": moved})

        def close(carry: core.Carry, here: core.Here) -> core.Carry:
            mixed = between(here.personal.model, here.shared.params, carry.kept["weights"])
            return replace(carry, params={**carry.params, **mixed})

        return core.Pass(step, begin, close, epochs=self.first_epochs, batch=self.local.batch, learns=False)

    def passes(self) -> core.Passes:
        return self.learn_weights(), self.local.descend(self.loss)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        mine = {n: carry.params[n] for n in here.personal.model}
        return core.weighted(carry.params, here), Personal(mine, carry.kept["weights"], here.personal.visits + 1)
