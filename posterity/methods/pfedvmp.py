"""pFedVMP: a shared base and personal heads, tied by Gaussian messages about where each class lies in feature space.

A client trains base and head on the cross-entropy plus a pull of its features z = ψ(x; θᵇ) to the global centroids,

    L_n = 1/|B| Σ_i [ −log p(y_i | x_i) + ξ₁ ρ(z_i − µ_{y_i}) ]                                           # (9)

then summarises its features class by class as a Gaussian factor over the centroid, with precision and mean

    Λ_{k,n} = (Σ_{k,n})† + α I,     µ_{k,n} = mean of z in class k                                         # (11)

and the server multiplies the factors: the base is averaged by size (10, 12), and the centroids are

    µ_k = (Σ_n Λ_{k,n})⁻¹ Σ_n Λ_{k,n} µ_{k,n}                                                              # (13)

Reference: "Personalized federated learning via variational message passing" (pFedVMP), manuscript.

Differs from the paper (errata of the specification):
  E1  ξ₁ = 50 is only possible if the pull is averaged over the features: `reduction="mean"`; "sum" is as printed.
  E2  (11) trusts a client where its data vary: the default `shrinkage` inverts a regularised covariance instead;
      `printed` is (11), by a float64 SVD of the centred features with a rank cut (Σ is never formed to be inverted).
  E3  (11) is the precision of a feature, not of its mean: all modes but `printed` multiply by the class count Z.
  E4  a class that a client does not have sends the zero factor.
  E5  (4) has a prior over the centroids, (13) has not: left out unless `prior` says so.
  E6  ξ₁ is the coefficient in the loss, so the equivalent precision is 2 ξ₁.
Centroids are unknown, and pull nobody, until somebody has reported the class (`warmup="zero"`: the prior mean instead).
A newcomer's head is the nearest-centroid rule w_k = 2µ_k, b_k = −‖µ_k‖² where the head is one linear layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from posterity.core.averaging import averaged, weighted
from posterity.core.gaussian import Gaussian
from posterity.core.hyper import check_fields, hyper, within
from posterity.core.losses import masked_mean, one_hot, pointwise
from posterity.core.method import Batch, Carry, Facts, Here, Message, Method, Now, Own, Params, Pass, Personal, Point
from posterity.core.monoid import Sum
from posterity.core.passes import gather
from posterity.core.training import Training
from posterity.core.tree import STATIC, Tree, record, tree_cast
from posterity.methods.fedper import split

MODES = ("shrinkage", "printed", "isotropic", "count")
CUT = 1e-5  # singular values below this share of the largest are rank noise
FLOOR = 1e-6  # least within-class variance, as a share of the features' mean square: dead units have none


@record
class State:
    params: Params  # the shared base θᵇ, and the common first head
    centroids: Tensor  # µ_k (K, d)
    known: Tensor  # 1 where somebody has reported the class (K,)
    head: frozenset[str] = field(metadata={STATIC: True})


@record
class Shared:
    base: Params
    centroids: Tensor
    known: Tensor


def class_messages(z: Tensor, y: Tensor, mask: Tensor, classes: int, mode: str, alpha: float, nu0: float) -> Tree:
    """Factors of all class centroids and the class counts, from features z (n, d); float64 throughout."""
    z, hot = z.double(), one_hot(y, classes, mask.double())  # (n, d), (n, K)
    count = hot.sum(0)
    mean = hot.T @ z / count.clamp(min=1)[:, None]  # (K, d)
    centred = hot.T[:, :, None] * (z - mean[:, None])  # (K, n, d): rows of other classes are 0
    precision = _precision(centred, count, z, mask.double(), mode, alpha, nu0)
    return {"factor": Gaussian.of(mean, precision) * (count > 0).double(), "count": count}


def _precision(centred: Tensor, count: Tensor, z: Tensor, mask: Tensor, mode: str, alpha: float, nu0: float) -> Tensor:
    """Λ_{k,n} for every class: (K,), or (K, d, d) for the dense modes."""
    if mode == "count":
        return count
    d = z.shape[1]
    if mode == "printed":
        return printed_precision(*low_rank(centred / count.clamp(min=1).sqrt()[:, None, None], count), alpha)
    square = ((z**2).mean(1) * mask).sum() / mask.sum().clamp(min=1)  # of a feature about 0: the widest guess
    floor = FLOOR * square + 1e-30
    trace, freedom = (centred**2).sum((1, 2)), d * (count - 1).clamp(min=0).sum()  # Z tr Σ
    pooled = torch.where(freedom > 0, trace.sum() / freedom.clamp(min=1), square)  # no class has two samples: no spread
    if mode == "isotropic":
        spread = torch.where(count > 1, trace / (d * (count - 1).clamp(min=1)), pooled)
        return count / torch.maximum(spread, floor)
    spread = torch.maximum(torch.where(count > 2, trace / (d * count.clamp(min=1)), pooled), floor)
    eye = torch.eye(d, dtype=z.dtype, device=z.device)
    scatter = centred.transpose(1, 2) @ centred + nu0 * spread[:, None, None] * eye
    root, failed = torch.linalg.cholesky_ex(scatter)  # raises nothing: one client's NaN must not end the round
    inverse = torch.cholesky_inverse(torch.where((failed == 0)[:, None, None], root, torch.nan))
    return (count * (count + nu0))[:, None, None] * inverse


def low_rank(scaled: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Vᵀ (K, r, d) and s⁻² (K, r) with Σ† = V diag(s⁻²) Vᵀ, from the centred features divided by √Z (K, n, d)."""
    sound = scaled.isfinite().all()  # an SVD of NaN raises for the whole stack: the message is to be refused instead
    _, s, vh = torch.linalg.svd(torch.where(sound, scaled, 0), full_matrices=False)  # (K, r), (K, r, d)
    place = torch.arange(s.shape[-1], device=s.device)
    real = (s > CUT * s[..., :1]) & (place < count[:, None] - 1)
    return vh, torch.where(sound, torch.where(real, 1 / torch.where(real, s, 1) ** 2, 0), torch.nan)


