"""FedCP: for every sample and feature, a small network decides how much of it is the client's own business.

A client has a head h_k of its own. It receives base b, head h_g and a policy (a linear layer d → 2d, layer norm, ReLU),
keeps the received b_g and h_g as they are, and trains b, h_k and the policy. With features z = b(x) and its context
v_k, the policy's two outputs for each feature make a gate r, the first of two Gumbel-softmax shares:

    v_k = column sums of the weight matrix of h_k, scaled to length 1; constant during a round                # (a)
    r   = σ(a₁ − a₂ + ε),   (a₁, a₂) = policy(z ⊙ v_k),   ε logistic in training, 0 in prediction              # (b)
    logits = h_k(r ⊙ z) + h_g((1 − r) ⊙ z), both biases included                                              # (c)
    loss   = CE + λ MMD(z, b_g(x)),   kernel Σ_a exp(−‖·‖²/2a), a = 10, 15, 20, 50, mean over pairs           # (d)

The server averages b, the policy and ½ h_k + ½ h_g by samples, (e). A newcomer, and a test set of nobody's, takes h_g
for its own head, and its context from it. Softmax gradients add up to 0 over classes, so plain SGD never changes the
direction of v_k: contexts tell clients apart only under optimisers that rescale numbers one by one (Adam, RMSprop).

Reference: Zhang, Hua, Wang, Song, Xue, Ma and Guan, "FedCP: Separating feature information for personalized federated
learning via conditional policy", KDD 2023.

The letters are ours: the paper's own numbers were not at hand.

Differs from the paper: released code draws noise when it predicts, so that its answers are random; here it does not,
unless `noisy`. The difference of two Gumbel variables is logistic, so (b) draws one number where the paper has two. The
context is that of the head from the first round on, in which released code has a random vector. Everybody in a cohort
has the latest h_g and policy; in released code who was not selected keeps old ones. The head is one linear layer: the
paper multiplies the matrices of several, which are refused here. b_g runs in evaluation mode.
"""

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posterity import core
from posterity.methods.fedper import split
from posterity.nn.extra import Extra

POLICY = "fedcp"  # how the names of the policy's leaves begin
WIDTHS = (10.0, 15.0, 20.0, 50.0)  # a of the kernels
NOISE_DRAW = 2**24  # folded into the key: behind all numbers that dropout folds


@cache
def policy(size: int) -> Extra:
    return Extra(POLICY, nn.Sequential(nn.Linear(size, 2 * size), nn.LayerNorm(2 * size), nn.ReLU()))


def logistic(key: Tensor, like: Tensor) -> Tensor:
    """Noise for a gate (B, d): the difference of two Gumbel variables."""
    u = core.uniform(key, like.shape, like.dtype).clamp(min=torch.finfo(like.dtype).tiny)
    return torch.log(u) - torch.log1p(-u)


def context(weight: Tensor) -> Tensor:
    """v_k (d,) of the head's weight matrix (C, d); 0 if its columns sum to 0."""
    total = weight.sum(0)
    length = core.norm(total)
    return total / torch.where(length > 0, length, 1)  # (a)


def gate(params: core.Params, z: Tensor, condition: Tensor, noise: Tensor | float = 0.0) -> Tensor:
    """r (B, d): how much of each feature goes to the client's own head."""
    size = z.shape[-1]
    pair = policy(size)(params, z * condition).reshape(-1, 2, size)
    return torch.sigmoid(pair[:, 0] - pair[:, 1] + noise)  # (b)


def kernel_mean(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Mean of the kernels over all pairs of a real row of x (B, d) and a real row of y (B, d)."""
    square = ((x**2).sum(-1)[:, None] + (y**2).sum(-1) - 2 * x @ y.T).clamp(min=0)
    kernels = torch.stack([torch.exp(-square / (2 * a)) for a in WIDTHS]).sum(0)
    return (kernels * mask[:, None] * mask).sum() / mask.sum().clamp(min=1) ** 2


def mmd(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Squared maximum mean discrepancy between two sets of features of the same rows, pairs of equal rows included."""
    return kernel_mean(x, x, mask) + kernel_mean(y, y, mask) - 2 * kernel_mean(x, y, mask)


def is_one_linear_layer(model: core.Network) -> bool:
    """Whether the head is one linear layer on the features."""
    name = model.heads[0]
    layer = model.module.get_submodule(name)
    alone = model.head_names <= {f"{name}.weight", f"{name}.bias"}
    return isinstance(layer, nn.Linear) and alone and layer.in_features == model.feature_dim


@dataclass(frozen=True)
class FedCP(core.Method):
    label = "FedCP"
    reference = "Zhang et al., KDD 2023"
    absent = "cohort only: an absent client keeps its head"
    outside = "the server's model, its head as both heads"
    without_base = "shares its policy and mixed head only"

    local: core.Training = core.hyper(core.Training(), "how the clients train", paper=core.Training(lr=0.005))
    lam: float = core.hyper(
        5.0, "λ: pull of features to those received", "authors' CNN script", search=(0.1, 10.0, "log"), ge=0
    )
    noisy: bool = core.hyper(False, "draw the gates' noise in predictions too", "ours; released code does")

    combine = core.combine_mean

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> core.Leaves:
        if model.task != "classification":
            raise ValueError("FedCP makes its context of classes' weights; this task is regression. Use fedper there")
        if not is_one_linear_layer(model):
            raise ValueError(
                f"FedCP takes its context from the weight matrix of one linear layer; the head {model.heads[0]!r} of "
                f"the network {model.name!r} is something else. Name its last linear layer as the head, or use fedper"
            )
        like = next(iter(params.values()))
        return core.Leaves({**params, **policy(model.feature_dim).init(core.fold(facts.key, 0), like)})

    def join(self, here: core.Here) -> core.Personal:
        return split(here.shared.params, here.model.head_names)[1]

    def start(self, here: core.Here) -> core.Params:
        return {**here.shared.params, **here.personal}

    def logits(self, params: core.Params, z: Tensor, here: core.Here, noise: Tensor | float) -> Tensor:
        """Of features z (B, d), by both heads."""
        r = gate(params, z, context(here.personal[f"{here.model.heads[0]}.weight"]), noise)
        common = here.model.classify(here.shared.params, (1 - r) * z)
        return here.model.classify(params, r * z) + common  # (c)

    def loss(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        z, buffers = here.model.features(params, batch.x, mask=batch.layer_mask, train=True, key=here.key)
        logits = self.logits(params, z, here, logistic(core.fold(here.key, NOISE_DRAW), z))
        value = core.masked_mean(core.pointwise(logits, batch.y, here.model), batch.mask)
        if self.lam:
            received, _ = here.model.features(here.shared.params, batch.x)
            value = value + self.lam * mmd(z, received, batch.mask)  # (d)
        return value, buffers

    def passes(self) -> core.Passes:
        return core.holding((self.local.descend(self.loss),), leaves=lambda model: policy(model.feature_dim).numbers)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        common, head = split(carry.params, here.model.head_names)
        mixed = {n: 0.5 * p + 0.5 * here.shared.params[n] for n, p in head.items()}  # (e)
        return core.weighted({**common, **mixed}, here), head

    def predict(self, carry: core.Carry, x: Tensor, here: core.Here) -> Tensor:
        z, _ = here.model.features(carry.params, x)
        noise = logistic(core.fold(here.key, NOISE_DRAW), z) if self.noisy else 0.0
        return F.log_softmax(self.logits(carry.params, z, here, noise), -1)
