"""Where classes lie in feature space: statistics of a client's classes, and how factors about their centroids travel.

A factor is a Gaussian over the centroid µ_k of class k: a client's mean feature in the class, and a precision Λ. If Λ
is a matrix, it may be sent in three ways that say the same (d features, Z samples of the class):

    dense       the matrix                              d²            numbers
    symmetric   its upper triangle                      d (d + 1) / 2
    low_rank    V and w of Λ = αI + Vᵀ diag(w) V        r (d + 1)     r = min(d, Z − 1) directions; less if Z ≤ d / 2

Dense and symmetric messages are sums. Directions do not add up: `LowRank` holds one client's, and its fold multiplies
them out client by client in float64, so that every total is a `Sum` of dense factors. Equation numbers are pFedVMP's.
"""

from __future__ import annotations

from dataclasses import field
from functools import reduce
from operator import add
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.core.classwise import ridged_inverses, scatter_roots
from posterity.core.gaussian import Gaussian
from posterity.core.losses import one_hot
from posterity.core.monoid import Sum
from posterity.core.tree import STATIC, record, tree_rows

FORMS = ("dense", "symmetric", "low_rank")
CUT = 1e-5  # singular values below this share of the largest are rank noise
FLOOR = 1e-6  # least within-class variance, as a share of the features' mean square: dead units have none


@record
class Spread:
    """How a client's features lie around the means of their classes, in float64."""

    count: Tensor  # Z (K,)
    mean: Tensor  # (K, d); 0 where there is no sample
    trace: Tensor  # Z tr Σ (K,)
    square: Tensor  # () mean square of a feature about 0: the widest guess of its variance


@record
class Classes:
    """A client's features, class by class, in float64."""

    count: Tensor  # Z (K,)
    mean: Tensor  # (K, d); 0 where there is no sample
    away: Tensor  # (n, d): features less the mean of their class
    hot: Tensor  # (n, K): 1 where a sample is of the class
    square: Tensor  # () as in `Spread`

    def spread(self) -> Spread:
        return Spread(self.count, self.mean, self.hot.T @ (self.away**2).sum(1), self.square)


def sum_classes(z: Tensor, y: Tensor, mask: Tensor, classes: int) -> dict[str, Tensor]:
    """Sums over a batch of features z (B, d), from which `read_sums` makes a `Spread`."""
    z, hot = z.double(), one_hot(y, classes, mask.double())  # (B, d), (B, K)
    return {"count": hot.sum(0), "sum": hot.T @ z, "square": hot.T @ (z**2).sum(1)}


def read_sums(sums: dict[str, Tensor]) -> Spread:
    """The spread of all samples whose sums were added."""
    count, each = sums["count"], sums["count"].clamp(min=1)
    mean = sums["sum"] / each[:, None]
    trace = (sums["square"] - count * (mean**2).sum(1)).clamp(min=0)  # float64 bears the difference of large numbers
    square = sums["square"].sum() / (mean.shape[1] * count.sum()).clamp(min=1)
    return Spread(count, mean, torch.where(count > 1, trace, 0), square)


def describe_classes(z: Tensor, y: Tensor, mask: Tensor, classes: int) -> Classes:
    """The statistics of features z (n, d) with labels y (n,)."""
    z, mask = z.double(), mask.double()
    hot = one_hot(y, classes, mask)  # (n, K)
    count = hot.sum(0)
    mean = hot.T @ z / count.clamp(min=1)[:, None]
    square = ((z**2).mean(1) * mask).sum() / mask.sum().clamp(min=1)
    away = (z - hot @ mean) * mask[:, None]
    return Classes(count, mean, away, hot, square)


def low_rank(found: Classes) -> tuple[Tensor, Tensor]:
    """V (K, r, d) and w (K, r) with Σ† = Vᵀ diag(w) V, r = min(n, d), unit rows; Σ is never formed to be inverted.

    Directions that the class does not have are 0, and the largest entry of the others is positive: V is then the same
    however many rows of other classes, or of padding, stand between.
    """
    roots = scatter_roots(found.away, found.hot, CUT) * found.count.clamp(min=1).sqrt()[:, None, None]
    length = roots.norm(dim=-1)
    top = roots.gather(-1, roots.abs().argmax(-1, keepdim=True)).sign()
    return top * roots / torch.where(length > 0, length, 1)[..., None], length**2


def multiplied_out(basis: Tensor, weight: Tensor, ridge: float) -> Tensor:
    """αI + Vᵀ diag(w) V as full matrices (..., d, d)."""
    eye = torch.eye(basis.shape[-1], dtype=basis.dtype, device=basis.device)
    return ridge * eye + basis.transpose(-1, -2) @ (weight[..., None] * basis)  # (11)


def isotropic_precision(found: Spread) -> Tensor:
    """Z / s² (K,), s² the unbiased variance of a feature in the class, or in all classes if it has one sample."""
    freedom = found.mean.shape[1] * (found.count - 1).clamp(min=1)
    spread = torch.where(found.count > 1, found.trace / freedom, _pooled_variance(found))
    return found.count / torch.maximum(spread, _least_variance(found))


def shrunken_precision(found: Classes, nu0: float) -> Tensor:
    """Z ((Z Σ + ν₀ s² I) / (Z + ν₀))⁻¹ (K, d, d): ν₀ samples of an isotropic prior stand behind the covariance."""
    seen, d = found.spread(), found.mean.shape[1]
    alone = seen.trace / (d * found.count.clamp(min=1))
    spread = torch.where(found.count > 2, alone, _pooled_variance(seen))
    inverse = ridged_inverses(found.away, found.hot, nu0 * torch.maximum(spread, _least_variance(seen)))
    return (found.count * (found.count + nu0))[:, None, None] * inverse


