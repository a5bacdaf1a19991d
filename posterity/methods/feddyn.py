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
newcomer or a test set without a client gets. It is needed for scoring alone, so the bytes of training do not count it.

Reference: Acar, Zhao, Matas Navarro, Mattina, Whatmough and Saligrama, "Federated learning based on dynamic
regularization", ICLR 2021, Algorithm 1. The numbers of the equations are ours; the paper's state is −α h_k.

Differs from the paper: no step-size decay over rounds; the gradient-norm clip, where one is set, covers the penalty
too. The penalty is squared and quadratic (one public code takes the root of it, another leaves the quadratic part to
weight decay). Drifts cover trainable leaves, never the buffers of batch norm, whose plain mean is taken. Fine-tuning
(`adapt`) is without penalty: it looks for the client's own minimum.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from posterity import core

AUTHORS_TRAINING = core.Training(lr=0.1, epochs=5, batch=50, weight_decay=1e-3, clip=10.0)
BALANCES = ("clients", "samples")  # whose mean loss is minimised


@core.record
class State:
    params: core.Params  # θ̄
    drift: core.Params  # h̄, for every trainable leaf
    slope: core.Params  # FedDC's g; {} for FedDyn
    size: core.Tree  # N / K, where samples weigh
    clients: int = field(metadata={core.STATIC: True})  # K


@core.record
class Shared:
    params: core.Params  # w
    slope: core.Params
    average: core.Params  # θ̄, for scoring alone
    size: core.Tree


def cloud(state: State) -> core.Params:
    """w: what the clients train from."""
    return {n: p + state.drift[n] if n in state.drift else p for n, p in state.params.items()}  # (3)


def from_cloud(carry: core.Carry, here: core.Here) -> core.Carry:
    """Training begins at w, whatever is scored."""
    return replace(carry, params=here.shared.part.params)


@dataclass(frozen=True)
class FedDyn(core.Method):
    label = "FedDyn"
    reference = "Acar et al., ICLR 2021"
    absent = "delta messages: an absent client's drift stays part of the mean drift"
    outside = "the mean of the clients that trained last"
    differences = ("params",)

    local: core.Training = core.hyper(core.Training(), "how the clients train", paper=AUTHORS_TRAINING)
    alpha: float = core.hyper(
        0.1, "α: pull towards w − h_k", "FL-bench; paper: to 0.1", paper=0.01, search=(0.001, 1.0, "log"), gt=0
    )
    balance: str = core.hyper("clients", "whose loss is averaged", "uniform means", BALANCES, paper="samples")
    loss: core.Loss = core.fit  # a wrapper may replace it

    adapt = core.adapt_plainly

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        like = next(iter(params.values()))
        size = like.new_full((), facts.samples / facts.clients) if self.balance == "samples" else ()
        return State(params, core.zeros(params, model), {}, size, facts.clients)

    def offer(self, state: State, client: Tensor | None) -> tuple[core.Sparse, core.Own]:
        """θ̄ would be sent for scoring alone."""
        like = next(iter(state.params.values()))
        unsent = torch.zeros_like(like, dtype=torch.int64).sum() + core.tree_bytes(state.params)
        scoring = tuple(f"average/{n}" for n in state.params)
        return core.Sparse(Shared(cloud(state), state.slope, state.params, state.size), unsent, known=scoring), ()

    def start(self, here: core.Here) -> core.Params:
        return here.shared.part.average

    def join(self, here: core.Here) -> core.Personal:
        return core.zeros(here.shared.part.params, here.model)

    def penalised(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        value, buffers = self.loss(params, batch, here)
        known, drift = here.shared.part, here.personal
        alpha = self.alpha * known.size / here.n.clamp(min=1) if self.balance == "samples" else self.alpha
        centre = {n: known.params[n] - h for n, h in drift.items()}
        return value + 0.5 * alpha * core.squared_distance(params, centre, here.model), buffers  # (1)

    def passes(self) -> core.Passes:
        return core.opened((self.local.descend(self.penalised),), from_cloud)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        w = here.shared.part.params
        moved = {n: p - w[n] for n, p in carry.params.items()}
        drift = {n: h + moved[n] for n, h in here.personal.items()}  # (2)
        return {"params": core.Mean(torch.ones_like(here.n), moved)}, drift

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        moved, count = total["params"].mean(), total["params"].weight
        params = {n: p + moved[n] for n, p in cloud(state).items()}
        drift = {n: h + count / state.clients * moved[n] for n, h in state.drift.items()}
        return replace(state, params=params, drift=drift)  # (3)
