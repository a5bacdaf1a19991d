"""FedProto: clients share what a class looks like, and no weight of any network.

Every client has a network of its own, z = b_k(x) are its features (d numbers), and P_c is the global prototype of class
c. A client descends on the first line; after training it sends the mean features of its classes, (b), and the server
averages them, (c), with a weight a_kc that is 0 for a class that the client does not have:

    f_k    CE(h_k(z), y) + λ ‖z − P_y‖² / d,   the second term only for classes that have a prototype           # (a)
    µ_kc = mean of z over the client's training samples of class c, by the trained network                    # (b)
    P_c  = Σ_k a_kc µ_kc / Σ_k a_kc,   a_kc = 1, or the count n_kc                                           # (c)
    predict softmax_c(−½ ‖z − P_c‖²), whose most probable class is the nearest prototype, or h_k(z)           # (d)

With λ = 0 every client trains alone, bit for bit, and so it does in the first round, when there are no prototypes yet.
A newcomer begins with the common first network, and must train before its features mean anything; a test set that
belongs to no client meets that network too. Before there are prototypes the head predicts.

Reference: Tan, Long, Liu, Zhou, Lu, Jiang and Zhang, "FedProto: Federated prototype learning across heterogeneous
clients", AAAI 2022.

The letters are ours: the paper's own numbers were not at hand.

Differs from the paper: `weighting="uniform"` is what all released code does; the paper's formula has the counts
(`@paper`). (b) is a pass of its own over the data in evaluation mode; released code adds up features while the network
still moves. A class that nobody in the cohort has keeps its prototype, where released code forgets it until somebody
has it again. The paper asks for a nearest prototype only; (d) gives it probabilities by Gaussians of unit variance, and
a class without prototype is as far away as the farthest.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity import core

SCORING_BATCH = 256  # samples at once when features are averaged; has no influence on the result
BELOW = 1e-6  # so that the nearest prototype is known where there is only one
WEIGHTINGS = ("uniform", "counts")
PREDICTS = ("prototypes", "head")


@core.record
class State:
    params: core.Params  # the common first network, never changed
    prototypes: Tensor  # P (C, d)
    known: Tensor  # 1 where somebody has reported the class (C,)


@core.record
class Shared:
    prototypes: Tensor
    known: Tensor


def closeness(z: Tensor, shared: Shared) -> Tensor:
    """−½ ‖z − P_c‖² (B, C); for classes without prototype hardly less than that of the farthest one."""
    score = -0.5 * ((z[:, None] - shared.prototypes) ** 2).sum(-1)
    farthest = torch.where(shared.known > 0, score, torch.inf).min(-1, keepdim=True).values
    return torch.where(shared.known > 0, score, farthest * (1 + BELOW) - BELOW)  # scores are at most 0


@dataclass(frozen=True)
class FedProto(core.Method):
    label = "FedProto"
    reference = "Tan et al., AAAI 2022"
    absent = "cohort only: an absent client keeps its network, a class that is absent its prototype"
    outside = "the initial model, beside the server's prototypes: no model is sent"
    class_statistics = {"features": ("prototypes",)}

    local: core.Training = core.hyper(core.Training(), "how the clients train", paper=core.Training(momentum=0.5))
    lam: float = core.hyper(
        1.0, "λ: pull of features to their prototype", "authors' code", search=(0.1, 10.0, "log"), ge=0
    )
    weighting: str = core.hyper(
        "uniform", "weight of a client's class mean", "all released code", WEIGHTINGS, paper="counts"
    )
    predicts: str = core.hyper("prototypes", "what predicts: the nearest prototype or the head", "the paper", PREDICTS)

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        if model.task != "classification":
            raise ValueError("FedProto has prototypes of classes; this task is regression. Use local or fedper there")
        zero = next(iter(params.values())).new_zeros(())
        known, prototypes = zero.expand(facts.classes) * 1, zero.expand(facts.classes, model.feature_dim) * 1
        return State(params, prototypes, known)

    def offer(self, state: State, client: Tensor | None) -> tuple[Shared, core.Own]:
        return Shared(state.prototypes, state.known), ()

    def join(self, here: core.Here) -> core.Personal:
        return here.initial

    def start(self, here: core.Here) -> core.Params:
        return here.personal

    def pull(self, z: Tensor, y: Tensor, shared: Shared) -> Tensor:
        """‖z − P_y‖² / d of each sample (B,); 0 for classes without prototype."""
        return ((z - shared.prototypes[y]) ** 2).mean(-1) * shared.known[y]

    def loss(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        output, z, buffers = core.run_features(params, batch, here)
        each = core.pointwise(output, batch.y, here.model)
        if self.lam:
            each = each + self.lam * self.pull(z, batch.y, here.shared)  # (a)
        return core.masked_mean(each, batch.mask), buffers

    def passes(self) -> core.Passes:
        return self.local.descend(self.loss), core.gather("features", core.sum_features, batch=SCORING_BATCH)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        count, total = carry.kept["features"]["count"], carry.kept["features"]["sum"]
        mean = total / count.clamp(min=1)[:, None]  # (b)
        weight = count if self.weighting == "counts" else (count > 0).to(count)
        return {"prototypes": core.Mean(weight.to(here.n.dtype), mean.to(here.n.dtype))}, carry.params

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        said = total["prototypes"]
        known = torch.maximum(state.known, (said.weight > 0).to(state.known))
        return State(state.params, said.mean(missing=state.prototypes), known)  # (c)

    def report(self, state: State, total: core.Message) -> dict[str, Tensor]:
        return {"known_classes": state.known.sum()}

    def predict(self, carry: core.Carry, x: Tensor, here: core.Here) -> Tensor:
        first = here.model.heads[0]
        output, _, seen = here.model(carry.params, x, want=(first,))
        if self.predicts == "head":
            return F.log_softmax(output, -1)
        some = (here.shared.known > 0).any()
        nearest = closeness(seen[first].flatten(1), here.shared)  # (d)
        return F.log_softmax(torch.where(some, nearest, output), -1)
