"""Fairness: how unequal the clients' accuracies are, and how the figures are shown (`metrics.py` has the metrics)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from posterity.core.tree import tree_map, tree_rows
from posterity.evaluate.metric import NUMBER, PERCENT, Format
from posterity.evaluate.scores import Scores

ENOUGH = 20  # held-out rows from which a client's accuracy says more than its noise


@dataclass(frozen=True)
class FairnessFigure:
    """A figure of `fairness` that the report shows; the order is that of the columns."""

    name: str
    label: str
    better: Literal["higher", "lower"]
    format: Format = NUMBER
    table: Literal["main", "further"] = "further"
    wide_only: bool = False  # whether a narrow terminal leaves its column out


FIGURES = (
    FairnessFigure("worst10", "Worst 10 %", "higher", PERCENT, "main", wide_only=True),
    FairnessFigure("sd", "sd over clients", "lower", PERCENT, "main", wide_only=True),
    FairnessFigure("cov", "CoV over clients", "lower"),
    FairnessFigure("cov_mean", "CoV, mean form", "lower"),
    FairnessFigure("sd_20", "sd, clients with ≥ 20", "lower", PERCENT),
)


def fairness(scores: Scores) -> dict[str, float]:
    """How unequal the clients' accuracies are; keys with `_20` look only at clients with 20 held-out rows or more.

    `sd` is the population standard deviation (divided by the number of clients): the clients are the whole
    federation and no sample of one, and numpy's default, which the code of most papers calls, is the same. `cov` is
    sd over pooled accuracy and `cov_mean` sd over mean accuracy, since papers do not say which. `worst10` is the mean
    accuracy of the worst tenth of the clients (rounded down, at least one), and `worst10_rows` the held-out rows that
    these few clients have together.
    """
    if scores.classes == 0:
        raise ValueError("fairness compares accuracies: these scores are of a regression, look at `mse` per client")
    scores = tree_map(lambda leaf: leaf.cpu(), scores)
    every, enough = _spread(scores, 1), _spread(scores, ENOUGH)
    return every | {f"{name}_{ENOUGH}": value for name, value in enough.items()}


def _spread(scores: Scores, least: int) -> dict[str, float]:
    few = tree_rows(scores, scores.n >= least)
    accuracy, order = (few.correct / few.n).sort(stable=True)
    if len(accuracy) == 0:
        undefined = dict.fromkeys(("sd", "cov", "cov_mean", "worst10"), math.nan)
        return undefined | {"worst10_rows": 0.0, "clients": 0.0}
    worst = max(1, len(accuracy) // 10)
    sd, pooled = accuracy.std(correction=0), few.correct.sum() / few.n.sum()
    return {
        "sd": sd.item(),
        "cov": (sd / pooled).item(),
        "cov_mean": (sd / accuracy.mean()).item(),
        "worst10": accuracy[:worst].mean().item(),
        "worst10_rows": few.n[order[:worst]].sum().item(),
        "clients": float(len(accuracy)),
    }
