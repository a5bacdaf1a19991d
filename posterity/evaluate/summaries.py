"""From statistics to numbers for people: metrics per client, summaries over clients, how unequal clients are.

The metrics themselves are declared in `metrics.py`, the sums that they need in `scores.py`. Undefined is nan, and no
summary counts it. Everything here happens on the host.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from posterity.core.tree import tree_map, tree_rows
from posterity.evaluate.metrics import METRICS, NUMBER, PERCENT, Format, Metric, Statistics, in_line_order
from posterity.evaluate.ranks import RankedRows
from posterity.evaluate.scores import Scores

RULES = ("pooled", "mean", "train_weighted")
Summary = dict[str, dict[str, float]]
"""metric → rule → value, and under `clients` the number of clients on which the metric is defined."""
IN_LINE = in_line_order(METRICS)
UserSums = Mapping[Metric, Tensor]
"""Metrics of your own with the sums of each, (clients, k); k is 0 where `Scores` is enough."""


def per_client(
    scores: Scores,
    ranks: RankedRows | None = None,
    own: UserSums | None = None,
    scope: Literal["clients", "pooled"] = "clients",
) -> dict[str, Tensor]:
    """Every metric that the scores allow, one value per client (clients,), nan where undefined.

    With two classes `ranks` adds what needs the order of the predictions. `scope` says what the statistics are of: of
    clients, or pooled ones of all rows together.
    """
    own = own or {}
    sums = {metric.name: each.cpu() for metric, each in own.items()}
    statistics = Statistics(tree_map(lambda leaf: leaf.cpu(), scores), ranks, sums)
    classes, task = scores.classes, statistics.task
    fitting = [m for m in IN_LINE if m.fits(task, classes) and (m.source == "sums" or ranks is not None)]
    return {m.name: m.values(statistics) for m in (*fitting, *own) if m.scope in ("both", scope)}


def summarise(
    scores: Scores,
    weights: Tensor,
    ranks: RankedRows | None = None,
    own: UserSums | None = None,
    values: Mapping[str, Tensor] | None = None,
) -> Summary:
    """Each metric by each rule. `weights` (clients,) are the sizes of the clients' training sets.

    `pooled` is the metric of all rows thrown together, `mean` gives every client the same vote, `train_weighted`
    votes by training size. The last two run over the clients on which the metric is defined; `clients` says how many.
    `values` are what `per_client` gives, where that is known already.
    """
    own = own or {}
    values = per_client(scores, ranks, own) if values is None else values
    together = {m: each.sum(0, keepdim=True) for m, each in own.items()}
    pooled = per_client(scores.pooled(), ranks.pooled() if ranks is not None else None, together, "pooled")
    one, size = torch.ones(scores.clients, dtype=torch.float64), weights.cpu().double()
    summary: Summary = {}
    for name in {**pooled, **values}:
        summary[name] = {"pooled": pooled[name].item()} if name in pooled else {}
        if name in values:
            found = {"mean": _mean(values[name], one), "train_weighted": _mean(values[name], size)}
            summary[name] |= {**found, "clients": float((~values[name].isnan()).sum())}
    return summary


def _mean(value: Tensor, weight: Tensor) -> float:
    """Weighted mean over the defined values; a weight of zero also silences an infinite one."""
    use = ~value.isnan() & (weight > 0)
    return ((value[use] * weight[use]).sum() / weight[use].sum()).item()  # 0/0 is nan


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
