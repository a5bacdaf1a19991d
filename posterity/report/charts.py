"""The page's drawings, by `svg.py`; `page.py` places them.

Reliability diagrams: how often a prediction is right, against how sure it was, with an interval for every bin. Clients:
a row of dots per method. Line charts: the headline metric against rounds and bytes, and sparklines of
a method's own diagnostics. Who holds which data: a disc for every client and class, below them the sizes of parts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TypeVar

import numpy as np

from posterity.evaluate.student import wilson
from posterity.report.sections import curve
from posterity.report.svg import (
    CHARACTER,
    AxisScale,
    Canvas,
    axes,
    colour,
    number,
    percent,
    plain,
    shorten,
    spread,
    ticks,
    widen,
)
from posterity.report.table import Arm, Row, axis_title, goal, human_bytes, select_round
from posterity.runs.read import FederationFacts, Run


def pooled_bins(arm: Arm, rule: str, kind: str = "bins") -> list[tuple[float, float, float]]:
    """Count, sum of confidence and sum of correct of each bin, added over seeds; "flat": of all class probabilities."""
    found = [
        bins
        for run in arm.runs
        if (selected := select_round(run, rule)) is not None and (bins := getattr(selected, kind))
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
        whisker(canvas, x(confidence / n), y(low), y(high), f"whisker {colour(arm.index)}")
        curve.append((x(confidence / n), y(correct / n), told))
    canvas.path([(cx, cy) for cx, cy, _ in curve], f"line {colour(arm.index)}")
    for cx, cy, told in curve:
        canvas.add("circle", f"dot {colour(arm.index)}", told, cx=cx, cy=cy, r=2.5)
    canvas.line(x.start, 238, x.end, 238, "axis")
    canvas.text(x.end, 265, x_title, "tick", "end")
    canvas.text(x.start - 26, y.end - 12, y_title, "tick")
    return canvas.svg()


def diagrams(rows: Sequence[Row], rule: str) -> list[tuple[Arm, str]]:
    """The reliability of each method that has bins."""
    return [(row.arm, reliability(row.arm, bins, row.seeds)) for row in rows if (bins := pooled_bins(row.arm, rule))]


def whisker(canvas: Canvas, at: float, low: float, high: float, css: str, cap: float = 2.5) -> None:
    """A stroke from one end of an interval to the other, with a bar at each, twice as wide as `cap`."""
    ends = [(at - cap, low), (at + cap, low), (at, low), (at, high), (at - cap, high), (at + cap, high)]
    canvas.path(ends, css)


T = TypeVar("T")

WIDTH = 1000.0  # of a chart on the page
MOST_DOTS = 200  # per method: beyond that the picture no longer changes, only the page's size
SMALL = 6.2  # mean width of a character at 11 px


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
        sizes = selected.by_client("n")
        for k, value in enumerate(selected.by_client(goal(run).name)):
            if value is None or math.isinf(value):  # no place on the axis; the table of clients has it
                continue
            shown = f"{100 * value:.1f} %" if goal(run).share else plain(value)
            n = sizes[k] if k < len(sizes) else None
            size = f", {n:.0f} samples" if n is not None else ""
            dots.append(Dot(value, f"{run.federation.client(k)}, seed {run.seed}: {shown}{size}"))
    return sorted(dots, key=lambda d: d.value)


def dots_by_arm(arms: Sequence[Arm], rule: str) -> list[tuple[Arm, list[Dot]]]:
    """Of the methods that have some."""
    return [(arm, dots) for arm in arms if (dots := client_dots(arm, rule))]


def strip_chart(found: Sequence[tuple[Arm, Sequence[Dot]]]) -> str:
    """A row per method: every client a dot, and over them a box of the quartiles with whiskers at 10 and 90 %."""
    metric, pitch = goal(found[0][0].runs[0]), 60
    left = min(CHARACTER * max(len(arm.label) for arm, _ in found) + 26, 220)
    foot = pitch * len(found) + 6
    canvas = Canvas(WIDTH, foot + 40, "Clients by method")
    low, high = widen((d.value for _, dots in found for d in dots), 0.0, 1.0 if metric.share else None)
    x = AxisScale(low, high, left, WIDTH - 16)
    for tick in ticks(low, high, int((x.end - x.start) / 80)):
        canvas.line(x(tick), 4, x(tick), foot, "grid")
        canvas.text(x(tick), foot + 15, percent(tick) if metric.share else plain(tick), "tick", "middle")
    canvas.text(x.end, foot + 33, axis_title(metric, " of a client"), "name", "end")
    for row, (arm, dots) in enumerate(found):
        centre = pitch * row + 26
        canvas.text(left - 12, centre + 4, shorten(arm.label, left - 14), f"end {colour(arm.index)}", "end")
        group = canvas.add("g", f"client {colour(arm.index)}")
        for k, dot in enumerate(thin(dots, MOST_DOTS)):
            height = 24 * ((k * 0.618034) % 1.0 - 0.5)  # golden ratio: neighbours in value are far apart in height
            canvas.add("circle", "", dot.told, group, cx=x(dot.value), cy=centre + height, r=3)
        _box(canvas, x, centre, dots)
    return canvas.svg()


def _box(canvas: Canvas, x: AxisScale, centre: float, dots: Sequence[Dot]) -> None:
    if len(dots) < 4:
        return  # quartiles of three clients say less than the three dots
    p10, q1, median, q3, p90 = (x(float(q)) for q in np.quantile([d.value for d in dots], [0.1, 0.25, 0.5, 0.75, 0.9]))
    canvas.line(p10, centre, q1, centre, "box")
    canvas.line(q3, centre, p90, centre, "box")
    canvas.add("rect", "box", x=q1, y=centre - 9, width=max(q3 - q1, 0.5), height=18)
    canvas.line(median, centre - 9, median, centre + 9, "median")


MOST_POINTS = 160  # of a line: more than that no screen resolves


@dataclass(frozen=True)
class LearningCurve:
    """A method's mean over seeds; `band` is its sd at the same places, empty for a single seed."""

    arm: Arm
    x: tuple[float, ...]
    y: tuple[float, ...]
    band: tuple[float, ...]

    def at(self, kept: Iterable[int]) -> LearningCurve:
        """Some of its points."""
        some = list(kept)
        x, y, band = (tuple(values[i] for i in some) if values else () for values in (self.x, self.y, self.band))
        return LearningCurve(self.arm, x, y, band)

    def thinned(self, most: int = MOST_POINTS) -> LearningCurve:
        """With as many points as a screen resolves."""
        return self.at(thin(range(len(self.x)), most))


