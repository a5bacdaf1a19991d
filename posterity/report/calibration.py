"""Reliability diagrams: how often a prediction is right, against how sure it was, with an interval for every bin.

`svg.py` draws, `page.py` places.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posterity.evaluate.wilson import wilson
from posterity.report.selected_round import select_round
from posterity.report.svg import AxisScale, Canvas, colour, percent
from posterity.report.tables import Arm

CAP = 2.5  # half the width of a whisker's ends


def pooled_bins(arm: Arm, rule: str, kind: str = "bins") -> list[tuple[float, float, float]]:
    """Count, sum of confidence and sum of correct of each bin, added over seeds; "flat": of all class probabilities."""
    found = [
        bins
        for run in arm.runs
        if (selected := select_round(run, rule)) is not None and (bins := getattr(selected.score, kind))
    ]
    if not found or len({len(b) for b in found}) > 1:
        return []
    total = np.sum(np.asarray(found, dtype=float), axis=0)
    return [(float(a), float(b), float(c)) for a, b, c in total] if total[:, 0].sum() > 0 else []


def reliability(
    arm: Arm, bins: Sequence[tuple[float, float, float]], seeds: int = 1, x_title: str = "confidence, %",
    y_title: str = "accuracy, %",
) -> str:  # fmt: skip
    """Accuracy against confidence by bin; below it the share of predictions in each bin, which says what to ignore.

    Whiskers are Wilson's intervals for the count of one seed on average: seeds may predict the same rows, and then
    more of them are not more evidence.
    """
    canvas = Canvas(220, 268, f"Reliability of {arm.label}")
    x, y = AxisScale(0, 1, 34, 212), AxisScale(0, 1, 190, 22)
    for tick in (0.0, 0.5, 1.0):
        canvas.line(x.start, y(tick), x.end, y(tick), "grid")
        canvas.text(x.start - 5, y(tick) + 4, percent(tick), "tick", "end")
        canvas.text(x(tick), 252, percent(tick), "tick", "middle" if tick < 1 else "end")
    canvas.line(x(0), y(0), x(1), y(1), "ideal")
    total, most = sum(n for n, _, _ in bins), max(n for n, _, _ in bins)
    step = 1 / len(bins)
    curve: list[tuple[float, float, str]] = []
    for k, (n, confidence, correct) in enumerate(bins):
        if n <= 0:
            continue
        low, high = wilson(correct / n, n / max(seeds, 1))
        told = (
            f"{n:.0f} of {total:.0f} predictions; confidence {confidence / n:.3f}, accuracy {correct / n:.3f}, "
            f"95 % interval {low:.3f} to {high:.3f}"
        )
        bar = 38 * n / (most or 1)
        canvas.add("rect", f"count {colour(arm.index)}", told, x=x(k * step) + 0.5, y=238 - bar, height=max(bar, 0.5),
                   width=x(step) - x(0) - 1)  # fmt: skip
        _whisker(canvas, x(confidence / n), y(low), y(high), f"whisker {colour(arm.index)}")
        curve.append((x(confidence / n), y(correct / n), told))
    canvas.path([(cx, cy) for cx, cy, _ in curve], f"line {colour(arm.index)}")
    for cx, cy, told in curve:
        canvas.add("circle", f"dot {colour(arm.index)}", told, cx=cx, cy=cy, r=2.5)
    canvas.line(x.start, 238, x.end, 238, "axis")
    canvas.text(x.end, 265, x_title, "tick", "end")
    canvas.text(x.start - 26, y.end - 12, y_title, "tick")
    return canvas.svg()


def _whisker(canvas: Canvas, at: float, low: float, high: float, css: str) -> None:
    """A stroke from one end of an interval to the other, with a short bar at each."""
    ends = [(at - CAP, low), (at + CAP, low), (at, low), (at, high), (at - CAP, high), (at + CAP, high)]
    canvas.path(ends, css)
