"""Accuracy against the share p of parameters that are personal (FedBPS), ours with ± one sd and the paper's."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from posterity.papers.beside import number
from posterity.papers.figures.catalogue import Figure
from posterity.papers.figures.material import FigureDrawing, Material, chosen_values
from posterity.papers.figures.sheet import Panel, sheet
from posterity.papers.recipe import RecipeCell
from posterity.report.svg import AxisScale, Canvas, axes, colour, percent, spread, ticks, widen

WIDTH, HEIGHT = 620.0, 380.0
CAP = 5.0  # half the width of a whisker's ends


@dataclass(frozen=True)
class AccuracyByShare:
    """Accuracy by p; `sd` is over seeds, 0 where there is none."""

    name: str
    p: tuple[float, ...]
    mean: tuple[float, ...]
    sd: tuple[float, ...]


def draw(figure: Figure, made: Sequence[Material]) -> FigureDrawing:
    panels, about, numbers = [], [], []
    for found in made:
        for cell in found.recipe.cells:
            courses = [course for course in (ours(found, cell, figure.metric), printed(found, cell)) if course.p]
            panels.append(
                Panel(cell.name, _chart(courses), "ours: round chosen on validation samples; ± one sd over seeds")
            )
            numbers += [{"cell": cell.name, **course.__dict__} for course in courses]
            about.append(found.about(cell))
    return FigureDrawing(sheet(f"{figure.paper}, {figure.title}", about, panels, 2), {"courses": numbers})


def share(row: str) -> float:
    """p of a row by its name, such as "p = 30 %": the usual one has no setting that says it."""
    return float(row.removeprefix("p = ").removesuffix(" %")) / 100


def ours(found: Material, cell: RecipeCell, metric: str) -> AccuracyByShare:
    """The accuracy of the chosen round on the test half, over seeds."""
    rows = []
    for line in sorted(found.recipe.lines_of(cell), key=lambda line: share(line.name)):
        if values := chosen_values(found.runs(cell, line), metric):
            sd = statistics.stdev(values) if len(values) > 1 else 0.0
            rows.append((share(line.name), statistics.fmean(values), sd))
    return _course("ours", rows)


def printed(found: Material, cell: RecipeCell) -> AccuracyByShare:
    """The paper's numbers."""
    told = {share(line.name): number(line.paper.get(cell.name, "")) for line in found.recipe.lines_of(cell)}
    return _course("the paper", [(p, v / 100, 0.0) for p, v in sorted(told.items()) if v is not None])


def _course(name: str, rows: Sequence[tuple[float, float, float]]) -> AccuracyByShare:
    p, mean, sd = zip(*rows, strict=True) if rows else ((), (), ())
    return AccuracyByShare(name, tuple(p), tuple(mean), tuple(sd))


def _chart(courses: Sequence[AccuracyByShare]) -> str:
    canvas = Canvas(WIDTH, HEIGHT, "Accuracy against p")
    values = [m + k * s for c in courses for m, s in zip(c.mean, c.sd, strict=True) for k in (-1, 1)]
    low, high = widen(values, floor=0.0, ceiling=1.0)
    every = sorted({p for c in courses for p in c.p})
    x, y = AxisScale(every[0], every[-1], 50, WIDTH - 100), AxisScale(low, high, HEIGHT - 44, 34)
    axes(canvas, x, y, every, ticks(low, high, 8), percent, percent)
    canvas.text(44, 20, "accuracy, %", "name")
    canvas.text(x.end, HEIGHT - 10, "personal parameters p, %", "name", "end")
    for i, course in enumerate(courses):
        points = [(x(p), y(m)) for p, m in zip(course.p, course.mean, strict=True)]
        canvas.path(points, f"line m{i} dash{i}")
        for (at, _), m, s in zip(points, course.mean, course.sd, strict=True):
            if s:
                top, low_end = y(m + s), y(m - s)
                canvas.path([(at - CAP, top), (at + CAP, top), (at, top), (at, low_end), (at - CAP, low_end),
                             (at + CAP, low_end)], f"whisker m{i}")  # fmt: skip
        for (at, level), p, m in zip(points, course.p, course.mean, strict=True):
            canvas.add("circle", f"dot {colour(i)}", f"{course.name}, p = {p:.0%}: {m:.2%}", cx=at, cy=level, r=4)
    ends = [y(c.mean[-1]) for c in courses]
    for i, place in enumerate(spread(ends, 16, y.end, y.start)):
        canvas.text(x.end + 14, place + 4, courses[i].name, f"end {colour(i)}")
    return canvas.svg()
