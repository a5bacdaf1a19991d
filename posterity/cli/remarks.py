"""What must be known of a run besides its numbers: why one client after another, whose weights, which rows are copies.

What was noticed about the data is said of files of the user's own; those of a published data set are known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from posterity.cli.show import say_sentence
from posterity.data.user_files import looks_like_path
from posterity.experiment.setup import Setup
from posterity.report import Run, headline, load_runs
from posterity.report.remarks import run_notes

NUMBER = re.compile(r"\d+")


def print_setup(setup: Setup, dataset: str) -> None:
    """Before a run: why the loop was taken instead of a stack, and the notes of its network, method and data."""
    if setup.engine.name == "loop" and setup.remark:
        say_sentence(f"note: one client after another (loop): {setup.remark}")
    for note in (*setup.notes, *(setup.sim.federation.notes if looks_like_path(dataset) else ())):
        say_sentence(f"note: {note}")


def print_notes(folder: Path, dataset: str) -> None:
    """After a comparison: the notes of all its runs, each once, with who says it, and of their data."""
    runs = load_runs(folder)
    for who, note in run_notes(headline(runs)):
        say_sentence(f"note: {who}: {note}" if who else f"note: {note}")
    for note in data_notes(runs) if looks_like_path(dataset) else ():
        say_sentence(f"note: {note}")


def data_notes(runs: Sequence[Run]) -> list[str]:
    """What was noticed about the data, each once: seeds hold other rows out, and so may differ in the numbers."""
    found: dict[str, list[str]] = {}
    for note in dict.fromkeys(note for run in runs for note in run.federation.notes):
        found.setdefault(NUMBER.sub("#", note), []).append(note)
    return [same[0] + (" (other numbers with other seeds)" if len(same) > 1 else "") for same in found.values()]