def mean_curve(arm: Arm, values: Callable[[Run], Mapping[int, float]]) -> LearningCurve:
    """Mean and sample sd of what each run has by round, where all have it: a mean must not change its members."""
    every = [{r: v for r, v in values(run).items() if math.isfinite(v)} for run in arm.runs]
    shared = sorted(set.intersection(*map(set, every)))
    rows = [[one[r] for one in every] for r in shared]
    band = tuple(statistics.stdev(v) for v in rows) if len(every) > 1 else ()
    return LearningCurve(arm, tuple(map(float, shared)), tuple(statistics.fmean(v) for v in rows), band)


def learning_curves(found: Sequence[Arm], part: str) -> list[LearningCurve]:
    """The headline metric of each method by round."""
    arms = sorted(found, key=lambda arm: arm.index)
    made = [mean_curve(arm, partial(curve, part=part)).thinned() for arm in arms]
    return [line for line in made if line.x]


def by_traffic(lines: Sequence[LearningCurve]) -> list[LearningCurve]:
    """The same against bytes sent up and down since the start; without methods that send nothing."""
    made = []
    for line in lines:
        totals = [_totals(run) for run in line.arm.runs]
        paid = [statistics.fmean(each.get(int(r), 0.0) for each in totals) for r in line.x]
        made.append(replace(line, x=tuple(paid)).at(i for i, x in enumerate(paid) if x))
    return [line for line in made if line.x]


def _totals(run: Run) -> dict[int, float]:
    """Bytes sent from the start up to and including each round."""
    return dict(zip((r.round for r in run.rounds), accumulate(r.traffic or 0.0 for r in run.rounds), strict=True))


