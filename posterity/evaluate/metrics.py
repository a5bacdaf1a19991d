"""From sums to numbers for people: metrics per client, summaries over clients, fairness, reliability curve.

Undefined is nan, never zero: a client without held-out rows has no accuracy, and no summary counts it.
Everything here happens on the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.core.hyperparameters import nearest
from posterity.core.tree import tree_map, tree_rows
from posterity.evaluate.ranks import Ranks, cut, ordering, recalibration
from posterity.evaluate.scores import Scores

RULES = ("pooled", "mean", "train_weighted")
ENOUGH = 20  # held-out rows from which a client's accuracy says more than its noise
Summary = dict[str, dict[str, float]]
"""metric → rule → value, and under `clients` the number of clients on which the metric is defined."""


@dataclass(frozen=True)
class Bin:
    """One bar of a reliability diagram: confidences in (lower, upper]; nan where no row falls."""

    lower: float
    upper: float
    count: int
    confidence: float
    accuracy: float


def per_client(scores: Scores, ranks: Ranks | None = None, threshold: float = 0.5) -> dict[str, Tensor]:
    """Every metric that the scores allow, one value per client (clients,), nan where undefined.

    `balanced_accuracy` is the mean recall over the classes that the client has. `ece` and `mce` use 15 bins of the
    top-label confidence; `ece_flat` and `mce_flat` repeat the flattened form (MetaVD erratum M9), which is about
    `classes` times smaller and is there for comparison only. With two classes class 1 is the positive one, and
    `ranks` adds what needs the order of the predictions.
    """
    scores = tree_map(lambda leaf: leaf.cpu(), scores)
    n = torch.where(scores.n > 0, scores.n, math.nan)
    if scores.classes == 0:
        return {"mse": scores.square / n, "nll": scores.nll / n}
    top, flat = _gaps(scores.bins), _gaps(scores.flat)
    found = {
        "accuracy": scores.correct / n,
        "balanced_accuracy": _recall(scores).nanmean(1),
        "nll": scores.nll / n,
        "brier": scores.brier / n,
        "ece": (top * scores.bins[..., 0]).nansum(1) / n,
        "mce": _largest(top, n),
        "ece_flat": (flat * scores.flat[..., 0]).nansum(1) / (n * scores.classes),  # dropped ones count in the total
        "mce_flat": _largest(flat, n),
    }
    return found | _two(scores, ranks, threshold) if scores.classes == 2 else found


def summarise(
    scores: Scores,
    weights: Tensor,
    rules: Sequence[str] = RULES,
    ranks: Ranks | None = None,
    threshold: float = 0.5,
) -> Summary:
    """Each metric by each rule. `weights` (clients,) are the sizes of the clients' training sets.

    `pooled` is the metric of all rows thrown together, `mean` gives every client the same vote, `train_weighted`
    votes by training size. The last two run over the clients on which the metric is defined; `clients` says how many.
    """
    for rule in rules:
        if rule not in RULES:
            raise ValueError(f"there is no aggregation rule {rule!r}: {nearest(rule, RULES)}")
    if len(weights) != scores.clients:
        raise ValueError(f"{len(weights)} weights for {scores.clients} clients: give each client's training size")
    values = per_client(scores, ranks, threshold)
    pooled = per_client(scores.pooled(), ranks.pooled() if ranks is not None else None, threshold)
    one, size = torch.ones(scores.clients, dtype=torch.float64), weights.cpu().double()
    summary: Summary = {}
    for name, value in values.items():
        made = {"pooled": pooled[name].item(), "mean": _mean(value, one), "train_weighted": _mean(value, size)}
        summary[name] = {rule: made[rule] for rule in rules} | {"clients": float((~value.isnan()).sum())}
    return summary


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


def _two(scores: Scores, ranks: Ranks | None, threshold: float) -> dict[str, Tensor]:
    if ranks is None:
        if threshold != 0.5:
            raise ValueError(f"threshold {threshold} needs `ranks`: the sums only know the most probable class")
        specificity, sensitivity = _recall(scores).unbind(1)
        return {"sensitivity": sensitivity, "specificity": specificity}
    sensitivity, specificity = cut(ranks, scores.clients, threshold)
    auroc, auprc = ordering(ranks, scores.clients)
    slope, intercept = recalibration(ranks, scores.clients)
    return {
        "sensitivity": sensitivity,
        "specificity": specificity,
        "auroc": auroc,
        "auprc": auprc,
        "calibration_slope": slope,
        "calibration_intercept": intercept,
    }


def _recall(scores: Scores) -> Tensor:
    return scores.hits / scores.support  # (clients, classes), 0/0 is nan: the client has no such class


def _gaps(bins: Tensor) -> Tensor:
    """Distance of mean confidence and accuracy in each bin, nan where empty (clients, bins)."""
    return (bins[..., 1] - bins[..., 2]).abs() / bins[..., 0]


def _largest(gaps: Tensor, n: Tensor) -> Tensor:
    return torch.where(n > 0, gaps.nan_to_num(0.0).amax(1), math.nan)


def _mean(value: Tensor, weight: Tensor) -> float:
    """Weighted mean over the defined values; a weight of zero also silences an infinite one."""
    use = ~value.isnan() & (weight > 0)
    return ((value[use] * weight[use]).sum() / weight[use].sum()).item()  # 0/0 is nan


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
