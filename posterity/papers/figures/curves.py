"""Curves by round: test accuracy and training loss of several methods, means with a band of ± one sd over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from posterity.papers.figures.catalogue import Figure
from posterity.papers.figures.material import FigureDrawing, Material
from posterity.papers.figures.sheet import Panel, sheet
from posterity.papers.recipe import RecipeCell
from posterity.report import Run
from posterity.report.charts import LearningCurve, line_chart, thin
from posterity.report.sections import curve
from posterity.report.table import Arm, main_epochs, point_name

WIDTH = 940.0
Course = Mapping[int, float]  # a value by round


def draw(figure: Figure, made: Sequence[Material]) -> FigureDrawing:
    """Accuracy above, loss below, for each column."""
    panels, about, numbers = [], [], []
    for found in made:
        for cell in found.recipe.cells:
            arms = arms_of(found, cell)
            for title, y_axis, course in (
                ("Accuracy on held-out samples", ("accuracy, %", True), accuracy),
                ("Training loss", ("loss, nats a sample", False), loss),
            ):
                lines = [mean_curve(arm, course) for arm in arms]
                drawn = line_chart([thinned(line) for line in lines], WIDTH, title, "round", y_axis=y_axis)
                panels.append(Panel(title, drawn, f"{cell.name}; line: mean over seeds, band: ± one sd"))
                numbers += [told(title, line) for line in lines]
            about += [found.about(cell), _points(arms)]
    svg = sheet(f"{figure.paper}, {figure.title}", about, panels, 1)
    return FigureDrawing(svg, {"curves": numbers})


def arms_of(found: Material, cell: RecipeCell) -> list[Arm]:
    """Each row of a column with its runs; numbered by their place, so that a colour does not depend on results."""
    every = [Arm(line.name, i, tuple(found.runs(cell, line))) for i, line in enumerate(found.recipe.lines_of(cell))]
    return [arm for arm in every if arm.runs]


def accuracy(run: Run) -> Course:
    """The headline metric on all that is held out, at the method's own evaluation point."""
    return curve(run, "held")


def loss(run: Run) -> Course:
    """The loss that the cohort saw while training."""
    return {line.round: line.loss for line in run.rounds if line.loss is not None}


def mean_curve(arm: Arm, course: Callable[[Run], Course]) -> LearningCurve:
    """Mean and sample sd over seeds, in the rounds that all of them have."""
    every = [{r: v for r, v in course(run).items() if math.isfinite(v)} for run in arm.runs]
    shared = sorted(set.intersection(*(set(one) for one in every)))
    if not shared:
        raise ValueError(f"runs of {arm.label} have no round with a value in common: is one of them of another size?")
    values = [[one[r] for one in every] for r in shared]
    band = tuple(statistics.stdev(v) for v in values) if len(every) > 1 else ()
    return LearningCurve(arm, tuple(map(float, shared)), tuple(statistics.fmean(v) for v in values), band)


def thinned(line: LearningCurve) -> LearningCurve:
    """With as many points as a screen resolves."""
    kept = thin(range(len(line.x)))
    x, y, band = (tuple(values[i] for i in kept) if values else () for values in (line.x, line.y, line.band))
    return LearningCurve(line.arm, x, y, band)


def told(what: str, line: LearningCurve) -> dict[str, Any]:
    """A curve's numbers."""
    return {"panel": what, "name": line.arm.label, "rounds": [int(x) for x in line.x], "mean": line.y, "sd": line.band,
            "seeds": [run.seed for run in line.arm.runs]}  # fmt: skip


def _points(arms: Sequence[Arm]) -> str:
    """At which evaluation points the methods are scored."""
    found: dict[str, list[str]] = {}
    for arm in arms:
        run = arm.runs[0]
        found.setdefault(point_name(run.scored, main_epochs(run, run.scored), [run]), []).append(arm.label)
    return "Scored " + "; ".join(f"as {point}: {', '.join(names)}" for point, names in found.items()) + "."
