"""The headline table, as numbers and as text: page and terminal both print `Cell.text`, so they cannot differ.

Its columns are the metrics (`evaluate/metrics.py`), what a user added, fairness and costs. One of the three rules of
`evaluate/selection.py` chooses the round of each run, and on which part of the held-out data it is reported.

Runs that exploded are marked: their numbers are no result. A run that says so of itself (`run.json`, "diverged") is
believed; others are judged by their scores: no network with weights of a usual size has a mean NLL of a thousand times
that of guessing (an infinite one needs a single row whose truth was thought impossible, and stays a result), and a
squared error of a million times that of the first scored round has gone the wrong way for good.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from posterity.evaluate import FIGURES, METRICS, Metric, goal_of, select
from posterity.evaluate.selection import diverged_nll
from posterity.runs.lines import ScoreLine
from posterity.runs.read import ReportError, Run
from posterity.settings.config import settings_where
from posterity.settings.hyperparameters import flat_settings

RULES = {
    "validated": "the round is chosen on the validation half of the held-out data; "
    "the numbers come from the other half, the test half",
    "paper": "the best round on the whole held-out part, reported on that same part: "
    "what many papers print, and optimistic",
    "last": "the last scored round, on the test half",
}
PART = {"validated": "test", "paper": "held", "last": "test"}
WEIGHT = "pooled"
"""How clients are weighed where a metric is averaged: every sample counts the same."""
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


BYTES = Column("bytes", "Bytes per round", ("bytes",), -1, "B")
SECONDS = Column("seconds", "Seconds", ("seconds",), 0, "s", 1, wide_only=True)


def _fairness(table: str) -> list[Column]:
    """How unequal the clients are."""
    return [
        Column(f.name, f.label, ("fairness", f.name), SIGN[f.better], f.format.unit, f.format.digits, f.label,
               wide_only=f.wide_only)
        for f in FIGURES if f.table == table
    ]  # fmt: skip


def _weighted(key: str, weight: str, said: str) -> Column:
    """Accuracy with another weight of the clients."""
    column = metric_column(goal_of("classification").facts())
    return replace(column, key=key, title=f"{column.title}, {said}", source=("metric", column.key, weight))


def table_columns(runs: Sequence[Run], table: str = "main") -> list[Column]:
    """Every column that a table may have: the package's metrics, those of the users, fairness and costs."""
    known = {metric.name: metric.facts() for metric in METRICS}
    own = {name: facts for name, facts in user_metrics(runs).items() if name not in known}
    metrics = [metric_column(facts) for facts in (known | own).values() if facts.get("table", "main") == table]
    if table == "main":
        return [*metrics, *_fairness(table), BYTES, SECONDS]
    equal = _weighted("accuracy_mean", "mean", "clients equal")
    return [equal, _weighted("accuracy_train", "train_weighted", "by training size"), *metrics, *_fairness(table)]


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


DIVERGED = "diverged"
GROWTH = 1e6  # of the squared error of a regression, since the first scored round


def diverged(run: Run, score: ScoreLine) -> str:
    """How a run exploded, for a table; empty if it did not."""
    if how := run.facts.get("diverged"):
        return str(how)
    if run.federation.task != "regression":
        nll, limit = score.value("nll"), diverged_nll(run.federation.classes)
        return f"NLL {nll:.1e} at round {score.round}" if nll is not None and limit <= nll < math.inf else ""
    mse, first = score.value("mse"), _first_error(run, score.part)
    if mse is None or not first or mse < GROWTH * first:
        return ""
    return f"MSE {mse:.1e} at round {score.round}, {first:.1e} at the first"


def _first_error(run: Run, part: str) -> float | None:
    scores = series(run, part, run.scored, main_epochs(run, run.scored))
    return scores[min(scores)].value("mse") if scores else None


def mark(picked: Sequence[tuple[Run, ScoreLine]]) -> str:
    """What stands behind the label of a method."""
    count = sum(bool(diverged(*each)) for each in picked)
    if not count:
        return ""
    return DIVERGED if count == len(picked) else f"{count} of {len(picked)} seeds {DIVERGED}"


def has_diverged(mark: str) -> bool:
    """Whether that is the mark of a method with a run that exploded."""
    return mark.endswith(DIVERGED)


