"""A figure from its id to its files: FOLDER/figures/ID.svg, and the numbers behind it in ID.json beside it.

Runs lie under FOLDER/tables, where `posterity reproduce TABLE` puts them and finds them again.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from posterity.papers.figures import bubbles, classifiers, features, logs, toy
from posterity.papers.figures.catalogue import Figure, find_figure
from posterity.papers.figures.material import FigureDrawing, Material, collect
from posterity.papers.figures.sheet import sheet
from posterity.papers.runs import RunRequest
from posterity.runs.files import check_folder, write_atomic

PARTITION = "bubbles"  # the kind that needs data and no run
KINDS: Mapping[str, Callable[[Figure, Sequence[Material]], FigureDrawing]] = {
    "clients": logs.clients,
    "curves": logs.curves,
    "classifiers": classifiers.draw,
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
    recipes = figure.chosen(cells, methods)
    if figure.kind == PARTITION:
        drawing = bubbles.draw(figure, recipes, asked)
    else:
        made = [collect(recipe, folder / "tables", asked, figure.id) for recipe in recipes]
        drawing = KINDS[figure.kind](figure, made)
        drawing.notes += tuple(remark for each in made for remark in each.found.remarks)
    svg, numbers = (folder / "figures" / f"{figure.id}{suffix}" for suffix in (".svg", ".json"))
    about = {"figure": figure.id, "paper": figure.paper, "title": figure.title, "tables": figure.tables}
    write_atomic(numbers, (json.dumps({**about, **drawing.numbers}, ensure_ascii=False) + "\n").encode())
    drawn = sheet(f"{figure.paper}, {figure.title}", drawing.about, drawing.panels, drawing.columns, drawing.below)
    write_atomic(svg, (drawn + "\n").encode())
    return DrawnFigure(svg, numbers, drawing.notes)
