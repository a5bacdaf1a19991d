"""FedNP's classifiers that z predicts, among the features (its Figure 5).

A Gaussian for each weight, made of q(z) by a client's NPN (17), beside what was learned. A classifier's row for class c
points where the features of class c are, so both are put in one plane, each divided by its length. Predicted rows are
drawn from that Gaussian, some for each client.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from posterity.experiment.result import Result
from posterity.papers.figures.catalogue import Figure
from posterity.papers.figures.features import MOST, arrange, held_features, mark, square_scales
from posterity.papers.figures.material import FigureDrawing, Material, read_models, spread_text
from posterity.papers.figures.sheet import Panel
from posterity.papers.figures.toy import predicted_heads
from posterity.report.charts import thin
from posterity.report.svg import COLOURS, Canvas

SIDE = 560.0
DRAWS = 3  # rows from each client's Gaussian for each class
FEATURES = 250  # samples that are shown


@dataclass(frozen=True)
class Predicted:
    """Rows of classifiers: those that were learned (C, d), and draws of those that are predicted (N, d)."""

    learned: Tensor
    drawn: Tensor
    y: Tensor  # (N,) class of each draw
    sd: float  # root mean variance of a predicted weight


def draw(figure: Figure, made: Sequence[Material]) -> FigureDrawing:
    panels, about, numbers = [], [], []
    clients, classes = figure.options["clients"], figure.options["classes"]
    for found in made:
        for cell in found.recipe.cells:
            runs = found.runs(cell, found.recipe.lines_of(cell)[0])
            shares, sds = [], []
            for run in runs:
                result = read_models(run)
                z, held = held_features(result, clients, classes)
                predicted = predict_rows(result, clients, classes, run.seed or 0)
                shares.append(agreement(z, held.y, predicted))
                sds.append(predicted.sd)
                if run is runs[0]:
                    remark = f"seed {run.seed}; sd of a predicted weight {predicted.sd:.3g}"
                    panels.append(Panel(found.recipe.lines_of(cell)[0].name, _plane(z, held.y, predicted), remark))
            about += [found.about(cell), _classifier_legend(shares, classes)]
            numbers.append({"cell": cell.name, "seeds": [run.seed for run in runs], "agreement": shares, "sd": sds})
    return FigureDrawing(panels, about, {"classifiers": numbers}, 2)


def predict_rows(result: Result, clients: int, classes: int, seed: int) -> Predicted:
    """The classifier's rows of the first classes, as learned and as the first clients' NPNs predict them."""
    delivery = result.delivered("validated")
    params = delivery.kept.state.params
    generator, rows, variances = torch.Generator().manual_seed(seed), [], []
    for gaussians in predicted_heads(delivery, clients):
        weight = next(name for name, (mean, _) in gaussians.items() if mean.dim() > 1)
        mean, variance = (leaf.cpu().double() for leaf in gaussians[weight])
        mean, variance = (mean - mean.mean(0))[:classes], variance[:classes]  # softmax sees no shift of all rows
        noise = torch.randn(DRAWS, *mean.shape, generator=generator, dtype=torch.float64)
        rows.append(mean + variance.sqrt() * noise)
        variances.append(variance.mean())
    drawn = torch.cat(rows)  # (clients · DRAWS, classes, d)
    y = torch.arange(drawn.shape[1]).expand(drawn.shape[:2]).reshape(-1)
    sd = float(torch.stack(variances).mean().sqrt())
    learned = params[weight].detach().cpu().double()
    return Predicted((learned - learned.mean(0))[:classes], drawn.flatten(0, 1), y, sd)


def agreement(z: Tensor, y: Tensor, predicted: Predicted) -> float:
    """Share of the predicted rows that point nearest to the mean feature of their own class; classes with samples."""
    present = torch.tensor(sorted(set(y.tolist())))
    means = torch.stack([z[y == c].double().mean(0) for c in present])
    some = torch.isin(predicted.y, present)
    nearest = (normalize(predicted.drawn[some]) @ normalize(means - means.mean(0)).T).argmax(1)
    return float((present[nearest] == predicted.y[some]).double().mean())


def _plane(z: Tensor, y: Tensor, predicted: Predicted) -> str:
    some = torch.tensor(thin(range(len(z)), FEATURES))
    seen, drawn, learned = (
        normalize(rows.double()) for rows in (z[some] - z.mean(0), predicted.drawn, predicted.learned)
    )
    kept = torch.tensor(thin(range(len(drawn)), MOST - FEATURES - len(learned)))
    at, _ = arrange(torch.cat([seen, drawn[kept], learned]))
    canvas = Canvas(SIDE, SIDE, "Classifiers among features")
    across, up = square_scales(at, SIDE)
    canvas.add("rect", "frame", x=0.5, y=0.5, width=SIDE - 1, height=SIDE - 1)
    places = [(across(a), up(b)) for a, b in at.tolist()]
    first, second = places[: len(seen)], places[len(seen) : len(seen) + len(kept)]
    for (a, b), c in zip(first, y[some].tolist(), strict=True):
        mark(canvas, c, a, b, 2.4)
    for (a, b), c in zip(second, predicted.y[kept].tolist(), strict=True):
        css = f"cross m{c % COLOURS}"
        canvas.path([(a - 3, b - 3), (a + 3, b + 3)], css)
        canvas.path([(a - 3, b + 3), (a + 3, b - 3)], css)
    for c, (a, b) in enumerate(places[len(seen) + len(kept) :]):
        canvas.text(a, b + 4, str(c), "label", "middle")
    return canvas.svg()


def _classifier_legend(shares: Sequence[float], classes: int) -> str:
    return (
        "Points: held-out samples' features. Crosses: rows of the classifier drawn from what the clients' NPNs predict "
        f"from q(z). Numbers: rows of the classifier that was learned, classes 0 to {classes - 1}. All are taken from "
        "their mean, divided by their length and placed by exact t-SNE. "
        f"{spread_text([100 * s for s in shares], 0)} % of the predicted rows point nearest to the features of their "
        f"own class (chance {100 / classes:.0f} %)."
    )
