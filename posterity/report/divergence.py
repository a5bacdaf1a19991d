"""Runs that exploded: their numbers are no result, and a table must say so.

A run that says of itself that it diverged (`run.json`, "diverged") is believed; others, and older ones, are judged by
their scores: no network with weights of a usual size has a mean NLL of a thousand times that of guessing (an
infinite one needs a single row whose truth was thought impossible, and stays a result), and a squared error of a
million times that of the first scored round has gone the wrong way for good.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from posterity.evaluate.absurd import absurd_nll
from posterity.report.read_runs import Run
from posterity.report.selected_round import SelectedRound, main_epochs, series

if TYPE_CHECKING:
    from posterity.report.tables import Row

DIVERGED = "diverged"
GROWTH = 1e6  # of the squared error of a regression, since the first scored round


def diverged(run: Run, selected: SelectedRound) -> str:
    """How a run exploded, for a table; empty if it did not."""
    if told := run.facts.get("diverged"):
        return str(told)
    score = selected.score
    if run.federation.task != "regression":
        nll, limit = score.value("nll"), absurd_nll(run.federation.classes)
        return f"NLL {nll:.1e} at round {score.round}" if nll is not None and limit <= nll < math.inf else ""
    mse, first = score.value("mse"), _first_error(run, score.part)
    if mse is None or not first or mse < GROWTH * first:
        return ""
    return f"MSE {mse:.1e} at round {score.round}, {first:.1e} at the first"


def _first_error(run: Run, part: str) -> float | None:
    scores = series(run, part, run.scored, main_epochs(run, run.scored))
    return scores[min(scores)].value("mse") if scores else None


def mark(picked: Sequence[tuple[Run, SelectedRound]]) -> str:
    """What stands behind the label of a method."""
    count = sum(bool(diverged(*each)) for each in picked)
    if not count:
        return ""
    return DIVERGED if count == len(picked) else f"{count} of {len(picked)} seeds {DIVERGED}"


def has_diverged(mark: str) -> bool:
    """Whether that is the mark of a method with a run that exploded."""
    return mark.endswith(DIVERGED)


def told(rows: Sequence[Row]) -> list[str]:
    """Which runs exploded and how, in sentences."""
    said = []
    for row in rows:
        each = [(run.seed, how) for run, selected in row.picked if (how := diverged(run, selected))]
        if each:
            seeds = "; ".join(f"seed {seed}: {how}" for seed, how in each[:4])
            more = f"; and {len(each) - 4} more" if len(each) > 4 else ""
            advice = "" if "--lr" in seeds else " Try a smaller step size (--lr)."
            said.append(f"{row.label} diverged ({seeds}{more}): its numbers are no result and are not ranked.{advice}")
    return said
