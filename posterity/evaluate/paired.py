"""Two methods on the same seeds and clients: the difference, an interval for it, and how many seeds would tell.

The unit is the seed: it moves the partition, the initial model and the batches for all methods alike, so what it adds
to both cancels in the difference d_s of one seed. d̄ is the mean over the S seeds that both methods ran, s² the sample
variance of d_s. Where the metric is a weighted mean over clients, d_s = Σ_k w_k d_sk with w_k = n_k / n, the clients
say how far d_s can be trusted:

    v_s = Σ_k w_k² (d_sk − d_s)² / (1 − w_k)                                                                        (1)

is the variance that clients drawn anew would give it (without bias where only the rows of a client vary). Designs:

- `nested`: every seed has its own clients. Their variance is part of s² already, so it only guards against seeds that
  agree by luck, or by the grain of a small test set (s² = 0 when each seed has the same few rows more):

    d̄ ± t_{S−1} √( max(s², v) / S ),  v the mean of v_s                                                             (2)

  It speaks about other seeds: other partitions of this pool of data, other initial models and batches.
- `crossed`: the clients, and their sizes, are the same with every seed. More seeds cannot show what other clients would
  do, so the clients' own variance is added. V₁ = s²/S, V₂ is (1) for the differences averaged over seeds, V₁₂ that of
  what is left when both means are taken off, over S (S − 1), and counted in both:

    d̄ ± t_f √V,  V = max(V₁, V₂, V₁ + V₂ − V₁₂)                                                                     (3)
    f = V² / (V₁² / f₁ + V₂² / f₂ + V₁₂² / (f₁ f₂)), at least min(f₁, f₂);  f₁ = S − 1, f₂ = 1 / Σ w_k² − 1          (4)

  (two-way random effects; Satterthwaite, 1946; Cameron, Gelbach and Miller, 2011). It speaks about other seeds and
  about other clients like these.
- `seeds`: the metric does not split over clients, or the clients are unknown or not the same for both methods: (2)
  without v.

Comparing the best with the rest, after looking which is best, is a choice among all pairs: so Holm's correction (1979)
runs over all pairs of methods.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from posterity.evaluate.student import power, quantile, shift_for, two_sided

LEVEL = 0.05
POWER = 0.8
MOST = 1000  # seeds: beyond that the answer is "more"
GRAIN = 1e-6  # a spread below this part of the numbers is rounding: packed ones have seven digits


@dataclass(frozen=True, eq=False)
class ClientValues:
    """The numbers of one run's clients. `rows` is equal in two runs of a seed where the clients hold the same rows,
    `who` in two seeds where they are the same clients."""

    values: NDArray[np.float64]
    sizes: NDArray[np.float64]
    rows: Hashable
    who: Hashable


@dataclass(frozen=True, eq=False)
class Sample:
    """A method's number with one seed; `clients` where the number is the mean of theirs, weighted by size."""

    value: float
    clients: ClientValues | None = None


Samples = Mapping[int, Sample]
"""Of one method, by seed."""


@dataclass(frozen=True)
class Paired:
    """First method minus second, over the seeds that both ran. `p` is None where nothing can be tested."""

    each: tuple[float, ...]  # the differences, by seed
    difference: float  # their mean
    design: str
    per_seed: float = 0.0  # variance that more seeds divide
    lasting: float = 0.0  # variance that more seeds leave: of clients that are the same in every seed
    clients_df: float = math.inf
    error: float | None = None
    df: float = 0.0
    p: float | None = None
    holm: float | None = None  # p adjusted for all pairs that were compared
    level: float = LEVEL  # at which Holm's order tests this pair

    @property
    def seeds(self) -> int:
        return len(self.each)

    @property
    def separated(self) -> bool:
        return self.holm is not None and self.holm < LEVEL

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of this pair by itself."""
        if self.error is None:
            return None
        reach = quantile(LEVEL, self.df) * self.error if self.error else 0.0
        return self.difference - reach, self.difference + reach

    @cached_property
    def needed(self) -> int | None:
        """Seeds that would separate the pair; None for more than 1,000, or where no spread is known."""
        if self.error is None:
            return None
        return seeds_needed(self.difference, self.per_seed, self.lasting, self.clients_df, self.level)


def compare_all(methods: Sequence[Samples]) -> dict[tuple[int, int], Paired]:
    """Every pair of methods (first index below second) with Holm's adjusted p-values over all pairs tested."""
    pairs = {(i, j): compare_pair(methods[i], methods[j]) for i, j in combinations(range(len(methods)), 2)}
    adjusted = holm([pair.p for pair in pairs.values()])
    return {
        key: replace(pair, holm=p, level=LEVEL / times)
        for (key, pair), (p, times) in zip(pairs.items(), adjusted, strict=True)
    }


