"""All metrics of the package. A `Metric` is all that scoring, selection, tables, terminal and report know about one.

A record in `METRICS` is all it takes to add one; the order is that of the report's columns. Undefined is nan, never
zero: a client without held-out rows has no accuracy. `summaries.py` computes metrics and says how unequal clients are;
`user_metrics.py` finds one of your own.
"""

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from posterity.core.network import Task
from posterity.evaluate.ranks import RankedRows, ordering, recalibration
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
    def auroc_auprc(self) -> tuple[Tensor, Tensor]:
        assert self.ranks is not None
        return ordering(self.ranks, self.scores.clients)

    @cached_property
    def slope_intercept(self) -> tuple[Tensor, Tensor]:
        """Of the recalibration."""
        assert self.ranks is not None
        return recalibration(self.ranks, self.scores.clients)


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
            got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f"metric {self.name!r} must give one value per client, a tensor {tuple(expected)}; "
                             f"it gave {got}")  # fmt: skip
        return found

    def facts(self) -> dict[str, Any]:
        """What a reader of its values needs, where the module that declares it may be absent (`run.json`)."""
        names = ("name", "label", "better", "meaning", "scope", "row_mean", "table", "wide_only")
        found = {name: getattr(self, name) for name in names}
        return {**found, "unit": self.format.unit, "digits": self.format.digits, "noun": self.noun or self.label}


def _largest(gaps: Tensor, n: Tensor) -> Tensor:
    return torch.where(n > 0, gaps.nan_to_num(0.0).amax(1), math.nan)


def _balanced_accuracy(s: Statistics) -> Tensor:
    """The mean recall over the classes that the client has."""
    return s.recall.nanmean(1)


def _ece(s: Statistics) -> Tensor:
    """Over 15 bins of the top-label confidence."""
    return (s.gaps * s.scores.bins[..., 0]).nansum(1) / s.n


def _ece_flat(s: Statistics) -> Tensor:
    """The flattened form (MetaVD erratum M9): about `classes` times smaller, there for comparison only."""
    return (s.flat_gaps * s.scores.flat[..., 0]).nansum(1) / (s.n * s.scores.classes)  # dropped ones count in the total


_of_classes = partial(Metric, task="classification")
_of_two = partial(_of_classes, classes=2)  # class 1 is the positive one
_of_rows = partial(_of_two, source="rows")

METRICS: tuple[Metric, ...] = (
    Metric("mse", "MSE", "lower", lambda s: s.scores.square / s.n, noun="mean squared error", task="regression",
           row_mean=True, goal=True),
    _of_classes("accuracy", "Accuracy", "higher", lambda s: s.scores.correct / s.n, PERCENT, noun="accuracy",
                row_mean=True, goal=True),
    _of_classes("balanced_accuracy", "Balanced accuracy", "higher", _balanced_accuracy, PERCENT, wide_only=True),
    _of_rows("auroc", "AUROC", "higher", lambda s: s.auroc_auprc[0]),
    _of_rows("auprc", "AUPRC", "higher", lambda s: s.auroc_auprc[1], listed=False, wide_only=True),
    _of_two("sensitivity", "Sensitivity", "higher", lambda s: s.recall[:, 1], PERCENT, listed=False, wide_only=True),
    _of_two("specificity", "Specificity", "higher", lambda s: s.recall[:, 0], PERCENT, listed=False, wide_only=True),
    Metric("nll", "NLL", "lower", lambda s: s.scores.nll / s.n, row_mean=True),
    _of_classes("brier", "Brier", "lower", lambda s: s.scores.brier / s.n, row_mean=True, wide_only=True),
    _of_classes("ece", "ECE", "lower", _ece),
    _of_classes("mce", "MCE", "lower", lambda s: _largest(s.gaps, s.n), listed=False, table="further"),
    _of_classes("ece_flat", "ECE, all classes", "lower", _ece_flat, listed=False, table="further"),
    _of_classes("mce_flat", "MCE, all classes", "lower", lambda s: _largest(s.flat_gaps, s.n), listed=False,
                table=None),
    _of_rows("calibration_slope", "Calibration slope", 1.0, lambda s: s.slope_intercept[0], listed=False,
             table="further"),
    _of_rows("calibration_intercept", "Calibration intercept", 0.0, lambda s: s.slope_intercept[1], listed=False,
             table="further"),
)  # fmt: skip

TERMS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("terms.toml").read_text(encoding="utf-8"))
"""What the columns mean, by task, as the report explains it."""


def goal_of(task: str) -> Metric:
    """The metric that rounds are chosen by and methods are ranked by; what is no regression is classification."""
    return next(m for m in METRICS if m.goal and (m.task == "regression") == (task == "regression"))


def in_line_order(metrics: Iterable[Metric]) -> list[Metric]:
    """As a line of metrics.jsonl has them: first what needs fewest, then for two classes, then from rows in order."""
    return sorted(metrics, key=lambda m: (m.classes is not None, m.source == "rows"))


def listed_per_client(metrics: Iterable[Metric]) -> list[Metric]:
    """Those of which a line has every client's value, in the line's order: what only a regression has comes last."""
    some = (m for m in metrics if m.listed and m.scope != "pooled")
    return sorted(in_line_order(some), key=lambda m: m.task == "regression")
