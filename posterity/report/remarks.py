"""What a run's folder says about how its scores came about, in sentences beside the tables.

What a reader must know before comparing is in `summary.py`, the finding in `verdict.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from posterity.report.read_runs import Run
from posterity.report.tables import Row


def outside(rows: Sequence[Row]) -> str:
    """Which model was scored on the common test set, method by method; empty where the folders do not say."""
    labels: dict[str, list[str]] = {}
    for row in rows:
        if told := _method(row.arm.runs[0]).get("outside"):
            labels.setdefault(str(told), []).append(row.label)
    each = [f"{told} ({', '.join(some)})" for told, some in labels.items()]
    return f"No client's data were used: scored with {'; '.join(each)}." if each else ""


def fitted(rows: Sequence[Row]) -> list[str]:
    """Whose numbers under the rule `paper` are those of the test half alone."""
    labels = [row.label for row in rows if _method(row.arm.runs[0]).get("fitted")]
    if not labels:
        return []
    return [f"{', '.join(labels)}: fitted on the validation half, so under “paper” only the test half is scored."]


def run_notes(runs: Sequence[Run]) -> list[str]:
    """What networks and methods had to say about themselves, each once."""
    return sorted({str(note) for run in runs for note in run.facts.get("notes") or ()})


def _method(run: Run) -> dict[str, object]:
    return dict(run.facts.get("method") or {})
