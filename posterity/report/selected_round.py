"""Which round of a run is reported, and on which part of the held-out data.

The three rules are the library's, `posterity.evaluate.selection`; this file feeds them one run's scores.
"""

from __future__ import annotations

from dataclasses import dataclass

from posterity.evaluate import Metric, goal_of, select
from posterity.report.logs import ReportError
from posterity.report.read_runs import Run, ScoreLine

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


@dataclass(frozen=True)
class SelectedRound:
    """A round of a run, picked by a rule, and the scores to print for it."""

    rule: str
    score: ScoreLine

    @property
    def round(self) -> int:
        return self.score.round


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


def select_round(run: Run, rule: str) -> SelectedRound | None:
    """The round `rule` picks at the run's own evaluation point; None where the scores it needs were not written."""
    check_rule(rule)
    epochs = main_epochs(run, run.scored)
    parts = {p: series(run, p, run.scored, epochs) for p in ("validation", "test", "held")}
    name = goal(run).name
    entries: list[dict[str, float | None]] = [
        {"round": r} | {p: scores[r].value(name, WEIGHT) if r in scores else None for p, scores in parts.items()}
        for r in sorted(set().union(*parts.values()))
    ]
    chosen = select(entries, rule, goal(run).higher).round if entries else None
    score = parts[PART[rule]].get(chosen) if chosen is not None else None
    return SelectedRound(rule, score) if score is not None else None
