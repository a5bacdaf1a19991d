"""Metrics of your own (`--metrics package.module:name`): found, checked, and their sums taken in a scoring pass.

A metric is a `Metric` at the top of a module; those of the package are in `metrics.py`.
"""

from collections.abc import Sequence

from torch import Tensor

from posterity.core.network import Task
from posterity.evaluate.metrics import METRICS, Metric
from posterity.evaluate.scores import distribution, prepared, sums_by_client, zero
from posterity.evaluate.summaries import fairness
from posterity.settings.plugins import find_outside

SHOWN = ("n", "accuracy_mean", "accuracy_train", "bytes", "seconds")  # what lines and tables have besides


def load_metrics(text: str | None) -> tuple[Metric, ...]:
    """The metrics that a list `package.module:name, …` names."""
    found: list[Metric] = []
    for path in filter(None, map(str.strip, (text or "").split(","))):
        metric = _load(path)
        if not metric.name.isidentifier():
            raise ValueError(f"the name {metric.name!r} of the metric {path!r} must be a word: letters, digits, _")
        if metric.name in {*(each.name for each in (*METRICS, *found)), *fairness(zero(1, 2)), *SHOWN}:
            raise ValueError(f"the name {metric.name!r} of the metric {path!r} is taken; give it another one")
        found.append(metric)
    return tuple(found)


def check_task(metrics: Sequence[Metric], task: str, classes: int) -> None:
    """Refuse a metric that does not exist for the data."""
    for metric in metrics:
        if not metric.fits(task, classes):
            many = f" with {metric.classes} classes" if metric.classes else ""
            data = f"a classification with {classes} classes" if task == "classification" else "a regression"
            raise ValueError(f"metric {metric.name!r} is for {metric.task or 'data'}{many}; this is {data}")
        if metric.source == "rows" and (task, classes) != ("classification", 2):
            raise ValueError(f"metric {metric.name!r} needs rows in order (source 'rows'), kept for two classes only")


def user_sums(
    metrics: Sequence[Metric], outputs: Tensor, y: Tensor, offsets: Tensor, task: Task
) -> dict[Metric, Tensor]:
    """The sums of each metric (clients, k); the arguments are those of `score`."""
    if not metrics:
        return {}
    outputs, y, offsets = prepared(outputs, y, offsets)
    outputs = distribution(outputs, y) if task == "classification" else outputs
    return {metric: sums_by_client(_summands(metric, outputs, y), offsets) for metric in metrics}


def _summands(metric: Metric, outputs: Tensor, y: Tensor) -> Tensor:
    """Of each row (N, k)."""
    if metric.row_sums is None:
        return outputs[:, :0]
    found = metric.row_sums(outputs, y)
    if not isinstance(found, Tensor) or found.dim() not in (1, 2) or len(found) != len(outputs):
        got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"row_sums of metric {metric.name!r} must give a tensor ({len(outputs)},) or "
                         f"({len(outputs)}, k), summands of each row; it gave {got}")  # fmt: skip
    return found[:, None] if found.dim() == 1 else found


def _load(path: str) -> Metric:
    module, colon, name = path.partition(":")
    if not colon or not module or not name:
        raise ValueError(f"--metrics takes package.module:name, separated by commas; {path!r} was given")
    metric, _ = find_outside(path, "metric")
    if not isinstance(metric, Metric):
        raise ValueError(f"{path!r} is a {type(metric).__name__} and no posterity.evaluate.Metric")
    return metric
