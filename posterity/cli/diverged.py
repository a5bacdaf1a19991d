"""The end of a command whose runs came to nothing or exploded: a sentence for each, and exit code 3. Files stay."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import typer

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


__all__ = ["EXIT", "end_if_diverged", "leave_it_to_the_end", "notes_of"]
