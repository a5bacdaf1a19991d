"""Pen strokes as pictures: the trajectories of Chars74K's hand-drawn part, and how they are drawn.

A file `imgCLASS_WRITER.m` says `rows = {[…];[…];};` and `cols = {[…];[…];};`, a list of coordinates for each stroke. It
is read as text, and nothing of it is run. The longest side becomes 20 of 28 pixels, in the middle; the pen is 2.4
pixels wide; white on black, drawn eight times as large and averaged.
"""

import re

import numpy as np

from posterity.data.archives import Array, demand, reading
from posterity.data.files import import_pillow

SIDE, INSIDE, OVER, PEN = 28, 20, 8, 2.4
LISTS = re.compile(r"\[([^\[\]]*)\]")
FIELDS = {name: re.compile(name + r"\s*=\s*\{([^{}]*)\}") for name in ("rows", "cols")}


def read_strokes(where: str, data: bytes) -> list[Array]:
    """The strokes of a character, each (points, 2): across, down. Fractions carry nothing and are cut off."""
    text = data.decode("latin-1")
    found = {name: pattern.search(text) for name, pattern in FIELDS.items()}
    with reading(where, "rows = {[…];}; and cols = {[…];}; of equal lengths; fetch the archive again"):
        rows, cols = ([_numbers(one) for one in LISTS.findall(match[1])] if match else [] for match in found.values())
        demand(len(rows) > 0, "no pen strokes")
        return [np.stack(pair, 1) for pair in zip(cols, rows, strict=True)]


def _numbers(text: str) -> Array:
    return np.array([int(float(each)) for each in re.split(r"[\s,;]+", text.strip())], dtype=np.float64)


def draw_strokes(strokes: list[Array]) -> Array:
    """A picture (28, 28) uint8 of a character."""
    pillow = import_pillow()
    from PIL import ImageDraw

    points = np.concatenate(strokes)
    low, high = points.min(0), points.max(0)
    scale, middle = INSIDE / max(1.0, float((high - low).max())), (low + high) / 2
    sheet = pillow.new("L", (SIDE * OVER, SIDE * OVER))
    pen, half = ImageDraw.Draw(sheet), PEN * OVER / 2
    for stroke in strokes:
        path = [tuple(point) for point in (((stroke - middle) * scale + SIDE / 2) * OVER).tolist()]
        pen.line(path, fill=255, width=round(PEN * OVER), joint="curve")
        for x, y in (path[0], path[-1]):  # round ends
            pen.ellipse((x - half, y - half, x + half, y + half), fill=255)
    return np.asarray(sheet.resize((SIDE, SIDE), pillow.Resampling.BOX))
