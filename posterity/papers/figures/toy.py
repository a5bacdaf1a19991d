"""FedNP's toy: three clients see three pieces of a parabola; each method's local curves, their average, and FedNP's
band: each client's NPN turns q(z) into a Gaussian over coefficients, hence over curves; the three are one mixture.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import posterity
from posterity.core import head
from posterity.core.tree import tree_rows
from posterity.experiment.models import Delivery
from posterity.experiment.result import Result
from posterity.papers.figures.catalogue import Figure
from posterity.papers.figures.material import FigureDrawing, Material, read_models, spread_text
from posterity.papers.figures.sheet import Panel
from posterity.report.svg import AxisScale, Canvas, axes, number, ticks

WIDTH, HEIGHT = 330.0, 300.0
X, Y = (-7.5, 8.5), (-80.0, 20.0)  # what is shown
DEVIATIONS = 3.0  # of the band: the paper's
POINTS = 161


@dataclass(frozen=True)
class Curves:
    """What a method has learned, at `x`; `band` is the mean and sd of predicted curves where the method has them."""

    x: Tensor
    truth: Tensor
    data: tuple[tuple[Tensor, Tensor], ...]  # x and y of each client
    local: tuple[Tensor, ...]  # each client's model after its local training
    average: Tensor
    band: tuple[Tensor, Tensor] | None
    error: float  # of the average, on everybody's data


def draw(figure: Figure, made: Sequence[Material]) -> FigureDrawing:
    panels: list[Panel] = []
    about, numbers = list[str](), list[dict[str, Any]]()
    for found in made:
        for cell in found.recipe.cells:
            for line in found.recipe.lines_of(cell):
                runs = found.runs(cell, line)
                every = [curves_of(read_models(run)) for run in runs]
                if figure.options.get("truth") and not panels:
                    panels.append(Panel("Truth and data", _chart(every[0], "truth"), f"seed {runs[0].seed}"))
                error = f"MSE on everybody's data {spread_text([each.error for each in every], 0)}"
                panels.append(Panel(line.name, _chart(every[0], "models"), error))
                if figure.options.get("band") and every[0].band is not None:
                    shares = spread_text([100 * covered(each) for each in every], 0)
                    remark = f"holds the truth on {shares} % of the range"
                    panels.append(Panel(f"{line.name}, predicted curves", _chart(every[0], "band"), remark))
                numbers.append({"method": line.name, "seeds": [run.seed for run in runs], **_numbers(every)})
            about += [
                found.about(cell),
                *(f"Left open by the paper: {each}." for each in found.recipe.open),
                *(f"Differs from the paper: {each}." for each in found.recipe.differs),
                _legend(numbers[0]["seeds"][0]),
            ]
    return FigureDrawing(panels, about, {"methods": numbers}, len(panels))


def curves_of(result: Result) -> Curves:
    """The last models of a run of the toy."""
    result = posterity.load(str(result.folder), federation=result.federation)  # local training needs the data
    federation, x = result.federation, torch.linspace(*X, POINTS)[:, None]
    pieces = [federation.train.client(k) for k in range(federation.members)]
    local = [result.predict_proba(k, x, point="trained", show="last")[:, 0] for k in range(federation.members)]
    error = (result.predict_proba(0, federation.x, show="last")[:, 0] - federation.y).square().mean()
    intercept = float(result.config.settings("data").get("intercept", 5.0))
    return Curves(
        x=x[:, 0],
        truth=-(x[:, 0] ** 2) + 2 * x[:, 0] + intercept,
        data=tuple((federation.x[rows, 0], federation.y[rows]) for rows in pieces),
        local=tuple(local),
        average=result.predict_proba(0, x, show="last")[:, 0],
        band=mixture(result, x) if hasattr(result.method, "classifier") else None,
        error=float(error),
    )


def mixture(result: Result, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and sd at x (B, 1) of the mixture of curves that the clients' NPNs predict, weighted by their samples."""
    sim, delivery = result.setup.sim, result.delivered("last")
    h = sim.model.features(delivery.kept.state.params, x)[0]
    means, variances = [], []
    for gaussians in predicted_heads(delivery, sim.federation.members):
        parts = [(m.reshape(-1), v.reshape(-1), h if m.dim() > 1 else torch.ones_like(h[:, :1]))
                 for m, v in gaussians.values()]  # fmt: skip
        means.append(torch.stack([columns @ m for m, _, columns in parts]).sum(0))
        variances.append(torch.stack([columns**2 @ v for _, v, columns in parts]).sum(0))
    share = (sim.federation.train.counts / sim.federation.train.counts.sum())[:, None]
    centre = (share * torch.stack(means)).sum(0)
    total = (share * (torch.stack(variances) + (torch.stack(means) - centre) ** 2)).sum(0)
    return centre, total.sqrt()