def describe_divergence(rows: Sequence[Row]) -> list[str]:
    """Which runs exploded and how, in sentences."""
    said = []
    for row in rows:
        seeds = "; ".join(f"seed {run.seed}: {how}" for run, found in row.picked if (how := diverged(run, found)))
        if seeds:
            advice = "" if "--lr" in seeds else " Try a smaller step size (--lr)."
            said.append(f"{row.label} diverged ({seeds}): its numbers are no result and are not ranked.{advice}")
    return said


def goal(run: Run) -> Metric:
    """The metric that rounds are chosen by and methods are ranked by."""
    return goal_of(run.federation.task)


def check_rule(rule: str) -> None:
    if rule not in RULES:
        raise ReportError(f"Unknown selection rule {rule!r}: choose one of {', '.join(RULES)}.")


def series(run: Run, part: str, point: str, epochs: int, group: str = "members") -> dict[int, ScoreLine]:
    """The scores of one kind, by round."""
    return run.index.get((part, point, epochs, group), {})


def epochs_scored(run: Run, point: str, group: str = "members") -> list[int]:
    """The numbers of adaptation epochs that were scored at `point`; one entry, 0, for the other points."""
    return sorted({epochs for _, at, epochs, of in run.index if at == point and of == group})


def main_epochs(run: Run, point: str) -> int:
    """The number of epochs the headline uses: what the configuration asks for, else the fewest that adapt at all."""
    known = epochs_scored(run, point)
    asked = run.config.get("adapt_epochs")
    if asked in known:
        return int(asked)
    return next((e for e in known if e > 0), 0) if point == "adapted" else next(iter(known), 0)


def select_round(run: Run, rule: str) -> ScoreLine | None:
    """The scores of the round that `rule` picks at the run's own point; None where those it needs were not written."""
    check_rule(rule)
    epochs = main_epochs(run, run.scored)
    parts = {p: series(run, p, run.scored, epochs) for p in ("validation", "test", "held")}
    name = goal(run).name
    entries: list[dict[str, float | None]] = [
        {"round": r} | {p: scores[r].value(name, WEIGHT) if r in scores else None for p, scores in parts.items()}
        for r in sorted(set().union(*parts.values()))
    ]
    chosen = select(entries, rule, goal(run).higher).round if entries else None
    return parts[PART[rule]].get(chosen) if chosen is not None else None


# What may differ between the seeds of one method without making it another method.
INCIDENTAL = settings_where(lambda use: use.role == "draws" or use.changes in ("rounding", "nothing"))


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
    picked: tuple[tuple[Run, ScoreLine], ...]  # the runs that count, and the round that the rule chose in each
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
        rivals = [settings(g[0]) for (other, s), g in groups.items() if other == label and s != setting]
        counted = _once([r for r in members if r.finished] or members)
        aside = [r for r in members if r not in counted]
        named = label + _suffix(settings(members[0]), rivals)
        if named in {arm.label for arm in made}:
            named = label + _suffix(settings(members[0]), rivals, len(settings(members[0])))
        made.append(Arm(named, len(made), tuple(counted), tuple(aside)))
    return made


def _once(runs: Sequence[Run]) -> list[Run]:
    """The first run of every seed (and partition): one that is there twice must not count twice."""
    firsts = {draws(run): run for run in reversed(runs)}
    return [run for run in runs if run.seed is None or firsts[draws(run)] is run]


def draws(run: Run) -> tuple[int | None, Any]:
    """What tells runs of one setting apart: the seed, and the partition's where that is fixed."""
    return run.seed, run.config.get("data_seed")


def settings(run: Run) -> dict[str, Any]:
    """The configuration as dotted keys, without what only names or places the run."""
    return {name: value for name, value in flat_settings(run.config).items() if name not in INCIDENTAL}


def _suffix(mine: Mapping[str, Any], others: Sequence[Mapping[str, Any]], most: int = 3) -> str:
    """What tells this setting from others of the same method, in as few words as possible."""
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


def fetch(run: Run, selected: ScoreLine, column: Column) -> float | None:
    """One number of one run."""
    kind, *path = column.source
    if kind == "metric":
        return selected.value(path[0], path[1])
    if kind == "fairness":
        return selected.fairness.get(path[0])
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
