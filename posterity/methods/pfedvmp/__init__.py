"""pFedVMP: a shared base and personal heads, tied by Gaussian messages about where each class lies in feature space.

Wanted are the base θᵇ, the heads θʰ_n and the class centroids that explain everybody's data best (1). Their posterior
is approximated (2) by independent factors for the three (3); the shared ones are products of what clients say and of a
prior (4), class by class, since a product of the clients' mixtures (5) would have too many parts. Client n replaces its
factor, given the others' (6), so that (7) is least; with a surrogate of the posterior (8a), (8b) this becomes a loss.

A client trains base and head on the cross-entropy plus a pull of its features z = ψ(x; θᵇ) to the global centroids,

    L_n = 1/|B| Σ_i [ −log p(y_i | x_i) + ξ₁ ρ(z_i − µ_{y_i}) ]                                           # (9)

then summarises its features class by class as a Gaussian factor over the centroid, with precision and mean

    Λ_{k,n} = (Σ_{k,n})† + α I,     µ_{k,n} = mean of z in class k                                         # (11)

and the server multiplies the factors: the base is averaged by size (10, 12), and the centroids are

    µ_k = (Σ_n Λ_{k,n})⁻¹ Σ_n Λ_{k,n} µ_{k,n}                                                              # (13)

Reference: "Personalized federated learning via variational message passing" (pFedVMP), manuscript.

Differs from the paper (errata, numbered by us):
  E1  ξ₁ = 50 is only possible if the pull is averaged over the features: `reduction="mean"`; "sum" is as printed.
  E2  (11) trusts a client where its data vary: the default `shrinkage` inverts a regularised covariance instead;
      `printed` is (11), in float64 from the centred features with a rank cut (Σ is never formed to be inverted):
      deviations below 1e-5 of the class's largest, or that rounding of the features explains, count as none, and
      none as less than 1e-6 of the features' root mean square, for float64 sums hold no wider range of precisions.
  E3  (11) is the precision of a feature, not of its mean: all modes but `printed` multiply by the class count Z.
      A class's variance s² is its own, but at least ν₀ v / (Z − 1 + ν₀), what ν₀ samples of variance v would leave of
      v: equal rows must not outweigh everybody. v is that of the client's other classes and of ν₀ samples with that at
      a typical client of the last round. A client without any spread sends its counts until this is known.
  E4  a class that a client does not have sends the zero factor.
  E5  (4) has a prior over the centroids, (13) has not: left out unless `prior` says so.
  E6  ξ₁ is the coefficient in the loss, so the equivalent precision is 2 ξ₁.
Centroids are unknown, and pull nobody, until somebody has reported the class (`warmup="zero"`: the prior mean instead).
A newcomer's head is the nearest-centroid rule w_k = 2µ_k, b_k = −‖µ_k‖² where the head is one linear layer. Fine-tuning
repeats the round's training, (9) with its pull, of base and head (the paper does not fine-tune).

A client's statistics are in `class_statistics.py`, the precisions of its factors in `precision.py`, their way to the
server, and what it reads out of their sum, in `factors.py`.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from posterity import core
from posterity.methods.fedper import FedPer, split
from posterity.methods.pfedvmp.class_statistics import (
    Found,
    common_variance,
    describe_classes,
    read_sums,
    variance_message,
)
from posterity.methods.pfedvmp.factors import FORMS, nearest_centroid, on_the_wire, pack, read_centroids
from posterity.methods.pfedvmp.precision import MATRICES, MODES, SCALED, precisions

SCORING_BATCH = 64  # samples at once for the others; has no influence on the result
STEEP = 0.05  # 2 ξ₁ lr / d: a step draws features by this times the squared length of the layer's input


@core.record
class State:
    params: core.Params  # the shared base θᵇ, and the common first head
    centroids: Tensor  # µ_k (K, d)
    known: Tensor  # 1 where somebody has reported the class (K,)
    spread: Tensor  # () variance of a feature within a class at a typical client; 0 until somebody has any
    head: frozenset[str] = field(metadata={core.STATIC: True})


@core.record
class Shared:
    base: core.Params
    centroids: Tensor
    known: Tensor
    spread: Tensor


def summarise(z: Tensor, y: Tensor, mask: Tensor, classes: int, mode: str) -> core.Tree:
    """What is gathered: all features at once for matrices; else sums, to which a batch at a time is added."""
    return {"z": z, "y": y, "mask": mask} if mode in MATRICES else core.sum_classes(z, y, mask, classes)


def describe(gathered: core.Tree, classes: int, mode: str) -> Found:
    """The statistics of what was gathered."""
    return describe_classes(**gathered, classes=classes) if mode in MATRICES else read_sums(gathered)


def class_message(found: Found, mode: str, nu0: float, shared: Shared, upload: str = "dense") -> core.Sum:
    """The client's factors of all class centroids, and the class counts; a class without samples says nothing (E4)."""
    mean = torch.where(found.count[:, None] > 0, found.mean - shared.centroids, 0)
    own, plain = precisions(found, mode, nu0, shared.spread)
    told = None if own is None else core.Gaussian.of(mean, own)
    return pack(told, core.Gaussian.of(mean, plain), found.count, upload)


