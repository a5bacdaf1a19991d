"""Who holds which data: a disc for every client and class, and below them the sizes of the clients' parts.

`svg.py` draws, `page.py` places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from posterity.report.client_charts import SMALL
from posterity.report.read_runs import FederationFacts
from posterity.report.svg import CHARACTER, AxisScale, Canvas, number, plain, shorten, ticks

TOLD = 900  # bubbles with a tooltip
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


def partition(federation: FederationFacts, width: float, most: int = CLIENTS, overlap: bool = False) -> str:
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
    canvas = Canvas(width, frame.top + 86 + _depth(federation, below), f"Partition of {federation.name}")
    for c, name in enumerate(names):
        if pitch > 10 or c % 10 == 0:  # a hundred lines and names would be noise
            canvas.line(left, pitch * c + 14, frame.right, pitch * c + 14, "grid")
            canvas.text(left - 8, pitch * c + 18, shorten(name, left - 12), "tick", "end")
    told = names if width > 500 else []
    radius = 0.55 * math.sqrt(frame.step * pitch) if overlap else min(frame.step, pitch * 1.15) / 2
    _bubbles(canvas, frame, federation, counts, pitch, radius, told)
    _sizes(canvas, frame, federation)
    _name_clients(canvas, frame, federation, below)
    return canvas.svg()


def _bubbles(
    canvas: Canvas, frame: Frame, federation: FederationFacts, counts: Sequence[Sequence[int]], pitch: float,
    radius: float, told: Sequence[str],
) -> None:  # fmt: skip
    """A disc for every client and class; each says what it is where class names are given and the page stays small."""
    group = canvas.add("g", "bubble")
    most = max((n for row in counts for n in row), default=1) or 1
    spoken = bool(told) and sum(n > 0 for row in counts for n in row) <= TOLD
    for k, row in enumerate(counts):
        for c, n in enumerate(row):
            if n > 0:
                title = f"{federation.client(k)}, class {told[c]}: {n} samples" if spoken else ""
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


def _depth(federation: FederationFacts, names: dict[int, str]) -> float:
    """How far the names reach down."""
    if federation.numbered:
        return 24
    return math.sin(math.radians(SLOPE)) * SMALL * max((len(name) for name in names.values()), default=0) + 10


def _name_clients(canvas: Canvas, frame: Frame, federation: FederationFacts, names: dict[int, str]) -> None:
    for k, name in names.items():
        at, level = frame.middle(k) + 3, frame.top + 80
        if federation.numbered:
            canvas.text(frame.middle(k), frame.top + 83, name, "tick", "middle")
        else:
            slope = f"rotate({-SLOPE} {number(at)} {number(level)})"
            canvas.add("text", "tick", x=at, y=level, text_anchor="end", transform=slope).text = name
    if federation.numbered:
        canvas.text(frame.right, frame.top + 100, "client", "name", "end")
