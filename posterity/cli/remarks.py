"""What must be known of a run besides its numbers: why one client after another, whose weights, which method it is."""

from __future__ import annotations

from pathlib import Path

from posterity.cli.show import say_sentence
from posterity.experiment.setup import Setup
from posterity.report import headline, load_runs
from posterity.report.remarks import run_notes


def print_setup(setup: Setup) -> None:
    """Before a run: why the loop was taken instead of a stack, and the notes of its network and method."""
    if setup.engine.name == "loop" and setup.remark:
        say_sentence(f"note: one client after another (loop): {setup.remark}")
    for note in setup.notes:
        say_sentence(f"note: {note}")


def print_notes(folder: Path) -> None:
    """After a comparison: the notes of all its runs, each once, with who says it."""
    for who, note in run_notes(headline(load_runs(folder))):
        say_sentence(f"note: {who}: {note}" if who else f"note: {note}")
