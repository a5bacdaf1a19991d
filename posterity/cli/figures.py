"""`posterity reproduce` with the id of a figure: draw it, and say where it and its numbers lie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from posterity.cli.neutral import label
from posterity.cli.show import console, ruled_table, say, say_sentence
from posterity.reproduce.cells import RunRequest
from posterity.reproduce.figures import draw_figure, figures, is_figure
from posterity.reproduce.figures.catalogue import find_figure


def print_figures(folder: Path) -> None:
    """Every figure: what it needs, whose runs it is drawn from, whether it lies beside the tables in `folder`."""
    table = ruled_table("Figures", "Figure", "what it is", "data", "drawn from", "done")
    for figure in figures().values():
        drawn = (folder.parent / "figures" / f"{figure.id}.svg").exists()
        cells = [figure.id, f"{figure.paper}, {figure.title}", "; ".join(figure.needs), ", ".join(figure.tables),
                 "drawn" if drawn else "not yet drawn"]  # fmt: skip
        table.add_row(*map(label, cells))
    console.print(table)
    say("draw one: posterity reproduce N-F1")


def draw(name: str, folder: Path, asked: RunRequest, cells: Sequence[str], methods: Sequence[str]) -> None:
    """Run what is missing and draw the figure below `folder`."""
    made = draw_figure(name, folder, asked, cells, methods)
    for note in made.notes:
        say_sentence(note)
    runs = ", ".join(map(str, asked.places)) or folder / "tables"
    say(f"figure: {made.svg}; its numbers: {made.numbers}; runs: {runs}")


__all__ = ["draw", "find_figure", "is_figure", "print_figures"]
