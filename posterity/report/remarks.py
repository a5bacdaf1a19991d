"""What a run's folder says about how its scores came about, in sentences beside the tables.

What a reader must know before comparing is in `summary.py`, the finding in `verdict.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from posterity.report.read_runs import Run
from posterity.report.selected_round import PART, SelectedRound, main_epochs, series
from posterity.report.tables import Row

NUMBER = re.compile(r"\d+")
FLOWER = "flower"  # the engine of a run across machines (`experiment/run.py`, which imports PyTorch)


def outside(rows: Sequence[Row]) -> str:
    """Which model was scored on the common test set, method by method; empty where the folders do not say."""
    labels: dict[str, list[str]] = {}
    for row in rows:
        if told := _method(row.arm.runs[0]).get("outside"):
            labels.setdefault(str(told), []).append(row.label)
    each = [f"{told} ({', '.join(some)})" for told, some in labels.items()]
    return f"No client's data were used: scored with {'; '.join(each)}." if each else ""


def positive_class(run: Run) -> str:
    """Which of two classes sensitivity, specificity and so on are about; empty if there are more, or fewer."""
    fed = run.federation
    if fed.task == "regression" or fed.classes != 2:
        return ""
    name = fed.class_names[1] if len(fed.class_names) == 2 else "1"
    return (f"“{name}” is the positive class, the second of the two in order: sensitivity, specificity, AUPRC and the "
            "calibration slope and intercept are about it")  # fmt: skip


def fitted(rows: Sequence[Row]) -> list[str]:
    """Whose numbers under the rule `paper` are those of the test half alone."""
    labels = [row.label for row in rows if _method(row.arm.runs[0]).get("fitted")]
    if not labels:
        return []
    return [f"{', '.join(labels)}: fitted on the validation half, so under “paper” only the test half is scored."]


def described(rows: Sequence[Row]) -> str:
    """What the numbers of the headline are numbers of: so many rows, of so many clients."""
    scores = [selected.score for row in rows for _, selected in row.picked]
    counts = [[n or 0 for n in each] for score in scores if (each := score.by_client("n"))]
    if not counts:
        return ""
    tested = [int(sum(each)) for each in counts]
    clients = [sum(n > 0 for n in each) for each in counts]
    part = "held-out" if PART[rows[0].rule] == "held" else PART[rows[0].rule]
    return f"A run's numbers are over {_span(tested)} {part} rows of {_span(clients)} clients."


def uneven(rows: Sequence[Row]) -> list[str]:
    """Runs across machines some of whose rounds were not scored on everybody: a site was away, came late or left."""
    picked = [(row, *each) for row in rows for each in row.picked if each[0].facts.get("engine") == FLOWER]
    return [told for row, run, selected in picked if (told := _uneven(row.label, run, selected))]


def _uneven(label: str, run: Run, selected: SelectedRound) -> str:
    scores = series(run, selected.score.part, run.scored, main_epochs(run, run.scored))
    known = {round: rows for round, score in sorted(scores.items()) if (rows := score.by_client("n"))}  # if not packed
    who = {round: {k for k, n in enumerate(rows) if n} for round, rows in known.items()}
    every = set().union(*who.values())
    fewer = [f"round {round} on {len(some)} of {len(every)}" for round, some in who.items() if some != every]
    if not fewer:
        return ""
    more = f", and {len(fewer) - 4} more rounds on fewer" if len(fewer) > 4 else ""
    return (f"{label}, seed {run.seed}: not every round was scored on all clients ({', '.join(fewer[:4])}{more}), so "
            f"rounds are compared on different clients. Shown is round {selected.round}.")  # fmt: skip


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def run_notes(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """What networks and methods had to say about themselves (`notes` in run.json): each once, with who says it."""
    who: dict[str, list[str]] = {}
    for row in rows:
        for run in (*row.arm.runs, *row.arm.aside):
            for note in _sentences(run.facts.get("notes")):
                labels = who.setdefault(note, [])
                if row.label not in labels:
                    labels.append(row.label)
    return [("" if len(labels) == len(rows) > 1 else ", ".join(labels), note) for note, labels in who.items()]


def data_notes(runs: Sequence[Run]) -> list[str]:
    """What was noticed about the data, each once: seeds hold other rows out, and so may differ in the numbers."""
    found: dict[str, list[str]] = {}
    for note in dict.fromkeys(note for run in runs for note in run.federation.notes):
        found.setdefault(NUMBER.sub("#", note), []).append(note)
    return [same[0] + (" (other numbers with other seeds)" if len(same) > 1 else "") for same in found.values()]


def _sentences(given: object) -> list[str]:
    if isinstance(given, str):
        return [given] if given else []
    return [str(each) for each in given] if isinstance(given, (list, tuple)) else []


def _method(run: Run) -> dict[str, object]:
    return dict(run.facts.get("method") or {})
