"""Charts of clients: how well each is served, how far confidence can be trusted, and who holds which data.

`svg.py` draws, `page.py` places; charts over rounds are in `line_charts.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posterity.report.columns import axis_title
from posterity.report.read_runs import FederationFacts
from posterity.report.selected_round import goal, select_round
from posterity.report.svg import CHARACTER, AxisScale, Canvas, colour, number, percent, plain, shorten, ticks, widen
from posterity.report.tables import Arm

DOTS = 1600  # in the chart: beyond that the picture no longer changes, only the page's size
MOST = 200  # per method
TOLD = 900  # bubbles with a tooltip
CLIENTS = 60
CLASSES = 100


@dataclass(frozen=True)
class Dot:
    """One client in one run."""

    value: float
    told: str


def client_dots(arm: Arm, rule: str) -> list[Dot]:
    """The headline metric of every client of every run, ascending."""
    dots = []
    for run in arm.runs:
        selected = select_round(run, rule)
        if selected is None:
            continue
        sizes = selected.score.by_client("n")
        for k, value in enumerate(selected.score.by_client(goal(run).name)):
            if value is None:
                continue
            shown = f"{100 * value:.1f} %" if goal(run).share else plain(value)
            n = sizes[k] if k < len(sizes) else None
            size = f", {n:.0f} samples" if n is not None else ""
            dots.append(Dot(value, f"{run.federation.client(k)}, seed {run.seed}: {shown}{size}"))
    return sorted(dots, key=lambda d: d.value)


def dots_shown(methods: int) -> int:
    """How many dots a method may draw."""
    return min(MOST, max(DOTS // max(methods, 1), 40))


def strip_chart(dots_by_arm: Sequence[tuple[Arm, Sequence[Dot]]], width: float, title: str) -> str:
    """A row per method: every client a dot, and over them a box of the quartiles with whiskers at 10 and 90 %."""
    metric = goal(dots_by_arm[0][0].runs[0])
    is_share = metric.share
    narrow = width < 500
    pitch = 62 if narrow else 46  # a narrow page has no room for names beside the rows, so they go above
    longest = max(len(arm.label) for arm, _ in dots_by_arm)
    left = 12 if narrow else min(CHARACTER * longest + 26, 220)
    canvas = Canvas(width, pitch * len(dots_by_arm) + 46, title)
    low, high = widen((d.value for _, dots in dots_by_arm for d in dots), 0.0, 1.0 if is_share else None)
    x = AxisScale(low, high, left, width - 16)
    foot = pitch * len(dots_by_arm) + 6
    for tick in ticks(low, high, int((x.end - x.start) / 80)):
        canvas.line(x(tick), 4, x(tick), foot, "grid")
        canvas.text(x(tick), foot + 15, percent(tick) if is_share else plain(tick), "tick", "middle")
    canvas.text(x.end, foot + 33, axis_title(metric, " of a client"), "name", "end")
    for row, (arm, dots) in enumerate(dots_by_arm):
        centre = pitch * row + (40 if narrow else 26)
        name = shorten(arm.label, width - 20 if narrow else left - 14)
        at, level, anchor = (left, centre - 22, "start") if narrow else (left - 12, centre + 4, "end")
        canvas.text(at, level, name, f"end {colour(arm.index)}", anchor)
        _dots(canvas, x, centre, arm, thinned(dots, dots_shown(len(dots_by_arm))), tooltips=not narrow)
        _box(canvas, x, centre, dots)
    return canvas.svg()


def thinned(dots: Sequence[Dot], most: int) -> Sequence[Dot]:
    """An even selection by rank, the worst and the best client among them."""
    return dots if len(dots) <= most else [dots[round(k * (len(dots) - 1) / (most - 1))] for k in range(most)]


def _dots(canvas: Canvas, x: AxisScale, centre: float, arm: Arm, dots: Sequence[Dot], tooltips: bool) -> None:
    """Dots at their value; the height within the row is only there to keep them apart."""
    # golden ratio: neighbours in value are far apart in height
    places = [(x(dot.value), centre + 24 * ((k * 0.618034) % 1.0 - 0.5)) for k, dot in enumerate(dots)]
    if not tooltips:  # one path of round points is a tenth of the bytes
        steps = "".join(f"M{number(a)} {number(b)}h0" for a, b in places)
        canvas.add("path", f"points {colour(arm.index)}", d=steps)
        return
    group = canvas.add("g", f"client {colour(arm.index)}")
    for dot, (a, b) in zip(dots, places, strict=True):
        canvas.add("circle", "", dot.told, group, cx=a, cy=b, r=3)


def _box(canvas: Canvas, x: AxisScale, centre: float, dots: Sequence[Dot]) -> None:
    if len(dots) < 4:
        return  # quartiles of three clients say less than the three dots
    p10, q1, median, q3, p90 = (x(float(q)) for q in np.quantile([d.value for d in dots], [0.1, 0.25, 0.5, 0.75, 0.9]))
    canvas.line(p10, centre, q1, centre, "box")
    canvas.line(q3, centre, p90, centre, "box")
    canvas.add("rect", "box", x=q1, y=centre - 9, width=max(q3 - q1, 0.5), height=18)
    canvas.line(median, centre - 9, median, centre + 9, "median")


def pooled_bins(arm: Arm, rule: str) -> list[tuple[float, float, float]]:
    """Count, sum of confidence and sum of correct of each bin, added over seeds."""
    found = [
        selected.score.bins
        for run in arm.runs
        if (selected := select_round(run, rule)) is not None and selected.score.bins
    ]
    if not found or len({len(b) for b in found}) > 1:
        return []
    total = np.sum(np.asarray(found, dtype=float), axis=0)
    return [(float(a), float(b), float(c)) for a, b, c in total] if total[:, 0].sum() > 0 else []


def reliability(arm: Arm, bins: Sequence[tuple[float, float, float]]) -> str:
    """Accuracy against confidence by bin; below it the share of predictions in each bin, which says what to ignore."""
    canvas = Canvas(220, 268, f"Reliability of {arm.label}")
    x, y = AxisScale(0, 1, 34, 212), AxisScale(0, 1, 190, 22)
    for tick in (0.0, 0.5, 1.0):
        canvas.line(x.start, y(tick), x.end, y(tick), "grid")
        canvas.text(x.start - 5, y(tick) + 4, percent(tick), "tick", "end")
        canvas.text(x(tick), 252, percent(tick), "tick", "middle" if tick < 1 else "end")
    canvas.line(x(0), y(0), x(1), y(1), "ideal")
    total, most = sum(n for n, _, _ in bins), max(n for n, _, _ in bins)
    step = 1 / len(bins)
    curve = []
    for k, (n, confidence, correct) in enumerate(bins):
        if n <= 0:
            continue
        at = (x(confidence / n), y(correct / n))
        curve.append(at)
        bar = 38 * n / (most or 1)
        told = f"{n:.0f} of {total:.0f} predictions; confidence {confidence / n:.3f}, accuracy {correct / n:.3f}"
        canvas.add("rect", f"count {colour(arm.index)}", told, x=x(k * step) + 0.5, y=238 - bar, height=max(bar, 0.5),
                   width=x(step) - x(0) - 1)  # fmt: skip
        canvas.line(at[0], at[1], at[0], y(confidence / n), "miss")
    canvas.path(curve, f"line {colour(arm.index)}")
    for cx, cy in curve:
        canvas.add("circle", f"dot {colour(arm.index)}", cx=cx, cy=cy, r=2.5)
    canvas.line(x.start, 238, x.end, 238, "axis")
    canvas.text(x.end, 265, "confidence, %", "tick", "end")
    canvas.text(x.start - 26, y.end - 12, "accuracy, %", "tick")
    return canvas.svg()


def partition(federation: FederationFacts, width: float) -> str:
    """Clients across, classes up, area = samples; below, the size of each client's parts."""
    shown = min(federation.clients, CLIENTS)
    counts = [row[:CLASSES] for row in federation.histogram[:shown]]
    classes = max((len(row) for row in counts), default=0)
    pitch = 18 if classes <= 20 else 12 if classes <= 50 else 7
    names = [federation.class_names[c] if c < len(federation.class_names) else str(c) for c in range(classes)]
    left = min(max((CHARACTER * len(n) for n in names), default=0) + 16, 0.28 * width) if classes else 0
    left = max(left, 52)
    step = min((width - left - 8) / max(shown, 1), 36)
    canvas = Canvas(width, pitch * classes + 130, f"Partition of {federation.name}")
    radius = min(step, pitch * 1.15) / 2
    most = max((n for row in counts for n in row), default=1) or 1
    for c, name in enumerate(names):
        y = pitch * c + 14
        if pitch > 10 or c % 10 == 0:  # a hundred lines and names would be noise
            canvas.line(left, y, left + step * shown, y, "grid")
            canvas.text(left - 8, y + 4, shorten(name, left - 12), "tick", "end")
    group = canvas.add("g", "bubble")
    spoken = width > 500 and sum(n > 0 for row in counts for n in row) <= TOLD
    for k, row in enumerate(counts):
        for c, n in enumerate(row):
            if n > 0:
                told = f"{federation.client(k)}, class {names[c]}: {n} samples" if spoken else ""
                r = max(radius * math.sqrt(n / most), 0.6)
                canvas.add("circle", "", told, group, cx=left + step * (k + 0.5), cy=pitch * c + 14, r=r)
    _sizes(canvas, federation, left, step, pitch * classes + 22, shown)
    return canvas.svg()


