"""All metrics of the package: a record here is all it takes to add one (`metric.py` says what a record holds).

The order is that of the report's columns. Undefined is nan, never zero: a client without held-out rows has no
accuracy. `summaries.py` computes them; how unequal clients are is in `fairness.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from posterity.evaluate.metric import PERCENT, Metric, Statistics


def _largest(gaps: Tensor, n: Tensor) -> Tensor:
    return torch.where(n > 0, gaps.nan_to_num(0.0).amax(1), math.nan)


def _mse(s: Statistics) -> Tensor:
    return s.scores.square / s.n


def _accuracy(s: Statistics) -> Tensor:
    return s.scores.correct / s.n


def _balanced_accuracy(s: Statistics) -> Tensor:
    """The mean recall over the classes that the client has."""
    return s.recall.nanmean(1)


def _nll(s: Statistics) -> Tensor:
    return s.scores.nll / s.n


def _brier(s: Statistics) -> Tensor:
    return s.scores.brier / s.n


def _ece(s: Statistics) -> Tensor:
    """Over 15 bins of the top-label confidence."""
    return (s.gaps * s.scores.bins[..., 0]).nansum(1) / s.n


def _mce(s: Statistics) -> Tensor:
    return _largest(s.gaps, s.n)


def _ece_flat(s: Statistics) -> Tensor:
    """The flattened form (MetaVD erratum M9): about `classes` times smaller, there for comparison only."""
    return (s.flat_gaps * s.scores.flat[..., 0]).nansum(1) / (s.n * s.scores.classes)  # dropped ones count in the total


def _mce_flat(s: Statistics) -> Tensor:
    return _largest(s.flat_gaps, s.n)


def _sensitivity(s: Statistics) -> Tensor:
    return s.sensitivity_specificity[0]  # class 1 is the positive one


def _specificity(s: Statistics) -> Tensor:
    return s.sensitivity_specificity[1]


def _auroc(s: Statistics) -> Tensor:
    return s.auroc_auprc[0]


def _auprc(s: Statistics) -> Tensor:
    return s.auroc_auprc[1]


def _slope(s: Statistics) -> Tensor:
    return s.slope_intercept[0]


def _intercept(s: Statistics) -> Tensor:
    return s.slope_intercept[1]


METRICS: tuple[Metric, ...] = (
    Metric("mse", "MSE", "lower", _mse, noun="mean squared error", task="regression", row_mean=True, goal=True),
    Metric("accuracy", "Accuracy", "higher", _accuracy, PERCENT, noun="accuracy", task="classification", row_mean=True,
           goal=True),
    Metric("balanced_accuracy", "Balanced accuracy", "higher", _balanced_accuracy, PERCENT, task="classification",
           wide_only=True),
    Metric("auroc", "AUROC", "higher", _auroc, task="classification", classes=2, source="rows"),
    Metric("auprc", "AUPRC", "higher", _auprc, task="classification", classes=2, source="rows", listed=False,
           wide_only=True),
    Metric("sensitivity", "Sensitivity", "higher", _sensitivity, PERCENT, task="classification", classes=2,
           listed=False, wide_only=True),
    Metric("specificity", "Specificity", "higher", _specificity, PERCENT, task="classification", classes=2,
           listed=False, wide_only=True),
    Metric("nll", "NLL", "lower", _nll, row_mean=True),
    Metric("brier", "Brier", "lower", _brier, task="classification", row_mean=True, wide_only=True),
    Metric("ece", "ECE", "lower", _ece, task="classification"),
    Metric("mce", "MCE", "lower", _mce, task="classification", listed=False, table="further"),
    Metric("ece_flat", "ECE, all classes", "lower", _ece_flat, task="classification", listed=False, table="further"),
    Metric("mce_flat", "MCE, all classes", "lower", _mce_flat, task="classification", listed=False, table=None),
    Metric("calibration_slope", "Calibration slope", 1.0, _slope, task="classification", classes=2, source="rows",
           listed=False, table="further"),
    Metric("calibration_intercept", "Calibration intercept", 0.0, _intercept, task="classification", classes=2,
           source="rows", listed=False, table="further"),
)  # fmt: skip

TERMS: dict[str, tuple[tuple[str, str], ...]] = {
    "classification": (
        ("accuracy", "every held-out sample counts the same, whichever client holds it. Balanced accuracy: the mean "
                     "over classes instead."),
        ("NLL, Brier", "penalties for probabilities: minus the log of the probability given to the truth; squared "
                       "distance to the truth, 0 to 2."),
        ("ECE", "expected calibration error: mean distance between confidence and accuracy over 15 equal bins of "
                "confidence; 0 is perfect."),
        ("worst 10 %", "mean accuracy of the tenth of the clients that is served worst (rounded down, at least one); "
                       "the rows behind it are few, and the clients are those that fared worst after looking."),
        ("sd over clients", "how unequally clients are served, in percentage points; not to be confused with the ± "
                            "over seeds."),
    ),
    "regression": (
        ("MSE", "mean squared error of the predictive mean; every held-out sample counts the same."),
        ("NLL", "minus the log of the predictive density at the true value."),
    ),
}  # fmt: skip
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
