"""Line charts: the headline metric against rounds and bytes, and the sparklines of a method's own diagnostics.

`svg.py` draws, `page.py` places; charts of clients are in `client_charts.py`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from posterity.report.columns import axis_title, human_bytes
from posterity.report.read_runs import Run
from posterity.report.selected_round import goal
from posterity.report.summary import curve
from posterity.report.svg import (
    CHARACTER,
    AxisScale,
    Canvas,
    axes,
    colour,
    log_ticks,
    percent,
    plain,
    shorten,
    spread,
    ticks,
    widen,
)
from posterity.report.tables import Arm

MOST = 160  # points of a line: more than that no screen resolves
BUDGET = 1600  # points of a chart: the page must stay small with twenty methods on it


@dataclass(frozen=True)
class LearningCurve:
    """A method's mean over seeds; `band` is its sd at the same places, empty for a single seed."""

    arm: Arm
    x: tuple[float, ...]
    y: tuple[float, ...]
    band: tuple[float, ...]


def learning_curves(found: Sequence[Arm], part: str, against: str = "round") -> list[LearningCurve]:
    """The headline metric of each method by round, or by bytes sent up and down since the start."""
    made = []
    for arm in found:
        curves = [{r: v for r, v in curve(run, part).items() if math.isfinite(v)} for run in arm.runs]
        shared = sorted(set.intersection(*(set(c) for c in curves)))  # a mean must not change its members midway
        totals = [_totals(run) for run in arm.runs]
        paid = {r: _paid(totals, r) if against == "bytes" else float(r) for r in shared}
        kept = thin([r for r in shared if paid[r] is not None], min(MOST, max(BUDGET // len(found), 30)))
        values = [[c[r] for c in curves] for r in kept]
        band = tuple(statistics.stdev(v) for v in values) if len(curves) > 1 else ()
        if kept:
            xs = tuple(x for r in kept if (x := paid[r]) is not None)
            made.append(LearningCurve(arm, xs, tuple(statistics.fmean(v) for v in values), band))
    return made


def _paid(totals: Sequence[dict[int, float]], at: int) -> float | None:
    known = [t[at] for t in totals if t.get(at)]
    return statistics.fmean(known) if known else None


def _totals(run: Run) -> dict[int, float]:
    """Bytes sent from the start up to and including each round."""
    return dict(zip((r.round for r in run.rounds), accumulate(r.traffic or 0.0 for r in run.rounds), strict=True))


def thin(items: Sequence[int], most: int = MOST) -> list[int]:
    """At most `most` of the items, evenly spaced, first and last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(k * (len(items) - 1) / (most - 1))] for k in range(most)]


def line_chart(
    lines: Sequence[LearningCurve], width: float, title: str, x_title: str, against: str = "round",
    y_axis: tuple[str, bool] | None = None,
) -> str:  # fmt: skip
    """Mean lines with bands of ± one sd, named at their ends; the y axis is the headline metric's, or has a title and
    says whether its values are shares."""
    metric = goal(lines[0].arm.runs[0])
    y_title, is_share = y_axis or (axis_title(metric), metric.share)
    canvas, x, y = _frame(lines, width, title, against, is_share)
    x_text: Callable[[float], str] = _round_bytes if against == "bytes" else plain
    about = int((x.end - x.start) / 60)
    across = log_ticks(x.low, x.high) if x.log else ticks(x.low, x.high, about)
    across = [value for value in across if against == "bytes" or value.is_integer()]  # there is no half a round
    axes(canvas, x, y, _apart(across, x, x_text), ticks(y.low, y.high, 8), x_text, percent if is_share else plain)
    canvas.text(x.start - 6, y.end - 14, y_title, "name", "start")
    canvas.text(x.end, y.start + 34, x_title, "name", "end")
    for line in lines:
        if line.band:
            top = [(x(a), y(min(m + s, y.high))) for a, m, s in zip(line.x, line.y, line.band, strict=True)]
            low = [(x(a), y(max(m - s, y.low))) for a, m, s in zip(line.x, line.y, line.band, strict=True)]
            canvas.path([*top, *reversed(low)], f"band {colour(line.arm.index)}", closed=True)
    for line in lines:
        points = [(x(a), y(m)) for a, m in zip(line.x, line.y, strict=True)]
        canvas.path(points, f"line {colour(line.arm.index)}", title=line.arm.label)
        canvas.add("circle", f"dot {colour(line.arm.index)}", cx=points[-1][0], cy=points[-1][1], r=2.5)
    _name_ends(canvas, lines, x, y)
    return canvas.svg()


def _round_bytes(count: float) -> str:
    """Ticks are round numbers: 2 MB, not 2.00 MB."""
    size, unit = human_bytes(count).split()
    return f"{float(size):g} {unit}"


def _frame(
    lines: Sequence[LearningCurve], width: float, title: str, against: str, is_share: bool
) -> tuple[Canvas, AxisScale, AxisScale]:
    height = max(300.0 if width < 500 else 360.0, 15.0 * len(lines) + 110)
    longest = max(len(line.arm.label) for line in lines)
    margin = min(CHARACTER * longest + 40, 0.34 * width)
    values = [
        m + k * s
        for line in lines
        for m, s in zip(line.y, line.band or [0.0] * len(line.y), strict=True)
        for k in (-1, 1)
    ]
    low, high = widen(values, floor=0.0, ceiling=1.0 if is_share else None)
    ends = [line.x[-1] for line in lines]
    log = against == "bytes" and max(ends) > 12 * min(ends)
    first = min(line.x[0] for line in lines) if log or against == "round" else 0.0
    last = max(ends)
    x = AxisScale(first if last > first else 0.0, last or 1.0, 46, width - margin, log)  # one round alone is the last
    return Canvas(width, height, title), x, AxisScale(low, high, height - 44, 34)


def _apart(values: Sequence[float], x: AxisScale, text: Callable[[float], str]) -> list[float]:
    """The ticks whose labels do not run into each other."""
    kept: list[float] = []
    for value in values:
        if not kept or x(value) - x(kept[-1]) > CHARACTER * (len(text(value)) + len(text(kept[-1]))) / 2 + 8:
            kept.append(value)
    return kept


def _name_ends(canvas: Canvas, lines: Sequence[LearningCurve], x: AxisScale, y: AxisScale) -> None:
    """Names in one column right of the plot, each tied to its line's end by a thin leader."""
    wanted = [y(line.y[-1]) for line in lines]
    column = x.end + (18 if len(lines) <= 8 else 30)
    for line, end, place in zip(lines, wanted, spread(wanted, 15, y.end + 4, y.start - 4), strict=True):
        canvas.path(
            [(x(line.x[-1]) + 4, end), (x.end + 6, end), (column - 3, place)], f"leader {colour(line.arm.index)}"
        )
        label = shorten(line.arm.label, canvas.width - column)
        canvas.text(column, place + 4, label, f"end {colour(line.arm.index)}")


@dataclass(frozen=True)
class Spark:
    """One diagnostic of one method: its course, and where it began and ended."""

    arm: Arm
    name: str
    svg: str
    first: str
    last: str


def sparks(found: Sequence[Arm]) -> list[Spark]:
    """Training loss and the method's own scalars, mean over seeds."""
    made = []
    for arm in found:
        names = sorted({k for run in arm.runs for r in run.rounds for k in r.report})
        for name in ["training loss", *names]:
            course = _course(arm, name)
            if course:
                label = f"{name} of {arm.label}"
                made.append(Spark(arm, name, _spark(course, arm, label), plain(course[0][1]), plain(course[-1][1])))
    return made


def _course(arm: Arm, name: str) -> list[tuple[int, float]]:
    heard: dict[int, list[float]] = {}
    for run in arm.runs:
        for r in run.rounds:
            value = r.loss if name == "training loss" else r.report.get(name)
            if value is not None:
                heard.setdefault(r.round, []).append(value)
    return [(r, statistics.fmean(heard[r])) for r in thin(sorted(heard), 80)]


def _spark(course: Sequence[tuple[int, float]], arm: Arm, title: str) -> str:
    canvas = Canvas(140, 26, title)
    low, high = widen([v for _, v in course])
    x, y = AxisScale(course[0][0], course[-1][0], 3, 137), AxisScale(low, high, 23, 3)
    points = [(x(r), y(v)) for r, v in course]
    if any(a != b for a, b in pairwise(points)):
        canvas.path(points, f"spark {colour(arm.index)}", title=title)
    canvas.add("circle", f"dot {colour(arm.index)}", cx=points[-1][0], cy=points[-1][1], r=2)
    return canvas.svg()
