"""How well each client is served: a row of dots per method, the worst and the best by name.

`svg.py` draws, `page.py` places; who holds which data is in `partition_chart.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posterity.report.columns import axis_title
from posterity.report.selected_round import goal, select_round
from posterity.report.svg import CHARACTER, AxisScale, Canvas, colour, number, percent, plain, shorten, ticks, widen
from posterity.report.tables import Arm

DOTS = 1600  # in the chart: beyond that the picture no longer changes, only the page's size
MOST = 200  # per method
SMALL = 6.2  # mean width of a character at 11 px


@dataclass(frozen=True)
class Dot:
    """One client in one run."""

    value: float
    told: str
    name: str = ""


def client_dots(arm: Arm, rule: str) -> list[Dot]:
    """The headline metric of every client of every run, ascending."""
    dots = []
    for run in arm.runs:
        selected = select_round(run, rule)
        if selected is None:
            continue
        sizes = selected.score.by_client("n")
        for k, value in enumerate(selected.score.by_client(goal(run).name)):
            if value is None or math.isinf(value):  # no place on the axis; the table of clients has it
                continue
            shown = f"{100 * value:.1f} %" if goal(run).share else plain(value)
            n = sizes[k] if k < len(sizes) else None
            size = f", {n:.0f} samples" if n is not None else ""
            name = run.federation.client(k)
            label = f"{name}, seed {run.seed}" if len(arm.runs) > 1 else name
            dots.append(Dot(value, f"{name}, seed {run.seed}: {shown}{size}", label))
    return sorted(dots, key=lambda d: d.value)


def dots_shown(methods: int) -> int:
    """How many dots a method may draw."""
    return min(MOST, max(DOTS // max(methods, 1), 40))


def strip_chart(dots_by_arm: Sequence[tuple[Arm, Sequence[Dot]]], width: float, title: str) -> str:
    """A row per method: every client a dot, and over them a box of the quartiles with whiskers at 10 and 90 %."""
    metric = goal(dots_by_arm[0][0].runs[0])
    is_share = metric.share
    narrow = width < 500
    pitch = 76 if narrow else 60  # a narrow page has no room for methods beside the rows, so they go above
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
        _name_extremes(canvas, x, centre + 29, dots)
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


def _name_extremes(canvas: Canvas, x: AxisScale, level: float, dots: Sequence[Dot]) -> None:
    """The names of the clients with the lowest and the highest value, below their dots and clear of each other."""
    if not dots or not dots[0].name:
        return
    ends = [dots[0], dots[-1]] if len(dots) > 1 else [dots[0]]
    names = [_name(dot, dots, (x.end - x.start) / 2 - 12) for dot in ends]
    widths = [SMALL * len(name) for name in names]
    wanted = [min(max(x(dot.value), x.start + w / 2), x.end - w / 2) for dot, w in zip(ends, widths, strict=True)]
    if len(ends) > 1:
        apart = (widths[0] + widths[1]) / 2 + 14
        short = max(apart - (wanted[1] - wanted[0]), 0.0)
        left = max(wanted[0] - short / 2, x.start + widths[0] / 2)
        right = min(max(wanted[1], left + apart), x.end - widths[1] / 2)
        wanted = [min(left, right - apart), right]
    for dot, name, at in zip(ends, names, wanted, strict=True):
        canvas.path([(x(dot.value), level - 15), (at, level - 9)], "lead")
        canvas.text(at, level, name, "extreme", "middle")


def _name(dot: Dot, dots: Sequence[Dot], room: float) -> str:
    """One client by name, and how many others have the same value."""
    others = sum(other.value == dot.value for other in dots) - 1
    more = f" and {others} more" if others else ""
    return shorten(dot.name, room - CHARACTER * len(more)) + more


def _box(canvas: Canvas, x: AxisScale, centre: float, dots: Sequence[Dot]) -> None:
    if len(dots) < 4:
        return  # quartiles of three clients say less than the three dots
    p10, q1, median, q3, p90 = (x(float(q)) for q in np.quantile([d.value for d in dots], [0.1, 0.25, 0.5, 0.75, 0.9]))
    canvas.line(p10, centre, q1, centre, "box")
    canvas.line(q3, centre, p90, centre, "box")
    canvas.add("rect", "box", x=q1, y=centre - 9, width=max(q3 - q1, 0.5), height=18)
    canvas.line(median, centre - 9, median, centre + 9, "median")
