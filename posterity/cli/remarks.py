"""What must be known of a run besides its numbers: why one client after another, whose weights, which rows are copies.

What was noticed about the data is said of files of the user's own; those of a published data set are known.
"""

from __future__ import annotations

from pathlib import Path

from posterity.cli.show import say_sentence
from posterity.data.user_files import looks_like_path
from posterity.experiment.setup import Setup
from posterity.report import headline, load_runs
from posterity.report.remarks import data_notes, run_notes


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
