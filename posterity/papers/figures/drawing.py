"""A figure from its id to its files: FOLDER/figures/ID.svg, and the numbers behind it in ID.json beside it.

Runs lie under FOLDER/tables, where `posterity reproduce TABLE` puts them and finds them again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from posterity.papers.figures import bubbles, features, logs, toy
from posterity.papers.figures.catalogue import Figure, find_figure
from posterity.papers.figures.material import FigureDrawing, Material, collect
from posterity.papers.figures.sheet import sheet
from posterity.papers.runs import RunRequest
from posterity.runs.files import check_folder, write_atomic

PARTITION = "bubbles"  # the kind that needs data and no run
KINDS: Mapping[str, Callable[[Figure, Sequence[Material]], FigureDrawing]] = {
    "classifiers": features.draw_classifiers,
    "clients": logs.clients,
    "curves": logs.curves,
    "features": features.draw,
    "proportion": logs.proportion,
    "reliability": logs.reliability,
    "toy": toy.draw,
}
LOGS = ("clients", "curves", "proportion", "reliability")  # kinds that need a run's log alone


@dataclass(frozen=True)
class DrawnFigure:
    """Where a figure and its numbers lie, and sentences about what it could not show."""

    svg: Path
    numbers: Path
    notes: tuple[str, ...]


def draw_figure(
    name: str,
    folder: Path,
    asked: RunRequest = RunRequest(),
    cells: Sequence[str] = (),
    methods: Sequence[str] = (),
) -> DrawnFigure:
    """Run what is missing, draw the figure and write it.

    With places, nothing is run. Where neither seeds nor a size are asked for and all its rows have finished runs of the
    same seeds, it is drawn from these; the lines below its title say how large they are.
    """
    figure = find_figure(name)
    if asked.places and figure.kind not in LOGS:
        raise ValueError(f"{figure.id} shows data or what models make of them, which packed runs do not hold: it is "
                         "drawn from run folders below OUT/tables; leave --from out")  # fmt: skip
    check_folder(folder)
    drawing = _drawn(figure, folder / "tables", asked, cells, methods)
    svg, numbers = (folder / "figures" / f"{figure.id}{suffix}" for suffix in (".svg", ".json"))
    about = {"figure": figure.id, "paper": figure.paper, "title": figure.title, "tables": figure.tables}
    write_atomic(numbers, _lines({**about, **drawing.numbers}).encode())
    drawn = sheet(f"{figure.paper}, {figure.title}", drawing.about, drawing.panels, drawing.columns, drawing.below)
    write_atomic(svg, (drawn + "\n").encode())
    return DrawnFigure(svg, numbers, drawing.notes)


def _drawn(
    figure: Figure, tables: Path, asked: RunRequest, cells: Sequence[str], methods: Sequence[str]
) -> FigureDrawing:
    recipes = figure.chosen(cells, methods)
    if figure.kind == PARTITION:
        return bubbles.draw(figure, recipes, asked)
    made = [collect(recipe, tables, asked, figure.id) for recipe in recipes]
    drawing = KINDS[figure.kind](figure, made)
    return replace(drawing, notes=(*drawing.notes, *(remark for each in made for remark in each.found.remarks)))


def _lines(numbers: Mapping[str, Any]) -> str:
    """JSON with a line for each of the outermost entries, and for each of their parts."""
    made = []
    for name, value in numbers.items():
        parts = isinstance(value, (list, tuple)) and value and isinstance(value[0], dict)
        inner = ",\n ".join(json.dumps(each, ensure_ascii=False) for each in value) if parts else ""
        made.append(f"{json.dumps(name)}: " + (f"[\n {inner}]" if parts else json.dumps(value, ensure_ascii=False)))
    return "{\n" + ",\n".join(made) + "\n}\n"
