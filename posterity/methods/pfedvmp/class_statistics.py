"""How a client's features lie around the means of their classes, and which precisions of the means follow.

A class is believed about its own variance as far as its samples go: it is at least what ν₀ more samples with a variance
v would leave of v. Without this, three equal rows would have a precision that outweighs everybody. v comes from the
client's other classes, and from ν₀ samples with the variance within classes at a typical client of the last round.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.core.losses import one_hot
from posterity.core.messages import Sum
from posterity.core.tree import record
from posterity.methods.pfedvmp.classwise import ridged_inverses

ROUNDING = 8  # deviations below so many units of rounding of a feature are none
NEGLIGIBLE = 1e-3  # a client whose variance is a smaller share of its features' mean square is not believed alone
NONE = 1e-10  # and with a smaller share than this it has none


@record
class Spread:
    """How a client's features lie around the means of their classes, in float64."""

    count: Tensor  # Z (K,)
    mean: Tensor  # (K, d); 0 where there is no sample
    trace: Tensor  # Z tr Σ (K,)
    square: Tensor  # () mean square of a feature about 0

    def freedom(self) -> Tensor:
        """Z − 1 (K,): samples from which the class's variance is known."""
        return (self.count - 1).clamp(min=0)


@record
class Classes:
    """A client's features, class by class, in float64."""

    count: Tensor  # Z (K,)
    mean: Tensor  # (K, d); 0 where there is no sample
    away: Tensor  # (n, d): features less the mean of their class
    hot: Tensor  # (n, K): 1 where a sample is of the class
    square: Tensor  # () as in `Spread`
    least: Tensor  # () variances below it are rounding of the features

    def spread(self) -> Spread:
        return Spread(self.count, self.mean, self.hot.T @ (self.away**2).sum(1), self.square)


Found = Classes | Spread


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
    unit = ROUNDING * torch.finfo(z.dtype).eps
    z, mask = z.double(), mask.double()
    hot = one_hot(y, classes, mask)  # (n, K)
    count = hot.sum(0)
    mean = hot.T @ z / count.clamp(min=1)[:, None]
    square = ((z**2).mean(1) * mask).sum() / mask.sum().clamp(min=1)
    away = (z - hot @ mean) * mask[:, None]
    return Classes(count, mean, away, hot, square, unit**2 * square)


# --- precisions ------------------------------------------------------------------------------------------------------


@record
class Scale:
    """What a client believes about the variance of a feature within its classes before it looks at one of them."""

    others: Tensor  # v (K,): from the other classes
    pooled: Tensor  # () from all classes
    known: Tensor  # () 1, or 0: nothing is known

    def least(self, freedom: Tensor, nu0: float) -> Tensor:
        """What ν₀ samples of variance v leave of v beside those of a class that has none (K,)."""
        return nu0 * self.others / (freedom + nu0)


def scale_of(found: Spread, nu0: float, common: Tensor) -> Scale:
    """`common` is the variance within classes at a typical client, 0 while nobody knows it.

    A client that is not told is believed alone, unless its classes are points for what one can see.
    """
    trace, freedom = found.trace / found.mean.shape[1], found.freedom()
    total, free = trace.sum(), freedom.sum()
    alone = total / free.clamp(min=1)
    known = (common > 0) | (alone > NEGLIGIBLE * found.square)
    guess = torch.where(common > 0, common, torch.where(known, alone, 1)).to(alone)
    others = ((total - trace).clamp(min=0) + nu0 * guess) / (free - freedom + nu0)
    return Scale(others, (total + nu0 * guess) / (free + nu0), known.to(alone))


def scaled_precision(found: Found, nu0: float, common: Tensor) -> tuple[Tensor, Tensor]:
    """The precision of each class's mean from its spread, and Z (K,) instead where the client knows nothing of it."""
    if isinstance(found, Classes):
        scale = scale_of(found.spread(), nu0, common)
        return shrunken_precision(found, scale, nu0), (1 - scale.known) * found.count
    scale = scale_of(found, nu0, common)
    return isotropic_precision(found, scale, nu0), (1 - scale.known) * found.count


def isotropic_precision(found: Spread, scale: Scale, nu0: float) -> Tensor:
    """Z / s² (K,), s² the unbiased variance of a feature in the class; that of all classes if it has one sample."""
    alone = found.trace / (found.mean.shape[1] * found.freedom().clamp(min=1))
    return scale.known * found.count / torch.maximum(alone, scale.least(found.freedom(), nu0))


def shrunken_precision(found: Classes, scale: Scale, nu0: float) -> Tensor:
    """Z ((Z Σ + ν₀ s² I) / (Z + ν₀))⁻¹ (K, d, d): ν₀ samples of an isotropic prior stand behind the covariance."""
    seen = found.spread()
    alone = seen.trace / (found.mean.shape[1] * found.count.clamp(min=1))
    spread = torch.where(found.count > 2, torch.maximum(alone, scale.least(seen.freedom(), nu0)), scale.pooled)
    inverse = ridged_inverses(found.away, found.hot, nu0 * spread)
    return (scale.known * found.count * (found.count + nu0))[:, None, None] * inverse


# --- all clients ------------------------------------------------------------------------------------------------------


def told(found: Found, nu0: float) -> Sum:
    """The logarithm of a client's variance within classes, weighted by how far F samples are believed: F / (F + ν₀).

    A mean of logarithms is the variance at a typical client; a mean of variances would be that of the widest. A client
    whose variance is none for what one can see has no logarithm and says nothing.
    """
    found = found.spread() if isinstance(found, Classes) else found
    free = found.freedom().sum()
    alone = found.trace.sum() / (found.mean.shape[1] * free).clamp(min=1)
    weight = torch.where(alone > NONE * found.square, free / (free + nu0), 0)
    return Sum({"logarithm": weight * torch.where(weight > 0, alone, 1).log(), "weight": weight})


def common_variance(total: Sum, previous: Tensor) -> Tensor:
    """The variance within classes at a typical client of a round; the previous one if nobody had any."""
    logarithm, weight = total.value["logarithm"], total.value["weight"]
    found = (logarithm / torch.where(weight > 0, weight, 1)).exp()
    return torch.where(weight > 0, found, previous.to(found))


__all__ = ["Classes", "Found", "Scale", "Spread", "common_variance", "describe_classes",
           "isotropic_precision", "read_sums", "scale_of", "scaled_precision", "shrunken_precision", "sum_classes",
           "told"]  # fmt: skip
