"""What must be known of a run besides its numbers: why one client after another, whose weights, which method it is."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape

from posterity.cli.show import console
from posterity.experiment.setup import Setup
from posterity.report import load_runs
from posterity.report.remarks import run_notes


def print_setup(setup: Setup) -> None:
    """Before a run: why the loop was taken instead of a stack, and the notes of its network and method."""
    if setup.engine.name == "loop" and setup.remark:
        _print(f"one client after another (loop): {setup.remark}")
    for note in setup.notes:
        _print(note)


def print_notes(folder: Path) -> None:
    """After a comparison: the notes of all its runs, each once."""
    for note in run_notes(load_runs(folder)):
        _print(note)


def _print(text: str) -> None:
    console.print(f"note: {escape(text)}", highlight=False, soft_wrap=True)
