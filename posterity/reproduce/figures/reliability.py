"""Reliability diagrams of methods side by side: over all class probabilities, as MetaVD's programme has them (erratum
M9), and below over the most probable class alone, which is what the words "confidence" and "accuracy" mean.

The bins are those of the metrics (`evaluate/scores.py`); predictions are made again by the models that a run delivers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from posterity.core.tree import tree_map
from posterity.evaluate import Scores, per_client, score
from posterity.experiment.result import Result
from posterity.report.calibration import reliability
from posterity.report.tables import Arm
from posterity.reproduce.cells import RunRequest
from posterity.reproduce.figures.catalogue import Figure
from posterity.reproduce.figures.features import spread_text
from posterity.reproduce.figures.material import FigureDrawing, collect, read_models
from posterity.reproduce.figures.sheet import Panel, sheet
from posterity.reproduce.recipe import Recipe

COLUMNS = 4
AXES = {"flat": ("class probability, %", "labels, %"), "bins": ("confidence, %", "accuracy, %")}
NAMES = {"flat": ("all classes", "ece_flat", "mce_flat"), "bins": ("top label", "ece", "mce")}
KEY = (
    "All classes: every class probability of every sample counts once (MetaVD's programme; most are near 0, which "
    "makes the ECE about as many times smaller as there are classes). Top label: the most probable class alone. "
    "Whiskers: 95 % (Wilson). Pale bars: share of predictions in a bin. ECE and MCE in %, mean ± sd over seeds."
)


@dataclass(frozen=True)
class Judged:
    """A method with the pooled scores of each of its seeds."""

    arm: Arm
    scores: tuple[Scores, ...]

    def bins(self, kind: str) -> list[tuple[float, float, float]]:
        """Count, sum of probabilities and sum of labels in each bin, added over seeds."""
        total = torch.stack([getattr(each, kind)[0] for each in self.scores]).sum(0)
        return [(n, p, c) for n, p, c in total.tolist()]

    def values(self, metric: str) -> list[float]:
        return [float(per_client(each)[metric][0]) for each in self.scores]


def draw(figure: Figure, made: Sequence[Recipe], place: Path, asked: RunRequest) -> FigureDrawing:
    panels, about, numbers = [], [], []
    for recipe in made:
        found = collect(recipe, place, asked, figure.id)
        for cell in found.recipe.cells:
            judged = []
            for i, line in enumerate(found.recipe.lines_of(cell)):
                runs = found.runs(cell, line)
                judged.append(Judged(Arm(line.name, i, tuple(runs)), tuple(judge(read_models(run)) for run in runs)))
            for start in range(0, len(judged), COLUMNS):
                some = judged[start : start + COLUMNS]
                panels += [_panel(each, kind) for kind in NAMES for each in some]
            numbers += [_numbers(each) for each in judged]
            about += [found.about(cell), KEY]
    columns = min(COLUMNS, len(numbers))
    return FigureDrawing(sheet(f"{figure.paper}, {figure.title}", about, panels, columns), {"methods": numbers})


def judge(result: Result) -> Scores:
    """The members' test rows, judged by their own models of the chosen round: all clients as one."""
    federation = result.federation
    found = []
    for k in range(federation.members):
        rows = federation.test.client(k)
        if len(rows):
            p = result.predict_proba(k, federation.x[rows], scaled=True)
            offsets = torch.tensor([0, len(rows)])
            found.append(score(p.double().log(), federation.y[rows], offsets, federation.classes, "classification"))
    if not found:
        raise ValueError(f"{result.folder} holds no test rows: its partition leaves none")
    total = found[0]
    for more in found[1:]:
        total = total + more
    made: Scores = tree_map(lambda leaf: leaf.cpu(), total)
    return made


def _panel(judged: Judged, kind: str) -> Panel:
    what, *metrics = NAMES[kind]
    ece, mce = (
        spread_text([100 * v for v in judged.values(m)], digits) for m, digits in zip(metrics, (2, 1), strict=True)
    )
    drawn = reliability(judged.arm, judged.bins(kind), len(judged.scores), *AXES[kind])
    return Panel(f"{judged.arm.label}, {what}", drawn, f"ECE {ece}, MCE {mce}")


def _numbers(judged: Judged) -> dict[str, Any]:
    metrics = {name: judged.values(name) for _, *names in NAMES.values() for name in names}
    return {"method": judged.arm.label, "seeds": [run.seed for run in judged.arm.runs], **metrics,
            **{kind: judged.bins(kind) for kind in NAMES}}  # fmt: skip


__all__ = ["Judged", "draw", "judge"]