def _sizes(canvas: Canvas, federation: FederationFacts, left: float, step: float, top: float, shown: int) -> None:
    """Stacked bars: training, validation and test samples of each client."""
    parts = [(name, getattr(federation, name)) for name in ("train", "validation", "test")]
    sizes = [[v[k] if k < len(v) else 0 for _, v in parts] for k in range(shown)]
    most = max((sum(s) for s in sizes), default=1) or 1
    y = AxisScale(0, most, top + 68, top + 8)
    for tick in ticks(0, most, 2):
        canvas.line(left, y(tick), left + step * shown, y(tick), "grid")
        canvas.text(left - 8, y(tick) + 4, plain(tick), "tick", "end")
    for k, size in enumerate(sizes):
        told = f"{federation.client(k)}: " + ", ".join(f"{n} {name}" for (name, _), n in zip(parts, size, strict=True))
        below = 0
        for (name, _), n in zip(parts, size, strict=True):
            if n:
                canvas.add("rect", f"part {name}", told, x=left + step * (k + 0.12), width=step * 0.76, y=y(below + n),
                           height=y(below) - y(below + n))  # fmt: skip
            below += n
    every = next(e for e in (1, 2, 5, 10, 20, 50) if e * step > 26)
    for k in range(0, shown, every):
        canvas.text(left + step * (k + 0.5), top + 83, str(k), "tick", "middle")
    canvas.text(left + step * shown, top + 100, "client", "name", "end")