def printed_precision(vh: Tensor, weight: Tensor, alpha: float) -> Tensor:
    """Σ† + αI as a full matrix (K, d, d)."""
    eye = torch.eye(vh.shape[-1], dtype=vh.dtype, device=vh.device)
    return alpha * eye + vh.transpose(-1, -2) @ (weight[..., None] * vh)  # (11)


def read_centroids(factor: Gaussian, count: Tensor, previous: Tensor, prior: bool) -> Tensor:
    """µ_k = Λ_k⁻¹ η_k where somebody reported the class, else the previous value."""
    if prior:
        factor = factor + Gaussian(torch.ones_like(count), torch.zeros_like(factor.shift))
    seen = count > 0
    ones = torch.where(seen, 0.0, 1.0).to(factor.shift)  # classes without a report get a harmless unit precision
    safe = factor + Gaussian(ones, torch.zeros_like(factor.shift))
    return torch.where(seen[:, None], safe.mean(), previous.to(factor.shift))  # (13)


@dataclass(frozen=True)
class PFedVMP(Method):
    label: ClassVar[str] = "pFedVMP"
    reference: ClassVar[str] = "pFedVMP, manuscript"
    absent: ClassVar[str] = "cohort only: a class that no member of the cohort has keeps its centroid"
    scored: ClassVar[Point] = "received"

    local: Training = hyper(Training(), "how the clients train")
    xi: float = hyper(50.0, "ξ₁: pull of features to the centroid of their class", "Table 7, CIFAR-10 Dir(0.3)")
    mode: str = hyper("shrinkage", "precision message", "erratum E2, E3; the paper's is 'printed'", MODES)
    alpha: float = hyper(1.0, "α: ridge of the printed precision", "§5.1")
    nu0: float = hyper(10.0, "ν₀: prior samples behind the shrunken covariance", "unspecified: ours")
    reduction: str = hyper("mean", "pull averaged or summed over features", "erratum E1", ("mean", "sum"))
    warmup: str = hyper("skip", "unknown centroids: no pull, or the prior mean 0", "unspecified", ("skip", "zero"))
    prior: bool = hyper(False, "add the prior N(0, I) of the centroids once", "eq. 4 has it, eq. 13 not: erratum E5")

    def __post_init__(self) -> None:
        check_fields(self)
        within(self, xi=(0, None), alpha=(0, None), nu0=(1e-6, None))

    def init(self, model: Any, params: Params, facts: Facts) -> State:
        if model.task != "classification":
            raise ValueError("pFedVMP speaks about classes; this task is regression")
        zero = next(iter(params.values())).new_zeros(())
        known = zero.expand(facts.classes) + (1 if self.warmup == "zero" else 0)
        return State(params, zero.expand(facts.classes, model.feature_dim).clone(), known.clone(), model.head_names)

    def offer(self, state: State, client: Tensor | None) -> tuple[Shared, Own]:
        base, _ = split(state.params, state.head)
        return Shared(base, state.centroids, state.known), state.known.new_tensor(float(client is None))

    def join(self, here: Here) -> Personal:
        first = split(here.initial, here.model.head_names)[1]
        return nearest_centroid(first, here.shared, here.own)

    def start(self, here: Here) -> Params:
        return {n: here.personal.get(n, here.shared.base.get(n)) for n in here.initial}

    def pull(self, z: Tensor, y: Tensor, shared: Shared) -> Tensor:
        """ρ(z − µ_y) of each sample (B,); 0 for classes whose centroid is unknown."""
        square = (z - shared.centroids[y]) ** 2
        rho = square.mean(-1) if self.reduction == "mean" else square.sum(-1)
        return rho * shared.known[y]

    def loss(self, params: Params, batch: Batch, here: Here) -> tuple[Tensor, Params]:
        head = here.model.heads[0]
        output, buffers, seen = here.model(params, batch.x, mask=batch.mask, train=True, key=here.key, want=(head,))
        each = pointwise(output, batch.y, here.model)
        if self.xi:
            each = each + self.xi * self.pull(seen[head].flatten(1), batch.y, here.shared)  # (9)
        return masked_mean(each, batch.mask), buffers

    def features(self, params: Params, batch: Batch, here: Here) -> Tree:
        z, _ = here.model.features(params, batch.x)
        return {"z": z, "y": batch.y, "mask": batch.mask}

    def passes(self) -> tuple[Pass, ...]:
        return self.local.descend(self.loss), gather("features", self.features, batch=None)

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        base, head = split(carry.params, here.model.head_names)
        how = {"classes": here.model.classes, "mode": self.mode, "alpha": self.alpha, "nu0": self.nu0}
        factors = class_messages(**carry.kept["features"], **how)
        return {**weighted(base, here), "classes": Sum(tree_cast(factors, here.n.dtype))}, head

    def combine(self, state: State, total: Message, now: Now) -> State:
        params = averaged(state.params, total)  # (10), (12)
        factor, count = total["classes"].value["factor"], total["classes"].value["count"]
        centroids = read_centroids(factor, count, state.centroids, self.prior)
        return State(params, centroids, torch.maximum(state.known, (count > 0).to(state.known)), state.head)

    def report(self, state: State, total: Message) -> dict[str, Tensor]:
        return {"known_classes": state.known.sum()}


def nearest_centroid(first: Params, shared: Shared, newcomer: Tensor) -> Params:
    """The head w_k = 2µ_k, b_k = −‖µ_k‖² for a newcomer; `first` for a member, or if the head is not one layer."""
    weight, bias = 2 * shared.centroids, -(shared.centroids**2).sum(-1)
    if sorted(tuple(p.shape) for p in first.values()) != [tuple(bias.shape), tuple(weight.shape)]:
        return first
    bias = torch.where(shared.known > 0, bias, bias.amin())  # an unknown centroid is 0 and must not look near
    use = (newcomer > 0) & (shared.known.sum() > 0)
    return {n: torch.where(use, weight if p.dim() == 2 else bias, p) for n, p in first.items()}