def _pooled_variance(found: Spread) -> Tensor:
    """Variance of a feature within classes, all classes together."""
    freedom = found.mean.shape[1] * (found.count - 1).clamp(min=0).sum()
    within = found.trace.sum() / freedom.clamp(min=1)
    return torch.where(freedom > 0, within, found.square)  # no class has two samples: no spread within


def _least_variance(found: Spread) -> Tensor:
    return FLOOR * found.square + 1e-30


@record
class LowRank:
    """One client's factors with precisions αI + Vᵀ diag(w) V; in memory all have d directions, most of them 0."""

    basis: Tensor  # V (K, d, d)
    weight: Tensor  # w (K, d)
    mean: Tensor  # (K, d)
    count: Tensor  # Z (K,)
    ridge: float = field(metadata={STATIC: True})  # α: the server knows it
    secure_sum: ClassVar[bool] = False  # the server sees every client's directions

    @staticmethod
    def of(found: Classes, ridge: float) -> LowRank:
        """The factors whose precision is the pseudo-inverse of the covariance, and a ridge."""
        basis, weight = low_rank(found)
        spare = found.mean.shape[1] - weight.shape[1]
        return LowRank(F.pad(basis, (0, 0, 0, spare)), F.pad(weight, (0, spare)), found.mean, found.count, ridge)

    def expanded(self) -> Sum:
        """The same with dense precisions."""
        full = Gaussian.of(self.mean, multiplied_out(self.basis, self.weight, self.ridge))
        return pack(full * (self.count > 0).to(self.mean), self.count)

    @staticmethod
    def fold(stack: LowRank) -> Sum:
        """The sum of the dense factors; one client at a time, so that a stack of matrices need not be held."""
        total: Sum = reduce(add, (tree_rows(stack, i).expanded() for i in range(len(stack.count))))
        return total

    def wire_bytes(self) -> int:
        """Without the padding: Z, and for a class with samples its mean and r = min(d, Z − 1) directions with weights.

        The receiver knows r from Z; a direction that the rank cut removed is sent as zeros.
        """
        d, count = self.mean.shape[-1], self.count.double().nan_to_num()
        rank = (count - 1).clamp(0, d)
        numbers = 1 + (count > 0) * (d + rank * (d + 1))
        return int(numbers.sum()) * self.mean.element_size()


def pack(factor: Gaussian, count: Tensor, form: str = "dense") -> Sum:
    """Factors (K) and class counts (K,) as they are sent; a precision that is no matrix is always sent as it is."""
    if form == "symmetric" and factor.form == "dense":
        rows, columns = _upper(factor.shift)
        return Sum({"upper": factor.precision[..., rows, columns], "shift": factor.shift, "count": count})
    return Sum({"factor": factor, "count": count})


def unpack(total: Sum) -> tuple[Gaussian, Tensor]:
    """Factors and class counts from a total of any form."""
    value = total.value
    if "factor" in value:
        return value["factor"], value["count"]
    rows, columns = _upper(value["shift"])
    full = value["upper"].new_zeros(*value["shift"].shape, value["shift"].shape[-1])
    full[..., rows, columns] = value["upper"]
    full[..., columns, rows] = value["upper"]
    return Gaussian(full, value["shift"]), value["count"]


def read_centroids(factor: Gaussian, count: Tensor, previous: Tensor, prior: bool) -> Tensor:
    """µ_k = Λ_k⁻¹ η_k where somebody reported the class, else the previous value; `prior` adds N(0, I) once."""
    if prior:
        factor = factor + Gaussian(torch.ones_like(count), torch.zeros_like(factor.shift))  # (4)
    seen = count > 0
    ones = torch.where(seen, 0.0, 1.0).to(factor.shift)  # classes without a report get a harmless unit precision
    safe = factor + Gaussian(ones, torch.zeros_like(factor.shift))
    return torch.where(seen[:, None], safe.mean(), previous.to(factor.shift))  # (13)


def nearest_centroid(first: dict[str, Tensor], centroids: Tensor, known: Tensor, newcomer: Tensor) -> dict[str, Tensor]:
    """The head w_k = 2µ_k, b_k = −‖µ_k‖² for a newcomer; `first` for a member, or if the head is not one layer."""
    weight, bias = 2 * centroids, -(centroids**2).sum(-1)
    if sorted(tuple(p.shape) for p in first.values()) != [tuple(bias.shape), tuple(weight.shape)]:
        return first
    bias = torch.where(known > 0, bias, bias.amin())  # an unknown centroid is 0 and must not look near
    use = (newcomer > 0) & (known.sum() > 0)
    return {n: torch.where(use, weight if p.dim() == 2 else bias, p) for n, p in first.items()}


def _upper(like: Tensor) -> Tensor:
    """Rows and columns of the upper triangle (2, d (d + 1) / 2)."""
    return torch.triu_indices(like.shape[-1], like.shape[-1], device=like.device)


__all__ = ["FORMS", "Classes", "LowRank", "Spread", "describe_classes", "isotropic_precision", "low_rank",
           "multiplied_out", "nearest_centroid", "pack", "read_centroids", "read_sums", "shrunken_precision",
           "sum_classes", "unpack"]  # fmt: skip
