"""Curves of clients: the validation accuracy of every client of one method by round, one panel for each setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from posterity.papers.figures.catalogue import Figure
from posterity.papers.figures.curves import Course, mean_curve, thinned, told
from posterity.papers.figures.material import FigureDrawing, Material
from posterity.papers.figures.sheet import Panel, sheet
from posterity.papers.recipe import RecipeCell
from posterity.report import Run
from posterity.report.charts import line_chart
from posterity.report.svg import COLOURS
from posterity.report.table import Arm, main_epochs, series

WIDTH = 470.0


def draw(figure: Figure, made: Sequence[Material]) -> FigureDrawing:
    """Clients are numbered from 1, as the paper does; those of the second half have dashed lines."""
    panels, about, numbers = [], [], []
    for found in made:
        for cell in found.recipe.cells:
            lines = [
                mean_curve(arm, partial(by_client, client=k, metric=figure.metric))
                for k, arm in enumerate(_arms(found, cell))
            ]
            title = f"{figure.metric.replace('_', ' ')}, %"
            drawn = line_chart(
                [replace(thinned(line), band=()) for line in lines], WIDTH, cell.name, "round", y_axis=(title, True)
            )
            remark = "mean over seeds" if lines[0].band else "one seed"
            panels.append(Panel(f"{found.recipe.lines[0].name}, {cell.name}", drawn, remark))
            numbers += [{"cell": cell.name, **told(figure.metric, line)} for line in lines]
        settings = dict.fromkeys(found.about(cell) for cell in found.recipe.cells)
        about += [
            *settings,
            "Dashed: the second half of the clients, which is the skewed one where amounts or labels are.",
        ]
    return FigureDrawing(sheet(f"{figure.paper}, {figure.title}", about, panels, len(panels)), {"curves": numbers})


def _arms(found: Material, cell: RecipeCell) -> list[Arm]:
    """Every client with the runs of the column's first row; the second half has the same colours, dashed."""
    runs = tuple(found.runs(cell, found.recipe.lines_of(cell)[0]))
    clients = runs[0].federation.members
    half = (clients + 1) // 2
    return [Arm(f"client {k + 1}", k if k < half else COLOURS + k - half, runs) for k in range(clients)]


def by_client(run: Run, client: int, metric: str) -> Course:
    """One client's number on what it holds out, by round."""
    scores = series(run, "held", run.scored, main_epochs(run, run.scored))
    without = [r for r, score in scores.items() if metric not in score.clients]
    if without:
        raise ValueError(f"the log of {run.label}, seed {run.seed} ({run.folder}) has each client's {metric} in "
                         f"{len(scores) - len(without)} of {len(scores)} rounds, as packed runs have it, and all are "
                         "to be drawn: give the folder of the run, or leave --from out to run it")  # fmt: skip
    found = {r: score.by_client(metric) for r, score in scores.items()}
    return {r: value for r, values in found.items() if client < len(values) and (value := values[client]) is not None}
