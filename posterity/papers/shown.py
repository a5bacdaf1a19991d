"""Which number of a run a column of a table shows: of whom, by which metric, at which evaluation point.

    shows      members      the clients that took part (the default)
               newcomers    clients that never took part, at the round that the members' scores choose
               gap          newcomers less members
               common       the test set that belongs to no client
    metric     a metric, a figure of fairness, bytes, seconds, or `sparsity`: the share of a pruned layer that is gone
    weight     pooled, mean or train_weighted: how clients are weighed (default: as the metric's own column)
    point      received, adapted or trained (default: where the method's paper scores)
    client     one member by its name, instead of all
    percent    whether numbers are printed times 100, with two digits

Rules choose rounds by the members' held-out rows (`report/table.py`). Where members hold nothing out, the
common test set chooses its own best round (`paper`) and has a last one, and there is no `validated`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from posterity.evaluate import METRICS
from posterity.evaluate.paired import Sample
from posterity.report import table
from posterity.report.findings import samples
from posterity.report.sections import at, longest_adapted
from posterity.report.table import WEIGHT, Column, main_epochs, select_round
from posterity.runs.lines import ScoreLine
from posterity.runs.read import Run
from posterity.settings.hyperparameters import nearest

SPARSITY = Column("sparsity", "Sparsity", ("report", "dropped", "removed"), unit="%", digits=2)
"""What `+drop` and `+snip` say of a round; a method that says neither prunes nothing."""


@dataclass(frozen=True)
class Shown:
    """What a column shows of its runs."""

    shows: str = "members"
    metric: str = "accuracy"
    weight: str = ""
    point: str = ""
    client: str = ""
    percent: bool = False

    @property
    def column(self) -> Column:
        """How the number is printed, and which direction is better."""
        found = _columns()[self.metric]
        if self.weight and found.source[0] == "metric":
            found = replace(found, source=(*found.source[:2], self.weight))
        return replace(found, unit="%", digits=2) if self.percent else found


@cache
def _columns() -> dict[str, Column]:
    """Every column of the report's tables, metrics that have none there, and the sparsity."""
    metrics = {metric.name: table.metric_column(metric.facts()) for metric in METRICS}
    others = {column.key: column for kind in ("main", "further") for column in table.table_columns((), kind)}
    return {**metrics, **others, SPARSITY.key: SPARSITY}


def find_score(run: Run, rule: str, shown: Shown) -> ScoreLine | None:
    """The scores at the round that a rule chooses; of a gap, the newcomers'. None where they were not written."""
    if shown.shows == "common":
        return _common(run, rule)
    selected = select_round(run, rule)
    point = shown.point or run.scored
    if selected is None or (shown.shows == "members" and point == run.scored):
        return selected if selected else None
    group, epochs = "members" if shown.shows == "members" else "newcomers", main_epochs(run, point)
    if epochs in table.epochs_scored(run, point, group):
        return at(run, rule, point, epochs, group)
    return longest_adapted(run, rule) if group == "newcomers" and not shown.point else None


def _common(run: Run, rule: str) -> ScoreLine | None:
    scores = table.series(run, "test", "received", 0, "common")
    if not scores:
        return None
    if rule == "validated":
        return at(run, rule, "received", 0, "common")
    if rule == "last":
        return scores[max(scores)]
    metric = table.goal(run)
    sign = 1 if metric.higher else -1
    known = {r: v for r, s in scores.items() if (v := s.value(metric.name, WEIGHT)) is not None}
    return scores[max(known, key=lambda r: (sign * known[r], -r))] if known else None


def read_value(run: Run, rule: str, shown: Shown) -> float | None:
    """The number of one run."""
    score, column = find_score(run, rule, shown), shown.column
    if score is None:
        return None
    if column.source[0] == "report":
        return _reported(run, score.round, column)
    if shown.client:
        return _of_client(run, score, shown)
    value = table.fetch(run, score, column)
    if shown.shows != "gap" or value is None:
        return value
    members = read_value(run, rule, replace(shown, shows="members"))
    return None if members is None else value - members


def _reported(run: Run, round: int, column: Column) -> float:
    report = next((line.report for line in run.rounds if line.round == round), {})
    return next((value for name in column.source[1:] if (value := report.get(name)) is not None), 0.0)


def _of_client(run: Run, score: ScoreLine, shown: Shown) -> float | None:
    names, values = run.federation.names[: run.federation.members], score.by_client(shown.metric)
    if shown.client not in names:
        raise ValueError(f"{run.folder} has no client {shown.client!r}: {nearest(shown.client, names)}")
    return values[names.index(shown.client)] if len(values) == len(names) else None


def read_samples(runs: Sequence[Run], rule: str, shown: Shown) -> dict[int, Sample]:
    """The numbers by seed, with the clients' own behind them where a pair of methods can be compared by these."""
    if shown.shows in ("members", "newcomers") and not shown.client and shown.column.source[0] == "metric":
        scored = [(run, find_score(run, rule, shown)) for run in runs]
        return samples([(run, score) for run, score in scored if score], shown.column)
    values = {run.seed: read_value(run, rule, shown) for run in runs if run.seed is not None}
    return {seed: Sample(value, None) for seed, value in values.items() if value is not None and math.isfinite(value)}
