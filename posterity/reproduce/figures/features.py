"""Features of held-out samples in a plane, by t-SNE, and how far the classes stand apart, as a number.

The picture is of one seed; the number is S_W / S_B of the features themselves (`scatter.py`), for all seeds. With
`clients`, the samples of the first few clients are also shown apart, at the same places.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posterity.experiment.result import Result
from posterity.report import Run
from posterity.report.line_charts import thin
from posterity.report.selected_round import goal
from posterity.report.svg import COLOURS, AxisScale, Canvas
from posterity.reproduce.figures import tsne
from posterity.reproduce.figures.catalogue import Figure
from posterity.reproduce.figures.material import FigureDrawing, Held, Material, chosen_values, held_rows, read_models
from posterity.reproduce.figures.scatter import scatter_ratio
from posterity.reproduce.figures.sheet import Panel, sheet

LARGE, SMALL = 330.0, 170.0  # sides of a panel
PERPLEXITY = 30.0


@dataclass(frozen=True)
class Plane:
    """Samples at their places: coordinates (N, 2), class and client of each."""

    at: Tensor
    y: Tensor
    client: Tensor
    divergence: float  # what t-SNE left


def draw(figure: Figure, made: Sequence[Material]) -> FigureDrawing:
    panels, about, numbers = [], [], []
    clients, classes = figure.options.get("clients"), figure.options.get("classes")
    for found in made:
        for cell in found.recipe.cells:
            for line in found.recipe.lines_of(cell):
                runs = found.runs(cell, line)
                results = [read_models(run) for run in runs]
                taken = [held_features(result, clients, classes) for result in results]
                ratios = [scatter_ratio(z, held.y) for z, held in taken]
                plane = arranged(*taken[0])
                remark = f"S_W/S_B {spread_text(ratios, 2)}; {score_text(runs)}"
                panels += _panels(line.name, plane, remark, clients)
                numbers.append({"method": line.name, "seeds": [run.seed for run in runs], "scatter_ratio": ratios,
                                "divergence": plane.divergence, **_points(plane)})  # fmt: skip
            about.append(found.about(cell))
    about.append(_legend(numbers[0]["seeds"][0], clients))
    columns = len(panels) // len(numbers) if clients else min(len(panels), 4)
    return FigureDrawing(sheet(f"{figure.paper}, {figure.title}", about, panels, columns), {"methods": numbers})


def held_features(result: Result, clients: int | None, classes: int | None) -> tuple[Tensor, Held]:
    """What the clients' own models hand to their heads for the clients' own test rows (N, d)."""
    held, delivery = held_rows(result, clients, classes), result.delivered("validated")
    if not len(held.y):
        raise ValueError(f"{result.folder} has no test rows of the clients and classes that are to be drawn")
    with result.setup.settings.applied():
        pieces = [delivery.features(k, held.x[held.client == k]) for k in sorted(set(held.client.tolist()))]
    return torch.cat(pieces).cpu(), Held(held.x, held.y.cpu(), held.client.cpu())


def arranged(z: Tensor, held: Held) -> Plane:
    """At most `tsne.MOST` of the samples, evenly taken, in a plane."""
    some = torch.tensor(thin(range(len(z)), tsne.MOST))
    at, left = tsne.arrange(z[some], PERPLEXITY)
    return Plane(at, held.y[some], held.client[some], left)


def spread_text(values: Sequence[float], digits: int) -> str:
    """Mean ± sample sd."""
    sd = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{sd}"


def score_text(runs: Sequence[Run]) -> str:
    """The headline metric of the round that was chosen."""
    name = goal(runs[0]).name
    values = chosen_values(runs, name)
    return f"{name} {spread_text([100 * v for v in values], 1)} %" if values else "not scored"


def _panels(name: str, plane: Plane, remark: str, clients: int | None) -> list[Panel]:
    """All samples; and each client's apart, where they are asked for."""
    panels = [Panel(name, cloud(plane, LARGE if not clients else SMALL + 120), remark)]
    for k in range(clients or 0):
        mine = int((plane.client == k).sum())
        panels.append(Panel(f"client {k + 1}", cloud(plane, SMALL, k), f"{mine} samples"))
    return panels


def _legend(seed: int | None, clients: int | None) -> str:
    apart = " Beside it each client's samples at the same places, the others' in grey." if clients else ""
    return (
        "Each point is a held-out sample of a client, seen by that client's own model; colour, shape and number say "
        f"its class. Places by exact t-SNE (perplexity {PERPLEXITY:g}, start at principal components), seed {seed}. "
        "S_W/S_B: scatter within classes over scatter between them, of the features; small is compact; mean ± sd "
        f"over seeds.{apart}"
    )


def _points(plane: Plane) -> dict[str, Any]:
    at = [[round(float(v), 3) for v in row] for row in plane.at]
    return {"points": at, "classes": plane.y.tolist(), "clients": plane.client.tolist()}


def cloud(plane: Plane, side: float, client: int | None = None) -> str:
    """The samples of all clients with the class at the middle of its samples, or of one client before the others'."""
    canvas = Canvas(side, side, "Features by t-SNE")
    x, y = square_scales(plane.at, side)
    canvas.add("rect", "frame", x=0.5, y=0.5, width=side - 1, height=side - 1)
    mine = torch.ones_like(plane.y, dtype=torch.bool) if client is None else plane.client == client
    size = 2.6 if side > 250 else 2.2
    for a, b in plane.at[~mine].tolist():
        canvas.add("circle", "faint", cx=x(a), cy=y(b), r=1.6)
    for (a, b), c in zip(plane.at[mine].tolist(), plane.y[mine].tolist(), strict=True):
        mark(canvas, c, x(a), y(b), size)
    for c in sorted(set(plane.y[mine].tolist())):
        middle = _middle(plane.at[mine & (plane.y == c)])
        canvas.text(x(float(middle[0])), y(float(middle[1])) + 4, str(c), "label", "middle")
    return canvas.svg()


def _middle(at: Tensor) -> Tensor:
    """The point that is nearest to all others: a name stands at a sample, also where a class is in two pieces."""
    return at[torch.cdist(at, at).sum(1).argmin()]


def square_scales(at: Tensor, side: float) -> tuple[AxisScale, AxisScale]:
    """Both axes with the same unit: only distances mean something."""
    low, high = at.min(0).values, at.max(0).values
    middle, reach = (low + high) / 2, max(float((high - low).max()) / 2, 1e-9)
    edges = [(float(m) - reach, float(m) + reach) for m in middle]
    return AxisScale(*edges[0], 12, side - 12), AxisScale(*edges[1], side - 12, 12)


def mark(canvas: Canvas, c: int, x: float, y: float, r: float) -> None:
    """A point of class c: its colour, and another shape for every eight further classes."""
    css, shape = f"mark m{c % COLOURS}", c // COLOURS % 3
    if shape == 0:
        canvas.add("circle", css, cx=x, cy=y, r=r)
    elif shape == 1:
        canvas.add("rect", css, x=x - r, y=y - r, width=2 * r, height=2 * r)
    else:
        canvas.add(
            "path", css, d=f"M{x:.1f} {y - 1.3 * r:.1f}L{x + 1.2 * r:.1f} {y + r:.1f}L{x - 1.2 * r:.1f} {y + r:.1f}Z"
        )


__all__ = ["Plane", "arranged", "cloud", "draw", "held_features"]
