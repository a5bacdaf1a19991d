"""The end of a command: the page and the table of what was run, what came to nothing, and text that is safe to print.

It imports no PyTorch: every command needs it.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import typer
from rich.markup import escape

from posterity.cli.flags import Output
from posterity.settings.text import plain


def conclude(folder: Path, output: Output) -> None:
    """The table and the report of what was run."""
    from posterity.engine.processes import started_first

    if started_first():
        write_page(folder, None, output)
        end_if_diverged(folder)


def write_page(folder: Path, out: Path | None, output: Output) -> None:
    """The report of a folder, or of a file of packed runs, and its table."""
    from posterity.report import write_report
    from posterity.runs.folder import reported

    with reported(folder):
        page = write_report(folder, out, output.show)
    from posterity.cli.terminal import show_runs

    show_runs(folder, output, page)


EXIT = 3


def end_if_diverged(folder: Path) -> None:
    """Say which runs in or under a folder are no results, and end the command with `EXIT` if there are any."""
    from posterity.experiment.divergence import diverged_runs

    told = diverged_runs(folder)
    for line in told:
        print(f"no result: {line}", file=sys.stderr)
    if told:
        raise typer.Exit(EXIT)


def leave_it_to_the_end() -> None:
    """What Python is warned of, the command line says once, at its end."""
    warnings.filterwarnings("ignore", message=".*the run (came to nothing|has exploded)")


def notes_of(lines: list[dict[str, object]]) -> list[str]:
    """What a round's lines have to say to somebody who watches: why it was rolled back, what else happened."""
    line = lines[0] if lines else {}
    back = line.get("rolled_back")
    told = line.get("notes")
    notes = [f"round {line['round']}: rolled back, {back}"] if back else []
    return notes + [f"round {line['round']}: {note}" for note in (told if isinstance(told, list) else [])]


def label(text: str) -> str:
    """A name for a table or a line of rich."""
    return escape(plain(text))


def paragraphs(text: str) -> str:
    """A text of several lines, to be printed without markup."""
    return plain(text, keep="\n\t")