def matrix_numbers(rows: int, model: core.Network) -> int:
    """What a message holds: a covariance and a precision for each class, of twice as many bytes."""
    return 5 * model.classes * model.feature_dim**2


@dataclass(frozen=True)
class PFedVMP(core.Method):
    label = "pFedVMP"
    reference = "pFedVMP, manuscript"
    absent = "cohort only: a class that no member of the cohort has keeps its centroid"
    outside = "the server's base with a newcomer's head"
    class_statistics = {"features": ("classes", "spread")}

    local: core.Training = core.hyper(core.Training(), "how the clients train")
    xi: float = core.hyper(50.0, "ξ₁: pull of features to the centroid of their class", "Table 7, CIFAR-10 Dir(0.3)",
                           search=(0.5, 100.0, "log"), ge=0)  # fmt: skip
    mode: str = core.hyper("shrinkage", "precision message", "errata E2 and E3", MODES, paper="printed")
    alpha: float = core.hyper(1.0, "α: ridge of the printed precision", "§5.1", ge=0)
    nu0: float = core.hyper(10.0, "ν₀: prior samples behind the shrunken covariance", "unspecified: ours", ge=1e-6)
    reduction: str = core.hyper("mean", "pull averaged or summed over features", "erratum E1", ("mean", "sum"))
    warmup: str = core.hyper("skip", "unknown centroids: no pull, or the prior mean 0", "unspecified", ("skip", "zero"))
    prior: bool = core.hyper(False, "add the prior N(0, I) of the centroids once", "eq. 4 has it, eq. 13 not: E5")
    upload: str = core.hyper(
        "symmetric", "how matrices Λ are sent, in float64", "half of the paper's dense matrix", FORMS, paper="dense"
    )

    start = FedPer.start

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        if model.task != "classification":
            raise ValueError("pFedVMP speaks about classes; this task is regression")
        zero = next(iter(params.values())).new_zeros(())
        known, centroids = zero.expand(facts.classes).clone(), zero.expand(facts.classes, model.feature_dim).clone()
        return State(params, centroids, known, zero.clone(), model.head_names)

    def offer(self, state: State, client: Tensor | None) -> tuple[Shared, core.Own]:
        base, _ = split(state.params, state.head)
        return Shared(base, state.centroids, state.known, state.spread), state.known.new_tensor(float(client is None))

    def join(self, here: core.Here) -> core.Personal:
        first = split(here.initial, here.model.head_names)[1]
        return nearest_centroid(first, here.shared.centroids, here.shared.known, here.own)

    def pull(self, z: Tensor, y: Tensor, shared: Shared) -> Tensor:
        """ρ(z − µ_y) of each sample (B,); 0 for classes whose centroid is unknown."""
        square = (z - shared.centroids[y]) ** 2
        rho = square.mean(-1) if self.reduction == "mean" else square.sum(-1)
        return rho * shared.known[y] if self.warmup == "skip" else rho

    def loss(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        output, z, buffers = core.run_features(params, batch, here)
        each = core.pointwise(output, batch.y, here.model)
        if self.xi:
            each = each + self.xi * self.pull(z, batch.y, here.shared)  # (9)
        return core.masked_mean(each, batch.mask), buffers

    def features(self, params: core.Params, batch: core.Batch, here: core.Here) -> core.Tree:
        z, _ = here.model.features(params, batch.x)
        return summarise(z, batch.y, batch.mask, here.model.classes, self.mode)

    def passes(self) -> core.Passes:
        learn = self.local.descend(self.loss)
        if self.mode not in MATRICES:
            return learn, core.gather("features", self.features, batch=SCORING_BATCH)
        return learn, core.gather("features", self.features, batch=None, scratch=matrix_numbers)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        base, head = split(carry.params, here.model.head_names)
        found = describe(carry.kept["features"], here.model.classes, self.mode)
        factors = class_message(found, self.mode, self.nu0, here.shared, self.upload)
        said = {**core.weighted(base, here), "classes": on_the_wire(factors, here.n.dtype)}
        if self.mode in SCALED:
            said["spread"] = core.tree_cast(variance_message(found, self.nu0), here.n.dtype)
        return said, head

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        params = core.averaged(state.params, total)  # (10), (12)
        spread = common_variance(total["spread"], state.spread) if self.mode in SCALED else state.spread
        unit = self.alpha if self.mode == "printed" else 1 / torch.where(spread > 0, spread, 1)  # 1 for `count`
        centroids = read_centroids(total["classes"], unit, state.centroids, self.prior)  # (13), (4)
        known = torch.maximum(state.known, (total["classes"].value["count"] > 0).to(state.known))
        return State(params, centroids, known, spread, state.head)

    def remarks(self, model: core.Network) -> tuple[str, ...]:
        length = model.feature_dim if self.reduction == "mean" else 1
        step = 2 * self.local.lr * self.xi / length  # of features to their centroid, for inputs of length 1
        if self.local.optimiser != "sgd" or step <= STEEP:
            return ()
        return (
            f"pFedVMP's pull may throw features beyond their centroids: 2 · lr · xi / {length} = {step:.2g} should be "
            f"at most {STEEP:g}; xi = {STEEP * length / (2 * self.local.lr):.2g} would be",
        )

    def report(self, state: State, total: core.Message) -> dict[str, Tensor]:
        return {"known_classes": state.known.sum()}