def thin(items: Sequence[T], most: int = MOST_POINTS) -> list[T]:
    """At most `most` of the items, evenly spaced, first and last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(k * (len(items) - 1) / (most - 1))] for k in range(most)]


def line_chart(
    lines: Sequence[LearningCurve], width: float, title: str, x_title: str = "round",
    y_axis: tuple[str, bool] | None = None,
) -> str:  # fmt: skip
    """Mean lines with bands of ± one sd, named at their ends; the y axis is the headline metric's, or has a title and
    says whether its values are shares. Across are rounds, or bytes where the title says so."""
    metric = goal(lines[0].arm.runs[0])
    y_title, is_share = y_axis or (axis_title(metric), metric.share)
    rounds = x_title == "round"
    canvas, x, y = _frame(lines, width, title, rounds, is_share)
    x_text: Callable[[float], str] = plain if rounds else _round_bytes
    across = ticks(x.low, x.high, int((x.end - x.start) / 60))
    across = [value for value in across if not rounds or value.is_integer()]  # there is no half a round
    axes(canvas, x, y, across, ticks(y.low, y.high, 8), x_text, percent if is_share else plain)
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
    lines: Sequence[LearningCurve], width: float, title: str, rounds: bool, is_share: bool
) -> tuple[Canvas, AxisScale, AxisScale]:
    height = max(300.0 if width < 500 else 360.0, 15.0 * len(lines) + 110)
    margin = min(CHARACTER * max(len(line.arm.label) for line in lines) + 40, 0.34 * width)
    ends = [m + k * s for line in lines for m, s in zip(line.y, line.band or [0.0] * len(line.y), strict=True)
            for k in (-1, 1)]  # fmt: skip
    low, high = widen(ends, floor=0.0, ceiling=1.0 if is_share else None)
    first, last = min(line.x[0] for line in lines), max(line.x[-1] for line in lines)
    x = AxisScale(first if rounds and last > first else 0.0, last or 1.0, 46, width - margin)
    return Canvas(width, height, title), x, AxisScale(low, high, height - 44, 34)


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
    """Training loss and the method's own scalars, mean over the seeds that have them."""
    made = []
    for arm in found:
        names = sorted({k for run in arm.runs for r in run.rounds for k in r.report})
        for name in ["training loss", *names]:
            if line := _course(arm, name):
                svg = _spark(line, f"{name} of {arm.label}", colour(arm.index))
                made.append(Spark(arm, name, svg, plain(line[0][1]), plain(line[-1][1])))
    return made


def _course(arm: Arm, name: str) -> list[tuple[int, float]]:
    heard: dict[int, list[float]] = {}
    for run in arm.runs:
        for r in run.rounds:
            value = r.loss if name == "training loss" else r.report.get(name)
            if value is not None:
                heard.setdefault(r.round, []).append(value)
    return [(r, statistics.fmean(heard[r])) for r in thin(sorted(heard), 80)]


def _spark(course: Sequence[tuple[int, float]], title: str, css: str) -> str:
    canvas = Canvas(140, 26, title)
    low, high = widen([v for _, v in course])
    x, y = AxisScale(course[0][0], course[-1][0], 3, 137), AxisScale(low, high, 23, 3)
    points = [(x(r), y(v)) for r, v in course]
    if len(points) > 1:
        canvas.path(points, f"spark {css}", title=title)
    canvas.add("circle", f"dot {css}", cx=points[-1][0], cy=points[-1][1], r=2)
    return canvas.svg()


TOLD = 900  # bubbles with a tooltip: with more, the page would be large
CLIENTS = 60
CLASSES = 100
LONGEST = 20  # characters of a client's name below the bars
SLOPE = 60  # degrees at which it stands


@dataclass(frozen=True)
class Frame:
    """Where things are: clients across from `left`, one every `step` pixels; sizes from `top` downwards."""

    left: float
    step: float
    top: float
    shown: int  # clients

    def middle(self, k: int) -> float:
        return self.left + self.step * (k + 0.5)

    @property
    def right(self) -> float:
        return self.left + self.step * self.shown


