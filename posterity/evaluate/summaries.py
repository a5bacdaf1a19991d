"""From statistics to numbers for people: metrics per client, summaries over clients, reliability curve.

The metrics themselves are declared in `metrics.py`, the sums that they need in `scores.py`; `fairness.py` says how
unequal clients are. Undefined is nan, and no summary counts it. Everything here happens on the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from posterity.core.hyperparameters import nearest
from posterity.core.tree import tree_map
from posterity.evaluate.metric import Metric, Statistics
from posterity.evaluate.metrics import METRICS, in_line_order
from posterity.evaluate.ranks import RankedRows
from posterity.evaluate.scores import Scores

RULES = ("pooled", "mean", "train_weighted")
Summary = dict[str, dict[str, float]]
"""metric → rule → value, and under `clients` the number of clients on which the metric is defined."""
IN_LINE = in_line_order(METRICS)
UserSums = Mapping[Metric, Tensor]
"""Metrics of your own with the sums of each, (clients, k); k is 0 where `Scores` is enough."""


@dataclass(frozen=True)
class Bin:
    """One bar of a reliability diagram: confidences in (lower, upper]; nan where no row falls."""

    lower: float
    upper: float
    count: int
    confidence: float
    accuracy: float


def per_client(
    scores: Scores,
    ranks: RankedRows | None = None,
    threshold: float = 0.5,
    own: UserSums | None = None,
    scope: Literal["clients", "pooled"] = "clients",
) -> dict[str, Tensor]:
    """Every metric that the scores allow, one value per client (clients,), nan where undefined.

    With two classes class 1 is the positive one, and `ranks` adds what needs the order of the predictions. `scope`
    says what the statistics are of: of clients, or pooled ones of all rows together.
    """
    own = own or {}
    sums = {metric.name: each.cpu() for metric, each in own.items()}
    statistics = Statistics(tree_map(lambda leaf: leaf.cpu(), scores), ranks, threshold, sums)
    classes, task = scores.classes, statistics.task
    fitting = [m for m in IN_LINE if m.fits(task, classes) and (m.source == "sums" or ranks is not None)]
    return {m.name: m.values(statistics) for m in (*fitting, *own) if m.scope in ("both", scope)}


def summarise(
    scores: Scores,
    weights: Tensor,
    rules: Sequence[str] = RULES,
    ranks: RankedRows | None = None,
    threshold: float = 0.5,
    own: UserSums | None = None,
    values: Mapping[str, Tensor] | None = None,
) -> Summary:
    """Each metric by each rule. `weights` (clients,) are the sizes of the clients' training sets.

    `pooled` is the metric of all rows thrown together, `mean` gives every client the same vote, `train_weighted`
    votes by training size. The last two run over the clients on which the metric is defined; `clients` says how many.
    `values` are what `per_client` gives, where that is known already.
    """
    for rule in rules:
        if rule not in RULES:
            raise ValueError(f"there is no aggregation rule {rule!r}: {nearest(rule, RULES)}")
    if len(weights) != scores.clients:
        raise ValueError(f"{len(weights)} weights for {scores.clients} clients: give each client's training size")
    own = own or {}
    values = per_client(scores, ranks, threshold, own) if values is None else values
    together = {m: each.sum(0, keepdim=True) for m, each in own.items()}
    pooled = per_client(scores.pooled(), ranks.pooled() if ranks is not None else None, threshold, together, "pooled")
    one, size = torch.ones(scores.clients, dtype=torch.float64), weights.cpu().double()
    summary: Summary = {}
    for name in {**pooled, **values}:
        made = {"pooled": pooled[name].item()} if name in pooled else {}
        if name in values:
            made |= {"mean": _mean(values[name], one), "train_weighted": _mean(values[name], size)}
        summary[name] = {rule: made[rule] for rule in rules if rule in made}
        if name in values:
            summary[name]["clients"] = float((~values[name].isnan()).sum())
    return summary


def curve(scores: Scores) -> list[Bin]:
    """The reliability diagram of all clients together."""
    bins = scores.bins.sum(0).cpu()  # (15, 3)
    mean = (bins[:, 1:] / bins[:, :1]).tolist()  # 0/0 is nan
    total, width = bins[:, 0].tolist(), 1 / len(bins)
    return [Bin(i * width, (i + 1) * width, int(total[i]), *mean[i]) for i in range(len(bins))]


def gap(members: Summary, newcomers: Summary) -> Summary:
    """Newcomers minus members, for each metric and rule that both have: a negative accuracy says newcomers lose."""
    return {
        name: {rule: newcomers[name][rule] - value for rule, value in by.items() if rule in newcomers[name]}
        | {"clients": newcomers[name].get("clients", math.nan)}
        for name, by in members.items()
        if name in newcomers
    }


def _mean(value: Tensor, weight: Tensor) -> float:
    """Weighted mean over the defined values; a weight of zero also silences an infinite one."""
    use = ~value.isnan() & (weight > 0)
    return ((value[use] * weight[use]).sum() / weight[use].sum()).item()  # 0/0 is nan
