"""Runs that are no result: most rounds came to nothing, or the round that would be reported has exploded.

Such a run keeps all its files and is told in a sentence: by the command line with exit code 3, in Python by a warning
and by `result.diverged`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posterity.data.federation import Federation
from posterity.evaluate import goal_of, select
from posterity.evaluate.selection import diverged_nll
from posterity.runs import folder as run_folder
from posterity.runs.folder import is_aside

FAR_OFF = 1e6  # times the variance of the targets: squared errors of one that has exploded
ADVICE = "lower the step size (--lr), or look at the clients that metrics.jsonl names as refused"


class NoResult(UserWarning):
    """A run that came to nothing, or exploded."""


def why_diverged(lines: Sequence[Mapping[str, Any]], federation: Federation, scored: str, part: str = "test") -> str:
    """Why a run's lines are no result, in a sentence; empty if they are one.

    `part` says by whose rows it is judged: what chooses by validation must not look at the test half.
    """
    rounds = [x for x in lines if x["kind"] == "round" and x["cohort"]]  # who asks for empty rounds may have them
    lost = [x for x in rounds if x["empty"]]
    if 2 * len(lost) > len(rounds):
        first = lost[0]
        reason = first.get("rolled_back") or f"{len(first['refused'])} of {first['cohort']} messages were refused"
        return (f"the run came to nothing: {len(lost)} of {len(rounds)} rounds were rolled back or had no usable "
                f"message (round {first['round']}: {reason}); {ADVICE}")  # fmt: skip
    mine = [x for x in lines if x["kind"] == "score" and (x["group"], x["point"]) == ("members", scored)]
    return _why_exploded(mine, federation, part) if mine else ""


def _why_exploded(scores: Sequence[Mapping[str, Any]], federation: Federation, part: str) -> str:
    """Why the round that would be reported has exploded."""
    goal, entries = goal_of(federation.task), dict[int, dict[str, Any]]()
    for x in scores:
        entry = entries.setdefault(x["round"], {"round": x["round"], **dict.fromkeys(("validation", "test", "held"))})
        entry[x["part"]] = x["metrics"].get(goal.name, {}).get("pooled")
    chosen = select(list(entries.values()), "validated", goal.higher).round
    shown = [x["metrics"] for x in scores if x["part"] == part and chosen in (None, x["round"])]
    metrics = shown[-1] if shown else {}
    if federation.task == "regression":
        if federation.absent:  # how far targets spread is not known
            return ""
        error, spread = _pooled(metrics, "mse"), float(federation.y.double().var())
        return "" if error <= FAR_OFF * max(spread, 1e-30) or math.isnan(error) else _told(chosen, "MSE", error, part)
    nll, limit = _pooled(metrics, "nll"), diverged_nll(federation.classes)
    blind = _pooled(metrics, "accuracy") <= 1 / federation.classes  # one row of probability 0 is an infinite NLL, too
    return _told(chosen, "NLL", nll, part) if limit < nll < math.inf or (nll == math.inf and blind) else ""


def _told(round: int | None, what: str, value: float, part: str) -> str:
    when = f"round {round}, which would be reported," if round is not None else "the last round"
    return f"the run has exploded: {when} has {what} {value:.3g} on the {part} data; {ADVICE}"


def _pooled(metrics: Mapping[str, Any], name: str) -> float:
    """A pooled metric; nan where there was nobody to score (what was infinite is so again in lines that were read)."""
    value = (metrics.get(name) or {}).get("pooled")
    return math.nan if value is None else float(value)


def tell(why: str, out: Path | None) -> None:
    """Note in a run's folder that it is no result, and warn."""
    if not why:
        return
    if out is not None:
        facts = run_folder.read_json(out / run_folder.RUN)
        if facts.get("diverged") != why:
            run_folder.write_json(out / run_folder.RUN, {**facts, "diverged": why})
    warnings.warn(f"{out}: {why}" if out else why, NoResult, stacklevel=5)


def diverged_runs(folder: Path) -> list[str]:
    """What is to be said about the runs in or under a folder that are no results."""
    found = sorted(folder.rglob(run_folder.RUN)) if folder.is_dir() else []
    found = [path for path in found if not is_aside(path.parent, folder)]
    told = [(path.parent, run_folder.read_json(path).get("diverged")) for path in found]
    return [f"{path}: {why}" for path, why in told if why]