def partition(federation: FederationFacts, width: float = WIDTH, most: int = CLIENTS, overlap: bool = False) -> str:
    """The first `most` clients across, classes up, area = samples; below, the size of each client's parts.

    With `overlap` discs may cover their neighbours a little, and are larger where clients or classes are many.
    """
    shown = min(federation.clients, most)
    counts = [row[:CLASSES] for row in federation.histogram[:shown]]
    classes = max((len(row) for row in counts), default=0)
    pitch = 18 if classes <= 20 else 12 if classes <= 50 else 7
    names = [federation.class_names[c] if c < len(federation.class_names) else str(c) for c in range(classes)]
    left = min(max((CHARACTER * len(n) for n in names), default=0) + 16, 0.28 * width) if classes else 0
    left = max(left, 52 if federation.numbered else 68)  # the first sloping name begins left of its bar
    frame = Frame(left, min((width - left - 8) / max(shown, 1), 36), pitch * classes + 22, shown)
    below = _names(federation, frame)
    longest = max(map(len, below.values()), default=0)
    depth = 24 if federation.numbered else math.sin(math.radians(SLOPE)) * SMALL * longest + 10
    canvas = Canvas(width, frame.top + 86 + depth, f"Partition of {federation.name}")
    for c, name in enumerate(names):
        if pitch > 10 or c % 10 == 0:  # a hundred lines and names would be noise
            canvas.line(left, pitch * c + 14, frame.right, pitch * c + 14, "grid")
            canvas.text(left - 8, pitch * c + 18, shorten(name, left - 12), "tick", "end")
    radius = 0.55 * math.sqrt(frame.step * pitch) if overlap else min(frame.step, pitch * 1.15) / 2
    _bubbles(canvas, frame, federation, counts, pitch, radius, names)
    _sizes(canvas, frame, federation)
    _name_clients(canvas, frame, federation, below)
    return canvas.svg()


def _bubbles(
    canvas: Canvas, frame: Frame, federation: FederationFacts, counts: Sequence[Sequence[int]], pitch: float,
    radius: float, names: Sequence[str],
) -> None:  # fmt: skip
    """A disc for every client and class; each says what it is where they are few."""
    group = canvas.add("g", "bubble")
    most = max((n for row in counts for n in row), default=1) or 1
    spoken = sum(n > 0 for row in counts for n in row) <= TOLD
    for k, row in enumerate(counts):
        for c, n in enumerate(row):
            if n > 0:
                title = f"{federation.client(k)}, class {names[c]}: {n} samples" if spoken else ""
                r = max(radius * math.sqrt(n / most), 0.6)
                canvas.add("circle", "", title, group, cx=frame.middle(k), cy=pitch * c + 14, r=r)


def _sizes(canvas: Canvas, frame: Frame, federation: FederationFacts) -> None:
    """Stacked bars: training, validation and test samples of each client."""
    parts = [(name, getattr(federation, name)) for name in ("train", "validation", "test")]
    sizes = [[v[k] if k < len(v) else 0 for _, v in parts] for k in range(frame.shown)]
    most = max((sum(s) for s in sizes), default=1) or 1
    y = AxisScale(0, most, frame.top + 68, frame.top + 8)
    for tick in ticks(0, most, 2):
        canvas.line(frame.left, y(tick), frame.right, y(tick), "grid")
        canvas.text(frame.left - 8, y(tick) + 4, plain(tick), "tick", "end")
    for k, size in enumerate(sizes):
        told = f"{federation.client(k)}: " + ", ".join(f"{n} {name}" for (name, _), n in zip(parts, size, strict=True))
        below = 0
        for (name, _), n in zip(parts, size, strict=True):
            if n:
                canvas.add("rect", f"part {name}", told, x=frame.middle(k) - 0.38 * frame.step, y=y(below + n),
                           width=frame.step * 0.76, height=y(below) - y(below + n))  # fmt: skip
            below += n


def _names(federation: FederationFacts, frame: Frame) -> dict[int, str]:
    """What stands below the bars, for as many clients as there is room; sloping names stand closer than numbers."""
    room = 26 if federation.numbered else 13
    every = next(e for e in (1, 2, 5, 10, 20, 50, 100) if e * frame.step > room)
    names = {k: federation.client(k) for k in range(0, frame.shown, every)}
    if federation.numbered:
        return {k: name.removeprefix("client ") for k, name in names.items()}
    return {k: shorten(name, CHARACTER * LONGEST) for k, name in names.items()}


def _name_clients(canvas: Canvas, frame: Frame, federation: FederationFacts, names: dict[int, str]) -> None:
    for k, name in names.items():
        if federation.numbered:
            canvas.text(frame.middle(k), frame.top + 83, name, "tick", "middle")
        else:
            at, level = frame.middle(k) + 3, frame.top + 80
            slope = f"rotate({-SLOPE} {number(at)} {number(level)})"
            canvas.add("text", "tick", x=at, y=level, text_anchor="end", transform=slope).text = name
    if federation.numbered:
        canvas.text(frame.right, frame.top + 100, "client", "name", "end")
