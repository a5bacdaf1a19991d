"""Who is better than whom: every pair of methods on every ranked column, over the same seeds and clients.

The statistics are in `evaluate/paired.py`; `verdict.py` says in sentences what comes of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from posterity.evaluate.paired import ClientValues, Paired, Sample, compare_all, detectable, runs_together
from posterity.report.columns import Column, oriented, table_columns
from posterity.report.divergence import has_diverged
from posterity.report.read_runs import Run
from posterity.report.selected_round import WEIGHT, SelectedRound, check_rule, goal
from posterity.report.tables import Row, arms, check_scores, fetch, make_row


@dataclass(frozen=True, eq=False)
class Comparison:
    """The settled methods that have a number in one column, best first, and every pair of them (first above second)."""

    column: Column
    rows: tuple[Row, ...]
    pairs: Mapping[tuple[int, int], Paired]

    def beaten(self, k: int) -> bool:
        """Whether the first of the ranking is better than this one, by more than chance."""
        if k == 0:
            return False
        return self.better(0, k) and self.pairs[0, k].separated

    def better(self, i: int, j: int) -> bool:
        """Whether i is ahead of j over the seeds that both ran (their means may be over others as well)."""
        return self.column.better * self.pairs[i, j].difference > 0

    @property
    def tested(self) -> int:
        """How many pairs Holm's correction runs over."""
        return sum(pair.p is not None for pair in self.pairs.values())

    @property
    def winner(self) -> Row | None:
        won = len(self.rows) > 1 and all(self.beaten(k) for k in range(1, len(self.rows)))
        return self.rows[0] if won else None

    @property
    def level(self) -> list[int]:
        """The places of those that the first does not beat, besides itself."""
        return [k for k in range(1, len(self.rows)) if not self.beaten(k)]

    @cached_property
    def together(self) -> list[tuple[int, int]]:
        """Maximal runs of neighbours no two of which are separated."""
        return runs_together(len(self.rows), [key for key, pair in self.pairs.items() if pair.separated])

    @cached_property
    def detectable(self) -> float | None:
        """The gap that these seeds would have shown among so many pairs."""
        return detectable([pair for pair in self.pairs.values() if pair.p is not None])

    @property
    def listed(self) -> list[tuple[int, int]]:
        """The pairs that a table shows: all of up to six methods; else neighbours, and the best against each."""
        everyone = len(self.rows) <= 6
        return [(i, j) for i, j in self.pairs if everyone or j == i + 1 or i == 0]


def compare_methods(rows: Sequence[Row], column: Column) -> Comparison:
    """A run that is still going has not won or lost yet; a method whose mean is infinite is ranked last, untested."""
    rivals = [r for r in rows if not r.mark and column.key in r.cells]
    rivals.sort(key=lambda r: -column.better * r.cells[column.key].mean)
    return Comparison(column, tuple(rivals), compare_all([samples(r.picked, column) for r in rivals]))


def samples(picked: Sequence[tuple[Run, SelectedRound]], column: Column) -> dict[int, Sample]:
    """A method's numbers by seed; of two runs with the same seed the first counts."""
    found: dict[int, Sample] = {}
    for run, selected in picked:
        value = fetch(run, selected, column)
        if run.seed is not None and value is not None and run.seed not in found:
            found[run.seed] = Sample(value, _clients(run, selected, column))
    return found


def _clients(run: Run, selected: SelectedRound, column: Column) -> ClientValues | None:
    if not column.row_mean or column.source[2] != WEIGHT:
        return None
    sizes, values = selected.score.by_client("n"), selected.score.by_client(column.source[1])
    if not sizes or len(sizes) != len(values):
        return None  # of very many clients a log holds no list
    numbers = np.array([math.nan if v is None else v for v in values])
    return ClientValues(numbers, np.array([n or 0.0 for n in sizes]), *_identity(run))


def _identity(run: Run) -> tuple[int, int]:
    """Of the clients' rows, and of the clients."""
    fed = run.federation
    parts = (fed.names[: fed.members], fed.train, fed.validation, fed.test)
    return hash((*parts, fed.histogram, fed.fingerprint)), hash((*parts, _lasting(run)))


def _lasting(run: Run) -> str | int | None:
    """What must be equal for clients to be the same ones: those that a partition drew last as long as its seed does.

    Where no rule is known, clients with names of their own are the same, and numbered ones if their data are.
    """
    fed, fixed = run.federation, run.config.get("data_seed")
    drawn = fed.rule != "natural" if fed.rule else fed.names[: fed.members] == _numbered(fed.members)
    if not drawn:
        return None
    return fed.fingerprint if fed.fingerprint and not fed.rule else run.seed if fixed is None else fixed


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(f"client {k}" for k in range(count))


def headline(runs: Sequence[Run], show: str = "validated") -> list[Row]:
    """One row per method, best first, under the selection rule `show`."""
    check_rule(show)
    check_scores(runs)
    among = table_columns(runs)
    rows = [make_row(arm, show, among) for arm in arms(runs)]
    key, sign = goal(runs[0]).name, -1 if goal(runs[0]).higher else 1
    rows.sort(key=lambda r: (has_diverged(r.mark), sign * r.cells[key].mean if key in r.cells else math.inf))
    return mark_best(rows, oriented(among, runs[0]))


def complete(rows: Sequence[Row]) -> list[Row]:
    """The rows with the metrics of both tables."""
    return [replace(row, cells={**row.cells, **more.cells}) for row, more in zip(rows, further(rows), strict=True)]


def further(rows: Sequence[Row]) -> list[Row]:
    """The metrics the headline has no room for, in the headline's order."""
    among = table_columns([run for row in rows for run in row.arm.runs], "further")
    return mark_best([make_row(row.arm, row.rule, among) for row in rows], among)


def mark_best(rows: Sequence[Row], among: Sequence[Column]) -> list[Row]:
    """Mark the best of each column, and whatever is not separated from it; bytes are exact, so only equals are."""
    marked = {id(row): dict(row.cells) for row in rows}
    for column in among:
        rivals = [row for row in rows if column.key in row.cells and not row.mark]
        if not column.better or len(rivals) < 2:
            continue
        for row in _best(rivals, column):
            marked[id(row)][column.key] = replace(row.cells[column.key], best=True)
    return [replace(row, cells=marked[id(row)]) for row in rows]


def _best(rivals: Sequence[Row], column: Column) -> list[Row]:
    top = max(column.better * row.cells[column.key].mean for row in rivals)
    equal = [row for row in rivals if column.better * row.cells[column.key].mean == top]
    if column.source == ("bytes",) or not math.isfinite(top):
        return equal
    comparison = compare_methods(rivals, column)
    if not comparison.tested:  # one seed shows which value is the highest, and nothing else
        return equal
    return [
        r for k, r in enumerate(comparison.rows) if not comparison.beaten(k) and math.isfinite(r.cells[column.key].mean)
    ]
