"""The headline table, as numbers and as text: page and terminal both print `Cell.text`, so they cannot differ.

Its columns are in `columns.py`; `ranking.py` sorts its rows and marks the best.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from posterity.report.columns import Column, oriented, table_columns, text
from posterity.report.divergence import mark
from posterity.report.logs import ReportError
from posterity.report.read_runs import Run
from posterity.report.selected_round import SelectedRound, main_epochs, select_round

# What may differ between the seeds of one method without making it another method.
INCIDENTAL = {
    "seed",
    "data_seed",
    "data_dir",
    "device",
    "engine",
    "store",
    "memory",
    "out",
    "folder",
    "name",
    "threads",
    "metrics",
    "keep",
}


@dataclass(frozen=True)
class Cell:
    """Mean and sample standard deviation over seeds. `best`: the best of its column, or not separated from the best."""

    mean: float
    sd: float | None
    n: int
    text: str
    best: bool = False


@dataclass(frozen=True)
class Arm:
    """A method with one setting, and its runs: those that count, and those set aside: not finished, or there twice."""

    label: str
    index: int
    runs: tuple[Run, ...]
    aside: tuple[Run, ...] = ()

    @property
    def finished(self) -> bool:
        return all(r.finished for r in self.runs)


@dataclass(frozen=True)
class Row:
    """One line of the headline table."""

    label: str
    arm: Arm
    point: str
    rule: str
    picked: tuple[tuple[Run, SelectedRound], ...]  # the runs that count, and the round that the rule chose in each
    mark: str  # empty, or why the row takes no part in the ranking: provisional, diverged
    cells: Mapping[str, Cell]

    @property
    def rounds(self) -> tuple[int, ...]:
        return tuple(selected.round for _, selected in self.picked)

    @property
    def seeds(self) -> int:
        return len(self.picked)


def columns(rows: Sequence[Row], table: str = "main") -> list[Column]:
    """The columns that at least one row fills; a regression shows no accuracy, two classes show AUROC."""
    among = oriented(table_columns([run for row in rows for run in row.arm.runs], table), rows[0].arm.runs[0])
    return [c for c in among if any(c.key in r.cells for r in rows)]


def check_scores(runs: Sequence[Run]) -> None:
    """A finished run without scores is an error; one that is still going may simply not have got there yet."""
    for run in runs:
        if run.finished and not run.scores:
            raise ReportError(f"{run.folder} finished without scores: its metrics.jsonl has no line of kind 'score'.")
    if not any(run.scores for run in runs):
        raise ReportError(
            f"{runs[0].folder} has no scores yet: wait for the first scored round (status {runs[0].status})."
        )


def arms(runs: Sequence[Run]) -> list[Arm]:
    """Runs that differ in nothing but their seed, together; numbered by label, so colours do not depend on results."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.scores:
            groups.setdefault((run.label, repr(sorted(settings(run).items()))), []).append(run)
    made: list[Arm] = []
    for (label, setting), members in sorted(groups.items(), key=lambda g: (g[0][0].casefold(), g[0][1])):
        rivals = [g[0] for (other, s), g in groups.items() if other == label and s != setting]
        counted = _once([r for r in members if r.finished] or members)
        aside = [r for r in members if r not in counted]
        named = _distinct(label, members[0], rivals, [arm.label for arm in made])
        made.append(Arm(named, len(made), tuple(counted), tuple(aside)))
    return made


def _once(runs: Sequence[Run]) -> list[Run]:
    """The first run of every seed (and partition): one that is there twice must not count twice."""
    firsts = {draws(run): run for run in reversed(runs)}
    return [run for run in runs if run.seed is None or firsts[draws(run)] is run]


def draws(run: Run) -> tuple[int | None, Any]:
    """What tells runs of one setting apart: the seed, and the partition's where that is fixed."""
    return run.seed, run.config.get("data_seed")