Gaussians = dict[str, tuple[Tensor, Tensor]]  # mean and variance of a leaf of the classifier


def predicted_heads(delivery: Delivery, clients: int) -> list[Gaussians]:
    """Of the first `clients` members, leaf by leaf."""
    sim, kept = delivery.setup.sim, delivery.kept
    method: Any = sim.method  # FedNP's
    params, z = kept.state.params, kept.state.totals
    names = head(params, sim.model)
    spoken = [n for n in names if method.biases or params[n].dim() > 1] or names
    found = []
    for k in range(min(clients, sim.federation.members)):
        npn = tree_rows(kept.records.read(torch.tensor([k]))["npn"], 0)
        flat = method.classifier(npn, z.mean(), z.covariance())
        sizes = [params[n].numel() for n in spoken]
        means, variances = (each.split(sizes) for each in flat)
        leaves = zip(spoken, means, variances, strict=True)
        found.append({n: (m.reshape(params[n].shape), v.reshape(params[n].shape)) for n, m, v in leaves})
    return found


def covered(curves: Curves) -> float:
    """On which share of the x between the outermost samples the band holds the truth."""
    assert curves.band is not None
    mean, sd = curves.band
    seen = torch.cat([x for x, _ in curves.data])
    inside = (curves.x >= seen.min()) & (curves.x <= seen.max())
    return float(((curves.truth - mean).abs() <= DEVIATIONS * sd)[inside].double().mean())


def _legend(seed: int | None) -> str:
    return (f"Crosses: samples of clients 1, 2 and 3 (from the left); thin lines: their models after local training; "
            f"thick: the average that they begin from; dashed: the truth; grey: NPN's mean ± {DEVIATIONS:g} sd. Drawn: "
            f"seed {seed}; numbers: mean ± sd over seeds.")  # fmt: skip


def _numbers(every: Sequence[Curves]) -> dict[str, Any]:
    first = every[0]
    band = {} if first.band is None else {"band_mean": first.band[0].tolist(), "band_sd": first.band[1].tolist(),
                                          "covered": [covered(each) for each in every]}  # fmt: skip
    return {"mse": [each.error for each in every], "x": first.x.tolist(), "truth": first.truth.tolist(),
            "average": first.average.tolist(), "local": [line.tolist() for line in first.local], **band}  # fmt: skip


def _chart(curves: Curves, what: str) -> str:
    canvas = Canvas(WIDTH, HEIGHT, "Curves")
    x, y = AxisScale(*X, 38, WIDTH - 8), AxisScale(*Y, HEIGHT - 36, 22)
    axes(canvas, x, y, ticks(-6, 8, 7), ticks(*Y, 5))
    canvas.text(4, 12, "y", "name")
    canvas.text(x.end, HEIGHT - 4, "x", "name", "end")
    plot = PlotArea(canvas, x, y)
    if what == "band" and curves.band is not None:
        mean, sd = curves.band
        plot.line("shade", torch.cat([curves.x, curves.x.flip(0)]),
                  torch.cat([mean + DEVIATIONS * sd, (mean - DEVIATIONS * sd).flip(0)]))  # fmt: skip
        plot.line("line m5", curves.x, mean)
    plot.line("truth", curves.x, curves.truth)
    for k, (xs, ys) in enumerate(curves.data):
        plot.crosses(f"cross m{k}", xs, ys)
    if what == "models":
        for k, values in enumerate(curves.local):
            plot.line(f"line thin m{k}", curves.x, values)
        plot.line("thick", curves.x, curves.average)
    return canvas.svg()


class PlotArea:
    """The inside of a chart; what lies outside is cut off."""

    def __init__(self, canvas: Canvas, x: AxisScale, y: AxisScale) -> None:
        self.x, self.y, self.canvas = x, y, canvas
        self.inside = canvas.add("svg", x=x.start, y=y.end, width=x.end - x.start, height=y.start - y.end)

    def places(self, x: Tensor, y: Tensor) -> list[tuple[float, float]]:
        pairs = zip(x.tolist(), y.tolist(), strict=True)
        return [(self.x(a) - self.x.start, self.y(b) - self.y.end) for a, b in pairs]

    def line(self, css: str, x: Tensor, y: Tensor) -> None:
        steps = "L".join(f"{number(a)} {number(b)}" for a, b in self.places(x, y))
        self.canvas.add("path", css, inside=self.inside, d=f"M{steps}")

    def crosses(self, css: str, x: Tensor, y: Tensor) -> None:
        for a, b in self.places(x, y):
            self.canvas.add("path", css, inside=self.inside, d=f"M{number(a - 2.5)} {number(b - 2.5)}l5 5m0 -5l-5 5")
