"""Features of held-out samples in a plane, by t-SNE, and how far the classes stand apart, as a number.

The picture is of one seed; the number, of all seeds, is the scatter within classes over the scatter between them:

    S_W = Σ_c Σ_{i in c} ‖z_i − µ_c‖²,   S_B = Σ_c n_c ‖µ_c − µ‖²,   S_W + S_B = Σ_i ‖z_i − µ‖²

A picture of features shows what an algorithm made of them; this ratio is a number of the features themselves. It does
not depend on their scale; small is compact classes far from each other.

The plane is scikit-learn's t-SNE (`pip install 'posterity[figures]'`; van der Maaten and Hinton 2008), exact. It starts
at the first two principal components, so the same points give the same picture.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posterity.experiment.result import Result
from posterity.papers.figures import material
from posterity.papers.figures.catalogue import Figure
from posterity.papers.figures.material import FigureDrawing, Material, read_models, spread_text
from posterity.papers.figures.sheet import Panel
from posterity.report import Run
from posterity.report.charts import thin
from posterity.report.svg import COLOURS, AxisScale, Canvas
from posterity.report.table import goal

LARGE, SMALL = 330.0, 170.0  # sides of a panel
PERPLEXITY = 30.0  # at most: of few points, a third of them
MOST = 500  # points: every step looks at all pairs


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
    return FigureDrawing(panels, about, {"methods": numbers}, columns)


@dataclass(frozen=True)
class Held:
    """Held-out rows of a run's clients."""

    y: Tensor
    client: Tensor  # (N,) whose they are


def held_features(result: Result, clients: int | None, classes: int | None) -> tuple[Tensor, Held]:
    """What the clients' own models hand to their heads for their own test rows (N, d): those of all members, or of the
    first `clients`, of all classes or of the first."""
    federation, delivery = result.federation, result.delivered("validated")
    pieces, labels, owner = [], [], []
    for k in range(min(clients or federation.members, federation.members)):
        rows = federation.test.client(k)
        rows = rows[federation.y[rows] < classes] if classes else rows
        if len(rows):
            with result.setup.settings.applied():
                pieces.append(delivery.features(k, federation.x[rows]).cpu())
            labels.append(federation.y[rows].cpu())
            owner += [k] * len(rows)
    if not owner:
        raise ValueError(f"{result.folder} has no test rows of the clients and classes that are to be drawn")
    return torch.cat(pieces), Held(torch.cat(labels), torch.tensor(owner))


def arranged(z: Tensor, held: Held) -> Plane:
    """At most `MOST` of the samples, evenly taken, in a plane."""
    some = torch.tensor(thin(range(len(z)), MOST))
    at, left = arrange(z[some])
    return Plane(at, held.y[some], held.client[some], left)


def score_text(runs: Sequence[Run]) -> str:
    """The headline metric of the round that was chosen."""
    name = goal(runs[0]).name
    values = material.chosen_values(runs, name)
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


def scatter_ratio(z: Tensor, y: Tensor) -> float:
    """S_W / S_B of features (N, d) with classes (N,); infinite if all classes have the same mean."""
    z = z.double()
    centre, within, between = z.mean(0), 0.0, 0.0
    for c in sorted(set(y.tolist())):
        some = z[y == c]
        mean = some.mean(0)
        within += float((some - mean).square().sum())
        between += len(some) * float((mean - centre).square().sum())
    return within / between if between > 0 else float("inf")


def arrange(z: Tensor) -> tuple[Tensor, float]:
    """Coordinates (N, 2) of points (N, d), and the divergence that is left."""
    try:
        manifold = importlib.import_module("sklearn.manifold")
    except ImportError:
        raise ValueError("features are drawn with scikit-learn, which is not installed: "
                         "pip install 'posterity[figures]'") from None  # fmt: skip
    near = max(min(PERPLEXITY, (len(z) - 1) / 3), 1.0)
    tsne = manifold.TSNE(perplexity=near, init="pca", method="exact", random_state=0)
    at = tsne.fit_transform(z.double().numpy())
    return torch.from_numpy(at).double(), float(tsne.kl_divergence_)
