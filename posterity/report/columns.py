"""The columns of the report's tables: the metrics (`evaluate/metrics.py`), what a user added, fairness and costs.

`tables.py` fills them; page and terminal print them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from posterity.evaluate import FIGURES, METRICS, Metric, goal_of
from posterity.report.read_runs import Run
from posterity.report.selected_round import WEIGHT, goal

LARGE = 1e6  # from here on digits behind the point say nothing
SIGN = {"higher": 1, "lower": -1}  # of what is better; a value to come close to is not ranked: 0


@dataclass(frozen=True)
class Column:
    """A quantity: where a run keeps it, what it is called, how it is printed and which direction is better."""

    key: str
    title: str
    source: tuple[str, ...]  # ("metric", name, weight) | ("fairness", name) | ("bytes",) | ("seconds",)
    better: int = 0  # +1 higher, -1 lower, 0 not ranked
    unit: str = ""
    digits: int = 3
    noun: str = ""  # in a sentence
    row_mean: bool = False  # a mean over rows, see `Metric`
    wide_only: bool = False  # whether a narrow terminal leaves it out

    @property
    def heading(self) -> str:
        """The title with its unit, where the cells do not carry it themselves."""
        return f"{self.title}, %" if self.unit == "%" and "%" not in self.title else self.title

    @property
    def hint(self) -> str:
        return {1: "higher is better", -1: "lower is better", 0: ""}[self.better]


def metric_column(facts: Mapping[str, Any]) -> Column:
    """The column of a metric, from what `Metric.facts` says of it."""
    name, label = str(facts["name"]), str(facts.get("label") or facts["name"])
    weight = "mean" if facts.get("scope") == "clients" else WEIGHT
    return Column(
        key=name,
        title=label,
        source=("metric", name, weight),
        better=SIGN.get(str(facts.get("better")), 0),
        unit=str(facts.get("unit") or ""),
        digits=int(facts.get("digits", 3)),
        noun=str(facts.get("noun") or label),
        row_mean=bool(facts.get("row_mean")),
        wide_only=bool(facts.get("wide_only")),
    )


def _fairness(table: str) -> tuple[Column, ...]:
    """How unequal the clients are."""
    return tuple(
        Column(f.name, f.label, ("fairness", f.name), SIGN[f.better], f.format.unit, f.format.digits, f.label,
               wide_only=f.wide_only)
        for f in FIGURES if f.table == table
    )  # fmt: skip


def _weighted(key: str, weight: str, said: str) -> Column:
    """Accuracy with another weight of the clients."""
    column = metric_column(goal_of("classification").facts())
    return replace(column, key=key, title=f"{column.title}, {said}", source=("metric", column.key, weight))


BEFORE: Mapping[str, tuple[Column, ...]] = {
    "main": (),
    "further": (
        _weighted("accuracy_mean", "mean", "clients equal"),
        _weighted("accuracy_train", "train_weighted", "by training size"),
    ),
}
BEHIND: Mapping[str, tuple[Column, ...]] = {
    "main": (
        *_fairness("main"),
        Column("bytes", "Bytes per round", ("bytes",), -1, "B"),
        Column("seconds", "Seconds", ("seconds",), 0, "s", 1, wide_only=True),
    ),
    "further": _fairness("further"),
}
"""What stands before and behind the metrics in a table: accuracy with other weights, fairness, costs."""


def table_columns(runs: Sequence[Run], table: str = "main") -> list[Column]:
    """Every column that a table may have: the package's metrics, those of the users, fairness and costs."""
    known = {metric.name: metric.facts() for metric in METRICS}
    own = {name: facts for name, facts in user_metrics(runs).items() if name not in known}
    metrics = [metric_column(facts) for facts in (known | own).values() if facts.get("table", "main") == table]
    return [*BEFORE[table], *metrics, *BEHIND[table]]


def known_columns() -> list[str]:
    """The keys of all columns that do not come from metrics of the users."""
    return [column.key for table in ("main", "further") for column in table_columns((), table)]


def user_metrics(runs: Sequence[Run]) -> dict[str, Mapping[str, Any]]:
    """What the runs say about metrics that the package does not have, by name; the first run counts."""
    found: dict[str, Mapping[str, Any]] = {}
    for run in runs:
        for facts in run.facts.get("metrics") or ():
            found.setdefault(str(facts["name"]), facts)
    return found


def oriented(among: Sequence[Column], run: Run) -> list[Column]:
    """Fairness is over clients' accuracy or over their squared error: the worst tenth then has the highest value."""
    metric = goal(run)
    if metric.higher:
        return list(among)
    unit, digits = metric.format.unit, metric.format.digits
    return [replace(c, better=-1, unit=unit, digits=digits) if c.source[0] == "fairness" else c for c in among]


def axis_title(metric: Metric, of: str = "") -> str:
    """A metric with its unit, where it stands at an axis or heads a table."""
    return f"{metric.noun}{of}{', %' if metric.share else ''}"


def text(mean: float, sd: float | None, column: Column) -> str:
    """The one place where a number of a table becomes text."""
    if column.unit == "B":
        return human_bytes(mean)
    scale = 100.0 if column.unit == "%" else 1.0
    shown = _figures(scale * mean, column.digits)
    return shown if sd is None or column.unit == "s" else f"{shown} ± {_figures(scale * sd, column.digits)}"


def _figures(value: float, digits: int) -> str:
    """With digits behind the point; what has exploded by its power of ten, or infinite."""
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{value:.{digits}f}" if abs(value) < LARGE else f"{value:.1e}"


def human_bytes(count: float) -> str:
    """Decimal units, three figures: 1 MB is 1,000,000 bytes."""
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    power = min(int(math.log10(count) // 3), len(units) - 1) if count >= 1 else 0
    scaled = count / 1000**power
    digits = 0 if power == 0 or scaled >= 100 else 1 if scaled >= 10 else 2
    return f"{scaled:.{digits}f} {units[power]}"
