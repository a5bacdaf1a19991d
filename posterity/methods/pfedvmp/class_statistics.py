"""How a client's features lie around the means of their classes: µ_{k,n} and Z of (11), and what Σ_{k,n} is made from.

For modes whose precision is a number, sums over the data are enough (`Spread`); for matrices all features are kept
(`Classes`). Also what clients tell each other about the variance within a class (erratum E3).
"""

import torch
from torch import Tensor

from posterity.core import Sum, one_hot, record

ROUNDING = 8  # deviations below so many units of rounding of a feature are none
NONE = 1e-10  # a client whose variance is a smaller share of its features' mean square has none


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


def read_sums(sums: dict[str, Tensor]) -> Spread:
    """The spread of all samples whose sums (`sum_classes`) were added."""
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


# --- all clients


def variance_message(found: Found, nu0: float) -> Sum:
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
