"""FedDC: FedDyn's drifts together with SCAFFOLD's correction of the gradient.

Each client remembers its drift h_k, the sum of the ways that it went from the broadcast, and g_k, the mean gradient of
its last visit. The server has their means over all K clients, h̄ and g; all begin at 0.

    client   θ_k ← SGD on f_k(θ) + (α_k/2) ‖θ − (w − h_k)‖² + ⟨θ, g/s_k − g_k⟩ from w, τ steps of size η     # (1)
             h_k ← h_k + (θ_k − w),    g_k⁺ = g_k − g/s_k − (θ_k − w) / (τ η)                                # (2)
    server   θ̄ ← (1/|S|) Σ_{k∈S} θ_k,    h̄ ← h̄ + (1/K) Σ_{k∈S} (θ_k − w),    w ← θ̄ + h̄                      # (3)
             g ← g + (1/K) Σ_{k∈S} s_k (g_k⁺ − g_k)                                                          # (4)

s_k is 1 and α_k is α (`balance = "clients"`), or s_k = K n_k/N and α_k = α/s_k for N samples in all (`"samples"`): then
the mean over all samples is minimised instead of the mean over clients.

Two models live on the server. w is broadcast and trained from; θ̄, the mean of the clients that trained last, is
`state.params`: it is scored, fine-tuned, exported, and what a newcomer or a test set without a client gets. It is
needed for scoring alone, so the bytes of training do not count it.

Reference: Gao, Fu, Li, Chen, Xu and Xu, "FedDC: Federated learning with non-IID data via local drift decoupling and
correction", CVPR 2022, Algorithm 1. The numbers of the equations are ours.

Differs from the paper: no step-size decay over rounds. (2) reads a mean gradient off the distance moved, which holds
for plain SGD alone, with the steps τ that the client has taken: momentum, other optimisers and a gradient-norm clip
(the authors' scripts have one of 10) are refused. Weight decay is a part of the loss, and so of g_k; so is the pull of
(1), as in the paper. Drifts and gradients cover trainable leaves, never the buffers of batch norm, whose plain mean is
taken. Fine-tuning (`adapt`) is without both terms: it looks for the client's own minimum.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posterity import core
from posterity.methods.feddyn import BALANCES, FedDyn, State, from_cloud

AUTHORS_TRAINING = core.Training(lr=0.1, epochs=5, batch=50, weight_decay=1e-3)


@core.record
class Personal:
    drift: core.Params  # h_k
    slope: core.Params  # g_k


@dataclass(frozen=True)
class FedDC(core.Method):
    label = "FedDC"
    reference = "Gao et al., CVPR 2022"
    absent = "delta messages: an absent client's drift and gradient stay part of the means"
    outside = "the mean of the clients that trained last"
    differences = ("params",)

    local: core.Training = core.hyper(core.Training(), "how the clients train", paper=AUTHORS_TRAINING)
    alpha: float = core.hyper(
        0.1, "α: pull towards w − h_k", "authors' MNIST script", paper=0.01, search=(0.001, 1.0, "log"), gt=0
    )
    balance: str = core.hyper("clients", "whose loss is averaged", "uniform means", BALANCES, paper="samples")
    loss: core.Loss = core.fit  # a wrapper may replace it

    offer = FedDyn.offer
    start = FedDyn.start
    adapt = FedDyn.adapt

    def __post_init__(self) -> None:
        core.check_fields(self)
        core.require_plain_sgd(self.local, "FedDC")

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        state = FedDyn(balance=self.balance).init(model, params, facts)
        return replace(state, slope=core.zeros(params, model))

    def join(self, here: core.Here) -> Personal:
        w = here.shared.part.params
        return Personal(core.zeros(w, here.model), core.zeros(w, here.model))

    def share(self, here: core.Here) -> Tensor | float:
        """s_k: the client's samples, in those of a mean client."""
        return here.n.clamp(min=1) / here.shared.part.size if self.balance == "samples" else 1.0

    def corrected(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        """The loss with its penalty; the linear term adds to the gradient and nothing to the value."""
        value, buffers = self.loss(params, batch, here)
        known, mine, share = here.shared.part, here.personal, self.share(here)
        centre = {n: known.params[n] - h for n, h in mine.drift.items()}
        tilt = {n: g / share - mine.slope[n] for n, g in known.slope.items()}
        linear = torch.stack([(t * params[n]).sum() for n, t in tilt.items()]).sum()
        pull = 0.5 * self.alpha / share * core.squared_distance(params, centre, here.model)
        return value + pull + (linear - linear.detach()), buffers  # (1)

    def passes(self) -> core.Passes:
        train = self.local.descend(self.corrected)

        def close(carry: core.Carry, here: core.Here) -> core.Carry:
            end, known, mine = train.close(carry, here), here.shared.part, here.personal.slope
            seen, share = core.mean_slope(known.params, end.params, mine, self.local.lr, here), self.share(here)
            new = {n: g - known.slope[n] / share + seen[n] for n, g in mine.items()}  # (2)
            return replace(end, kept={**end.kept, "slope": new})

        found = core.opened((replace(train, close=close),), from_cloud)
        return core.holding(found, copies=3)  # the record has two more

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        w, mine, share = here.shared.part.params, here.personal, self.share(here)
        moved, slope = {n: p - w[n] for n, p in carry.params.items()}, carry.kept["slope"]
        drift = {n: h + moved[n] for n, h in mine.drift.items()}  # (2)
        change = core.tree_map(lambda new, old: share * (new - old), slope, mine.slope)
        return {"params": core.Mean(torch.ones_like(here.n), moved), "slope": core.Sum(change)}, Personal(drift, slope)

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        slope = core.tree_map(lambda g, d: g + d / state.clients, state.slope, total["slope"].value)  # (4)
        return replace(FedDyn().combine(state, total, now), slope=slope)  # (3)