def _distinct(label: str, run: Run, rivals: Sequence[Run], taken: Sequence[str]) -> str:
    """The label with some settings that rivals have otherwise, or all of them, or a number: no two are equal."""
    tries = [label + _suffix(run, rivals), label + _suffix(run, rivals, len(settings(run)))]
    numbered = (f"{label} (setting {number})" for number in itertools.count(2))
    return next(one for one in itertools.chain(tries, numbered) if one not in taken)


def settings(run: Run) -> dict[str, Any]:
    """The configuration as dotted keys, without what only names or places the run."""
    flat: dict[str, Any] = {}

    def walk(table: Mapping[str, Any], prefix: str) -> None:
        for key, value in table.items():
            if isinstance(value, Mapping):
                walk(value, f"{prefix}{key}.")
            elif prefix or key not in INCIDENTAL:
                flat[prefix + key] = value

    walk(run.config, "")
    return flat


def _suffix(run: Run, rivals: Sequence[Run], most: int = 3) -> str:
    """What tells this setting from others of the same method, in as few words as possible."""
    mine, others = settings(run), [settings(r) for r in rivals]
    keys = [k for k in sorted(mine) if any(o.get(k) != mine[k] for o in others)]
    told = ", ".join(f"{k.rsplit('.', 1)[-1]} {mine[k]}" for k in keys[:most])
    return f" ({told}{', …' if len(keys) > most else ''})" if keys else ""


def make_row(arm: Arm, rule: str, among: Sequence[Column]) -> Row:
    rounds = [(run, select_round(run, rule)) for run in arm.runs]
    picked = [(run, selected) for run, selected in rounds if selected is not None]
    among = oriented(among, arm.runs[0])
    cells = {c.key: cell for c in among if (cell := summarise([fetch(r, ch, c) for r, ch in picked], c)) is not None}
    last = arm.runs[0]
    return Row(
        label=arm.label,
        arm=arm,
        point=point_name(last.scored, main_epochs(last, last.scored), [last]),
        rule=rule,
        picked=tuple(picked),
        mark=mark(picked) if arm.finished else progress(max(arm.runs, key=lambda r: r.reached)),
        cells=cells,
    )


def progress(run: Run) -> str:
    """How far an unfinished run got."""
    of = f" of {run.planned}" if run.planned else ""
    return f"{run.status}, round {run.reached}{of}"


def point_name(point: str, epochs: int, runs: Iterable[Run]) -> str:
    """`adapted` alone does not say for how long, so the epochs are part of the name, or what `runs` take for them."""
    if point != "adapted":
        return point
    return f"adapted, {' or '.join(dict.fromkeys(_length(epochs, run.adapt_steps) for run in runs))}"


def _length(epochs: int, steps: int | None) -> str:
    count, unit = (epochs, "epoch") if steps is None else (epochs * steps, "step")
    return f"{count} {unit}{'' if count == 1 else 's'}"


def fetch(run: Run, selected: SelectedRound, column: Column) -> float | None:
    """One number of one run."""
    kind, *path = column.source
    if kind == "metric":
        return selected.score.value(path[0], path[1])
    if kind == "fairness":
        return selected.score.fairness.get(path[0])
    if kind == "seconds":
        return run.seconds
    sent = [r.traffic for r in run.rounds if r.traffic is not None]
    return sum(sent) / len(sent) if sent else None


def by_seed(row: Row, column: Column) -> dict[str, float]:
    """The number of every seed, behind the mean; of two runs with the same seed the first counts."""
    found: dict[str, float] = {}
    for run, selected in row.picked:
        value = fetch(run, selected, column)
        if value is not None:
            found.setdefault(str(run.seed), value)
    return found


def summarise(values: Iterable[float | None], column: Column) -> Cell | None:
    """Mean ± sample sd over the runs that have the number; None where none has, or the mean is undefined."""
    known = [v for v in values if v is not None and not math.isnan(v)]  # a gap between infinities is none
    if not known or {math.inf, -math.inf} <= set(known):
        return None
    mean = statistics.fmean(known)
    if math.isinf(mean):
        return Cell(mean, None, len(known), text(mean, None, column))
    sd = statistics.stdev(known) if len(known) > 1 else None
    return Cell(mean, sd, len(known), text(mean, sd, column))
