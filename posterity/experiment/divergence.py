"""Runs that are no result: most rounds came to nothing, or the round that would be reported has exploded.

Such a run keeps all its files and is told in a sentence: by the command line with exit code 3, in Python by a warning
and by `result.diverged`.
"""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posterity.data.federation import Federation
from posterity.evaluate import goal_of, select
from posterity.evaluate.selection import diverged_nll
from posterity.runs import files
from posterity.runs.folder import RUN, runs_below
from posterity.runs.lines import Line, ScoreLine, rounds_of, scores_of

FAR_OFF = 1e6  # times the variance of the targets: squared errors of one that has exploded
ADVICE = "lower the step size (--lr), or look at the clients that metrics.jsonl names as refused"


class NoResult(UserWarning):
    """A run that came to nothing, or exploded."""


def why_diverged(lines: Sequence[Line], federation: Federation, scored: str, part: str = "test") -> str:
    """Why a run's lines are no result, in a sentence; empty if they are one.

    `part` says by whose rows it is judged: what chooses by validation must not look at the test half.
    """
    rounds = [line for line in rounds_of(lines) if line.cohort]  # who asks for empty rounds may have them
    lost = [line for line in rounds if line.empty]
    if 2 * len(lost) > len(rounds):
        first = lost[0]
        reason = first.rolled_back or f"{len(first.refused)} of {first.cohort} messages were refused"
        return (f"the run came to nothing: {len(lost)} of {len(rounds)} rounds were rolled back or had no usable "
                f"message (round {first.round}: {reason}); {ADVICE}")  # fmt: skip
    mine = [line for line in scores_of(lines) if (line.group, line.point) == ("members", scored)]
    return _why_exploded(mine, federation, part) if mine else ""


def _why_exploded(scores: Sequence[ScoreLine], federation: Federation, part: str) -> str:
    """Why the round that would be reported has exploded."""
    goal, entries = goal_of(federation.task), dict[int, dict[str, Any]]()
    for line in scores:
        entry = entries.setdefault(line.round, {"round": line.round, "validation": None, "test": None, "held": None})
        entry[line.part] = line.value(goal.name)
    chosen = select(list(entries.values()), "validated", goal.higher).round
    shown = [line for line in scores if line.part == part and chosen in (None, line.round)]

    def pooled(name: str) -> float:
        """Nan where there was nobody to score."""
        value = shown[-1].value(name) if shown else None
        return math.nan if value is None else float(value)

    if federation.task == "regression":
        if federation.absent:  # how far targets spread is not known
            return ""
        what, value = "MSE", pooled("mse")
        absurd = value > FAR_OFF * max(float(federation.y.double().var()), 1e-30)
    else:
        what, value = "NLL", pooled("nll")
        blind = pooled("accuracy") <= 1 / federation.classes  # one sure mistake is infinite, too
        absurd = diverged_nll(federation.classes) < value < math.inf or (value == math.inf and blind)
    if not absurd:
        return ""
    when = "the last round" if chosen is None else f"round {chosen}, which would be reported,"
    return f"the run has exploded: {when} has {what} {value:.3g} on the {part} data; {ADVICE}"


def warn(why: str, out: Path | None) -> None:
    """Note in a run's folder that it is no result, and warn."""
    if not why:
        return
    if out is not None:
        facts = files.read_json(out / RUN)
        if facts.get("diverged") != why:
            files.write_json(out / RUN, {**facts, "diverged": why})
    warnings.warn(f"{out}: {why}" if out else why, NoResult, stacklevel=5)


def diverged_runs(folder: Path) -> list[str]:
    """What is to be said about the runs in or under a folder that are no results."""
    told = {path: files.read_json(path / RUN).get("diverged") for path in runs_below(folder)}
    return [f"{path}: {why}" for path, why in told.items() if why]
