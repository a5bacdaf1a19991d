"""Reliability diagrams of methods side by side: over all class probabilities, as MetaVD's programme has them (erratum
M9), and below over the most probable class alone, which is what the words "confidence" and "accuracy" mean.

The bins are those of the metrics (`evaluate/scores.py`), as the log has them of the round that was chosen: of the test
rows of the members, judged by their own models, all clients as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from posterity.papers.figures.catalogue import Figure
from posterity.papers.figures.curves import arms_of
from posterity.papers.figures.features import spread_text
from posterity.papers.figures.material import FigureDrawing, Material, chosen_values
from posterity.papers.figures.sheet import Panel, sheet
from posterity.report.charts import pooled_bins, reliability
from posterity.report.table import Arm, select_round

COLUMNS = 4
AXES = {"flat": ("class probability, %", "labels, %"), "bins": ("confidence, %", "accuracy, %")}
NAMES = {"flat": ("all classes", "ece_flat", "mce_flat"), "bins": ("top label", "ece", "mce")}
KEY = (
    "All classes: every class probability of every sample counts once (MetaVD's programme; most are near 0, which "
    "makes the ECE about as many times smaller as there are classes). Top label: the most probable class alone. "
    "Whiskers: 95 % (Wilson). Pale bars: share of predictions in a bin. ECE and MCE in %, mean ± sd over seeds."
)


def draw(figure: Figure, made: Sequence[Material]) -> FigureDrawing:
    panels, about, numbers = [], [], []
    for found in made:
        for cell in found.recipe.cells:
            arms = arms_of(found, cell)
            for start in range(0, len(arms), COLUMNS):
                some = arms[start : start + COLUMNS]
                panels += [_panel(arm, kind) for kind in NAMES for arm in some]
            numbers += [_numbers(arm) for arm in arms]
            about += [found.about(cell), KEY]
    columns = min(COLUMNS, len(numbers))
    return FigureDrawing(sheet(f"{figure.paper}, {figure.title}", about, panels, columns), {"methods": numbers})


def bins_of(arm: Arm, kind: str) -> list[tuple[float, float, float]]:
    """Count, sum of probabilities and sum of labels in each bin, added over seeds."""
    for run in arm.runs:
        chosen = select_round(run, "validated")
        if chosen is None or not getattr(chosen.score, kind):
            raise ValueError(f"the log of {arm.label}, seed {run.seed} ({run.folder}) does not have the bins of "
                             f"{NAMES[kind][0]}: it is of an older posterity, of sites that keep them, or has no test "
                             "rows; run it again, or name other rows with --methods")  # fmt: skip
    return pooled_bins(arm, "validated", kind)


def _panel(arm: Arm, kind: str) -> Panel:
    what, *metrics = NAMES[kind]
    drawn = reliability(arm, bins_of(arm, kind), len(arm.runs), *AXES[kind])
    found = [[100 * v for v in chosen_values(arm.runs, metric)] for metric in metrics]
    ece, mce = (spread_text(each, digits) for each, digits in zip(found, (2, 1), strict=True))
    return Panel(f"{arm.label}, {what}", drawn, f"ECE {ece}, MCE {mce}")


def _numbers(arm: Arm) -> dict[str, Any]:
    metrics = {name: chosen_values(arm.runs, name) for _, *names in NAMES.values() for name in names}
    return {"method": arm.label, "seeds": [run.seed for run in arm.runs], **metrics,
            **{kind: bins_of(arm, kind) for kind in NAMES}}  # fmt: skip
