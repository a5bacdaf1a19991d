"""A metric as one record: all that scoring, selection, tables, terminal and report have to know about it.

`metrics.py` declares those of the package, `user_metrics.py` finds one of your own, `summaries.py` computes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from posterity.core.network import Task
from posterity.evaluate.ranks import RankedRows, cut, ordering, recalibration
from posterity.evaluate.scores import Scores

Better = Literal["higher", "lower"] | float
"""Which value is better; a number is the value to come close to (a calibration slope of 1), and is not ranked."""


@dataclass(frozen=True)
class Format:
    """How a value is printed: its unit and the digits behind the point; `%` is printed times a hundred."""

    unit: str = ""
    digits: int = 3


NUMBER, PERCENT = Format(), Format("%", 1)


@dataclass(frozen=True, eq=False)
class Statistics:
    """What metrics are computed from, on the host: sums that add, and for two classes also the rows in order."""

    scores: Scores
    ranks: RankedRows | None = None
    threshold: float = 0.5  # above which class 1 is predicted
    sums: Mapping[str, Tensor] = field(default_factory=dict)  # metric → its own sums (clients, k), see `row_sums`

    @property
    def task(self) -> Task:
        return "regression" if self.scores.classes == 0 else "classification"

    @cached_property
    def n(self) -> Tensor:
        """Rows (clients,), nan where there are none: so is what is divided by it."""
        return torch.where(self.scores.n > 0, self.scores.n, math.nan)

    @cached_property
    def gaps(self) -> Tensor:
        """Of mean confidence and accuracy in each bin, nan where empty (clients, 15)."""
        return _gaps(self.scores.bins)

    @cached_property
    def flat_gaps(self) -> Tensor:
        """The same in the bins over all class probabilities (clients, 10)."""
        return _gaps(self.scores.flat)

    @cached_property
    def recall(self) -> Tensor:
        return self.scores.hits / self.scores.support  # (clients, classes), 0/0 is nan: the client has no such class

    @cached_property
    def sensitivity_specificity(self) -> tuple[Tensor, Tensor]:
        """At the threshold; without rows only the most probable class is known."""
        if self.ranks is not None:
            return cut(self.ranks, self.scores.clients, self.threshold)
        if self.threshold != 0.5:
            raise ValueError(f"threshold {self.threshold} needs `ranks`: the sums only know the most probable class")
        specificity, sensitivity = self.recall.unbind(1)
        return sensitivity, specificity

    @cached_property
    def auroc_auprc(self) -> tuple[Tensor, Tensor]:
        return ordering(self._rows, self.scores.clients)

    @cached_property
    def slope_intercept(self) -> tuple[Tensor, Tensor]:
        """Of the recalibration."""
        return recalibration(self._rows, self.scores.clients)

    @property
    def _rows(self) -> RankedRows:
        if self.ranks is None:
            raise ValueError("this metric needs the rows in the order of their scores (`ranks`)")
        return self.ranks


def _gaps(bins: Tensor) -> Tensor:
    return (bins[..., 1] - bins[..., 2]).abs() / bins[..., 0]


@dataclass(frozen=True)
class Metric:
    """`compute` gives one value per client (clients,), nan where undefined; of pooled statistics that of all rows.

    A metric of your own may need sums that `Scores` does not have: `row_sums(outputs, y)` gives each row's summands
    (N,) or (N, k), from log-probabilities (N, classes) or mean and variance (N, 2) in float64. They are added up
    per client, and over parts of the data and clients where these are merged; `compute` finds them, (clients, k), in
    `statistics.sums[name]`.
    """

    name: str  # in metrics.jsonl, `Result.metric` and --json
    label: str  # heading of its column
    better: Better
    compute: Callable[[Statistics], Tensor]
    format: Format = NUMBER
    noun: str = ""  # in a sentence; the label, unless given
    meaning: str = ""  # one sentence for the report's list of terms
    task: Task | None = None  # None: both
    classes: int | None = None  # only with so many classes
    source: Literal["sums", "rows"] = "sums"  # rows: needs `statistics.ranks`, which exist for two classes
    row_sums: Callable[[Tensor, Tensor], Tensor] | None = None
    scope: Literal["both", "clients", "pooled"] = "both"  # of each client, of all rows together, or both
    listed: bool = True  # whether a line of metrics.jsonl has every client's value
    row_mean: bool = False  # a mean over rows: pooled, it is the clients' mean weighted by rows, and pairs use that
    goal: bool = False  # of its task: rounds are chosen by it and methods ranked by it
    table: Literal["main", "further"] | None = "main"  # of the report
    wide_only: bool = False  # whether a narrow terminal leaves its column out

    def __post_init__(self) -> None:
        if self.better not in ("higher", "lower") and (isinstance(self.better, (str, bool))):
            raise ValueError(f"metric {self.name!r}: better must be 'higher', 'lower' or a number, not {self.better!r}")

    @property
    def higher(self) -> bool:
        """Whether a larger value is better."""
        return self.better == "higher"

    @property
    def share(self) -> bool:
        """Whether it lies between 0 and 1 and is printed as a percentage."""
        return self.format.unit == "%"

    def fits(self, task: str, classes: int) -> bool:
        """Whether it exists for such a task."""
        return self.task in (None, task) and self.classes in (None, classes)

    def values(self, statistics: Statistics) -> Tensor:
        """One value per client, checked."""
        found, expected = self.compute(statistics), statistics.scores.n.shape  # (clients,)
        if not isinstance(found, Tensor) or found.shape != expected:
            clients = statistics.scores.clients
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"metric {self.name!r} must give one value per client, a tensor ({clients},); it gave {got}"
            )
        return found

    def facts(self) -> dict[str, Any]:
        """What a reader of its values needs, where the module that declares it may be absent (`run.json`)."""
        return {
            "name": self.name,
            "label": self.label,
            "better": self.better,
            "unit": self.format.unit,
            "digits": self.format.digits,
            "noun": self.noun or self.label,
            "meaning": self.meaning,
            "scope": self.scope,
            "row_mean": self.row_mean,
            "table": self.table,
            "wide_only": self.wide_only,
        }
