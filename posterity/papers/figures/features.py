"""Features of held-out samples in a plane, by t-SNE, and how far the classes stand apart, as a number.

The picture is of one seed; the number, of all seeds, is the scatter within classes over the scatter between them:

    S_W = Σ_c Σ_{i in c} ‖z_i − µ_c‖²,   S_B = Σ_c n_c ‖µ_c − µ‖²,   S_W + S_B = Σ_i ‖z_i − µ‖²

A picture of features shows what an algorithm made of them; this ratio is a number of the features themselves. It does
not depend on their scale; small is compact classes far from each other.

t-SNE, exact and small: points of many dimensions in a plane, neighbours beside neighbours (van der Maaten and Hinton
2008). All pairs are compared, so it is for some hundreds of points. The start is the first two principal components, so
nothing is drawn at random and the same points give the same picture.

    p_j|i ∝ exp(−‖x_i − x_j‖² β_i), β_i such that the row has the perplexity asked for;  p_ij = (p_j|i + p_i|j) / 2N
    q_ij  ∝ 1 / (1 + ‖y_i − y_j‖²);  minimise KL(p ‖ q)
"""

from __future__ import annotations

import math
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
    at, left = arrange(z[some], PERPLEXITY)
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


MOST = 500  # points: every step looks at all pairs
HALVINGS = 100  # of the interval in which a row's β lies
EXAGGERATION, EARLY = 12.0, 250  # p is multiplied by the one for so many steps: clusters form before they part
START = 1e-4  # sd of the first coordinates


def squared_distances(x: Tensor) -> Tensor:
    """(N, N), exactly 0 on the diagonal."""
    found = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square()
    return found.fill_diagonal_(0.0)


def conditional(distances: Tensor, perplexity: float) -> Tensor:
    """p_j|i (N, N): every row has the perplexity exp(entropy) that is asked for, found by bisection of log β_i."""
    n, wanted = len(distances), math.log(perplexity)
    if not 1 <= perplexity < n:
        raise ValueError(f"a perplexity of {perplexity:g} was asked for {n} points: give one from 1 to below {n}")
    itself = torch.eye(n, dtype=torch.bool, device=distances.device)
    unit = distances.sum(1, keepdim=True) / max(n - 1, 1)  # β is measured in it, whatever the features' scale
    near = torch.where(unit > 0, distances / unit.clamp(min=torch.finfo(distances.dtype).tiny), 0.0)
    low, high = near.new_full((n, 1), -60.0), near.new_full((n, 1), 60.0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        p, entropy = _row(near, middle.exp(), itself)
        low, high = torch.where(entropy > wanted, middle, low), torch.where(entropy > wanted, high, middle)
    return p


def _row(near: Tensor, beta: Tensor, itself: Tensor) -> tuple[Tensor, Tensor]:
    logs = (-near * beta).masked_fill(itself, -math.inf).log_softmax(1)
    p = logs.exp()
    return p, -(p * logs.masked_fill(itself, 0.0)).sum(1, keepdim=True)


def joint(x: Tensor, perplexity: float) -> Tensor:
    """p_ij of points (N, d): symmetric, sums to one."""
    p = conditional(squared_distances(x), perplexity)
    return (p + p.T) / (2 * len(p))


def _kernel(y: Tensor) -> Tensor:
    """1 / (1 + ‖y_i − y_j‖²), and 0 for a point and itself."""
    return (1 / (1 + squared_distances(y))).fill_diagonal_(0.0)


def divergence(p: Tensor, y: Tensor) -> Tensor:
    """KL(p ‖ q) of an arrangement y (N, 2)."""
    kernel = _kernel(y)
    tiny = torch.finfo(p.dtype).tiny
    return (p * (p.clamp(min=tiny) / (kernel / kernel.sum()).clamp(min=tiny)).log()).sum()


def gradient(p: Tensor, y: Tensor) -> Tensor:
    """Of the divergence: 4 Σ_j (p_ij − q_ij) (y_i − y_j) / (1 + ‖y_i − y_j‖²)."""
    kernel = _kernel(y)
    pull = (p - kernel / kernel.sum()) * kernel
    return 4 * (pull.sum(1, keepdim=True) * y - pull @ y)


def first_components(x: Tensor) -> Tensor:
    """The first two principal components (N, 2), the first with sd `START`; signs as the largest entries have them."""
    centred = x - x.mean(0)
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    found = torch.zeros(len(x), 2, dtype=x.dtype, device=x.device)
    found[:, : min(2, len(s))] = (u * s)[:, :2]
    largest = found.gather(0, found.abs().argmax(0, keepdim=True))
    found = found * torch.where(largest < 0, -1.0, 1.0)
    spread = found[:, 0].std()
    return found * (START / spread) if spread > 0 else found


def arrange(x: Tensor, perplexity: float = 30.0, steps: int = 750) -> tuple[Tensor, float]:
    """Coordinates (N, 2) of points (N, d), and the divergence that is left. A perplexity above a third of the points
    is lowered to that."""
    x = x.to(torch.float64)
    p = joint(x, max(min(perplexity, (len(x) - 1) / 3), 1.0))
    y = first_components(x)
    speed, gain = torch.zeros_like(y), torch.ones_like(y)
    rate, early = max(len(x) / EXAGGERATION / 4, 50.0), min(EARLY, steps // 3)
    for step in range(steps):
        slope = gradient(p * EXAGGERATION if step < early else p, y)
        gain = torch.where(slope.sign() == speed.sign(), gain * 0.8, gain + 0.2).clamp(min=0.01)
        speed = (0.5 if step < early else 0.8) * speed - rate * gain * slope
        y = y + speed
    return y - y.mean(0), float(divergence(p, y))