def compare_pair(first: Samples, second: Samples) -> Paired:
    """The paired difference of two methods by the design that their samples allow."""
    shared = sorted(s for s in first.keys() & second.keys() if math.isfinite(first[s].value - second[s].value))
    each = tuple(first[s].value - second[s].value for s in shared)
    found = [_differences(first[s].clients, second[s].clients) for s in shared]
    known = [one for one in found if one is not None]
    known = known if len(known) == len(shared) else []
    design = "seeds" if not known else "crossed" if _same(known) else "nested"
    pair = Paired(each, math.fsum(each) / len(each) if each else math.nan, design)
    if len(each) < 2:
        return pair
    made = _crossed(pair, known) if design == "crossed" else _nested(pair, known)
    return _tested(made, GRAIN * max(abs(samples[s].value) for samples in (first, second) for s in shared))


def holm(ps: Sequence[float | None]) -> list[tuple[float | None, int]]:
    """Adjusted p-values, and by how much each was multiplied; None was not tested and does not count."""
    order = sorted((p, k) for k, p in enumerate(ps) if p is not None)
    adjusted: list[tuple[float | None, int]] = [(None, max(len(order), 1))] * len(ps)
    reached = 0.0
    for rank, (p, k) in enumerate(order):
        times = len(order) - rank
        reached = max(reached, min(1.0, times * p))
        adjusted[k] = (reached, times)
    return adjusted


def seeds_needed(
    difference: float, per_seed: float, lasting: float = 0.0, clients_df: float = math.inf, level: float = LEVEL
) -> int | None:
    """The fewest seeds, up to 1,000, with a power of 80 % if this difference and these variances were the true ones."""

    def reached(seeds: int) -> bool:
        part = per_seed / seeds
        total = part + lasting
        if total <= 0:
            return True
        df = total**2 / (part**2 / (seeds - 1) + lasting**2 / clients_df)
        return power(abs(difference) / math.sqrt(total), df, level) >= POWER

    if difference == 0 or not reached(MOST):
        return None
    low, high = 1, MOST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def detectable(pairs: Sequence[Paired]) -> float | None:
    """The gap that would have shown with a power of 80 % among so many pairs, at the median standard error."""
    known = sorted((pair.error, pair.df) for pair in pairs if pair.error)
    if not known:
        return None
    error, df = known[(len(known) - 1) // 2]
    return error * shift_for(df, LEVEL / len(pairs), POWER)


def _differences(first: ClientValues | None, second: ClientValues | None) -> ClientValues | None:
    """Client by client; None where they are not the same clients. Clients without rows have no number and no weight.

    Who was not scored has no rows either: a sample of the clients and all of them are not the same clients.
    """
    if first is None or second is None or first.rows != second.rows or not np.array_equal(first.sizes, second.sizes):
        return None
    held = first.sizes > 0
    values = (first.values - second.values)[held]
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    return ClientValues(values, first.sizes[held], first.rows, first.who)


def _same(known: Sequence[ClientValues]) -> bool:
    """Whether every seed has the same clients with as many rows."""
    first = known[0]
    return len(known) > 1 and all(c.who == first.who and np.array_equal(c.sizes, first.sizes) for c in known)


def _nested(pair: Paired, known: Sequence[ClientValues]) -> Paired:
    inside = math.fsum(_variance(one.values, one.sizes) for one in known) / pair.seeds
    spread = max(_between(pair), inside)
    return replace(pair, per_seed=spread, error=math.sqrt(spread / pair.seeds), df=pair.seeds - 1)  # (2)


def _crossed(pair: Paired, known: Sequence[ClientValues]) -> Paired:
    sizes, seeds = known[0].sizes, pair.seeds
    table = np.stack([one.values for one in known])  # (seeds, clients)
    weights = sizes / sizes.sum()
    by_client, by_seed = table.mean(0), table @ weights
    rest = table - by_client - by_seed[:, None] + by_client @ weights
    seed = _between(pair) / seeds
    client = _variance(by_client, sizes)
    both = sum(_variance(row, sizes) for row in rest) / (seeds * (seeds - 1))
    total = max(seed, client, seed + client - both)  # (3)
    f1, f2 = seeds - 1, max(1.0, 1 / float(weights @ weights) - 1)
    below = seed**2 / f1 + client**2 / f2 + both**2 / (f1 * f2)
    df = max(total**2 / below, min(f1, f2)) if below else f1  # (4)
    lasting = max(client - both, 0.0)
    return replace(pair, per_seed=(total - lasting) * seeds, lasting=lasting, clients_df=f2, error=math.sqrt(total),
                   df=df)  # fmt: skip


def _between(pair: Paired) -> float:
    """Sample variance of the seeds' differences."""
    return math.fsum((d - pair.difference) ** 2 for d in pair.each) / (pair.seeds - 1)


def _variance(values: NDArray[np.float64], sizes: NDArray[np.float64]) -> float:
    """Variance of the weighted mean of clients."""
    weights = sizes / sizes.sum()
    away = values - weights @ values
    return float((weights**2 * away**2 / (1 - weights)).sum())  # (1)


def _tested(pair: Paired, rounding: float) -> Paired:
    """With its p-value. Differences that agree but for rounding have no spread to test against, unless all are 0."""
    assert pair.error is not None
    if pair.error > rounding:
        return replace(pair, p=two_sided(pair.difference / pair.error, pair.df))
    level = abs(pair.difference) <= rounding
    return replace(pair, difference=0.0, p=1.0) if level else replace(pair, error=None)
