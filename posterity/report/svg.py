"""Drawing by hand: a canvas that writes escaped SVG, scales with round ticks, and labels that do not overlap.

Colours and fonts are classes of the style sheet, so that one drawing serves light, dark and print.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

CHARACTER = (
    7.6  # mean width of a bold character at 12 px: labels cannot be measured without a browser, so guess generously
)
COLOURS = 8  # in the style sheet; further methods repeat them with another dash


class Canvas:
    """An SVG drawing of fixed size that the page scales down where it must."""

    def __init__(self, width: float, height: float, title: str) -> None:
        size = {"viewBox": f"0 0 {number(width)} {number(height)}", "width": number(width), "height": number(height)}
        self.width, self.height = width, height
        self.root = ElementTree.Element("svg", size | {"role": "img", "aria-label": title})

    def add(
        self,
        tag: str,
        css: str = "",
        title: str = "",
        inside: ElementTree.Element | None = None,
        **attributes: float | str,
    ) -> ElementTree.Element:
        """One element; a `title` becomes the browser's tooltip."""
        made = ElementTree.SubElement(self.root if inside is None else inside, tag, {"class": css} if css else {})
        for name, value in attributes.items():
            made.set(name.replace("_", "-"), value if isinstance(value, str) else number(value))
        if title:
            ElementTree.SubElement(made, "title").text = title
        return made

    def line(self, x1: float, y1: float, x2: float, y2: float, css: str) -> None:
        self.add("line", css, x1=x1, y1=y1, x2=x2, y2=y2)

    def text(self, x: float, y: float, content: str, css: str = "", anchor: str = "start") -> None:
        self.add("text", css, x=x, y=y, text_anchor=anchor).text = content

    def path(self, points: Sequence[tuple[float, float]], css: str, closed: bool = False, title: str = "") -> None:
        steps = "L".join(f"{number(x)} {number(y)}" for x, y in points)
        self.add("path", css, title, d=f"M{steps}{'Z' if closed else ''}")

    def svg(self) -> str:
        return ElementTree.tostring(self.root, encoding="unicode")


def number(value: float) -> str:
    """A tenth of a pixel is finer than any screen shows, and keeps the page small."""
    return f"{value:.1f}".removesuffix(".0")


@dataclass(frozen=True)
class AxisScale:
    """Data to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (self.end - self.start) * (value - self.low) / ((self.high - self.low) or 1.0)


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers (1, 2, 5 × 10^k) inside [low, high], roughly `about` of them."""
    if not high > low:
        return [low]
    raw = (high - low) / max(about, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def widen(values: Iterable[float], floor: float | None = None, ceiling: float | None = None) -> tuple[float, float]:
    """The range of the data with a little air, within what the quantity can be."""
    known = [v for v in values if math.isfinite(v)]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    air = 0.05 * (high - low) or abs(high) * 0.1 or 0.1
    low = low - air if floor is None else max(low - air, floor)
    high = high + air if ceiling is None else min(high + air, ceiling)
    return low, high


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near the wanted ones, at least `gap` apart, inside [low, high] if they fit at all.

    Neighbours that would collide form a block, and a block sits where its members' mean displacement is zero.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[tuple[float, int]] = []  # (first position, members)
    for i in order:
        blocks.append((wanted[i], 1))
        while len(blocks) > 1 and blocks[-2][0] + blocks[-2][1] * gap > blocks[-1][0]:
            (a, m), (b, n) = blocks[-2:]
            centre = (m * a + n * (b - m * gap)) / (m + n)
            blocks[-2:] = [(centre, m + n)]
    flat = [first + k * gap for first, count in blocks for k in range(count)]
    for k, position in enumerate(flat):  # downwards from the top edge, then back up from the bottom one
        flat[k] = max(position, low + k * gap)
    for k in range(len(flat) - 1, -1, -1):
        flat[k] = min(flat[k], high - (len(flat) - 1 - k) * gap)
    placed = dict(zip(order, flat, strict=True))
    return [placed[i] for i in range(len(wanted))]


def shorten(text: str, room: float) -> str:
    """`text` cut so that it fits `room` pixels."""
    most = max(int(room / CHARACTER), 3)
    return text if len(text) <= most else text[: most - 1].rstrip(" (,") + "…"


def colour(index: int) -> str:
    """The classes of the method with this number."""
    return f"m{index % COLOURS} dash{index // COLOURS % 3}"


def percent(value: float) -> str:
    return f"{100 * value:.4g}"


def plain(value: float) -> str:
    return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.1e}"


def axes(
    canvas: Canvas,
    x: AxisScale,
    y: AxisScale,
    across: Sequence[float],
    up: Sequence[float],
    x_text: Callable[[float], str] = plain,
    y_text: Callable[[float], str] = plain,
) -> None:
    """Horizontal grid lines, a base line, and tick labels; no box, because the data is the picture."""
    for value in up:
        canvas.line(x.start, y(value), x.end, y(value), "grid")
        canvas.text(x.start - 6, y(value) + 4, y_text(value), "tick", "end")
    canvas.line(x.start, y.start, x.end, y.start, "axis")
    for value in across:
        canvas.line(x(value), y.start, x(value), y.start + 4, "axis")
        canvas.text(x(value), y.start + 17, x_text(value), "tick", "middle")
