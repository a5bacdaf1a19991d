"""A sheet of panels: a title that says what was run, panels side by side with their own titles, remarks below.

Panels are drawings of `posterity.report`; the sheet places them on white paper, since what a reader's screen is set to
is not known. Its style sheet has no variables: librsvg, which turns figures into PDF or PNG, draws those black.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from xml.etree import ElementTree

from posterity.report.svg import Canvas, number

MARGIN, GAP = 24.0, 26.0
ROW, HEAD = 18.0, 40.0  # height of a line of text; of a panel's title and its remark
WIDE, BOLD = 7.0, 8.2  # mean width of a character: plain text at 13 px, a panel's title


@dataclass(frozen=True)
class Panel:
    """One drawing with its title; `remark` is a second line, such as the number that goes with it."""

    title: str
    svg: str
    remark: str = ""


def sheet(title: str, about: Sequence[str], panels: Sequence[Panel], columns: int, below: Sequence[str] = ()) -> str:
    """All panels, `columns` in a row, under a title; `about` and `below` are wrapped to the sheet's width."""
    drawn = [ElementTree.fromstring(panel.svg) for panel in panels]
    sizes = [(float(each.get("width", 0)), float(each.get("height", 0))) for each in drawn]
    rows = [range(start, min(start + columns, len(panels))) for start in range(0, len(panels), columns)]
    widths = [
        max(sizes[i][0] for i in range(column, len(panels), columns)) for column in range(min(columns, len(panels)))
    ]
    titles = [_lines(panel.title, widths[i % columns] + GAP - 8, BOLD) for i, panel in enumerate(panels)]
    heads = [HEAD + ROW * max(0, *(len(titles[i]) - 1 for i in row)) for row in rows]
    heights = [head + max(sizes[i][1] for i in row) for head, row in zip(heads, rows, strict=True)]
    width = max(sum(widths) + GAP * (len(widths) - 1) + 2 * MARGIN, 560.0)
    lines, remarks = (_wrapped(each, width) for each in (about, below))
    heading = _wrapped([title], width, 8.6)
    top = MARGIN + 22 * len(heading) + ROW * len(lines) + 14
    height = top + sum(heights) + GAP * (len(rows) - 1) + (ROW * len(remarks) + 18 if remarks else 0) + MARGIN
    canvas = Canvas(width, height, title)
    canvas.root.set("xmlns", "http://www.w3.org/2000/svg")
    ElementTree.SubElement(canvas.root, "style").text = _style()
    canvas.add("rect", "paper", x=0, y=0, width=width, height=height)
    _write(canvas, heading, MARGIN + 14, "title", 22)
    _write(canvas, lines, MARGIN + 22 * len(heading) + 10, "about", ROW)
    for number_of_row, row in enumerate(rows):
        y = top + sum(heights[:number_of_row]) + GAP * number_of_row
        for column, i in enumerate(row):
            x = MARGIN + sum(widths[:column]) + GAP * column
            _place(canvas, titles[i], panels[i].remark, drawn[i], x, y, heads[number_of_row])
    _write(canvas, remarks, height - MARGIN - ROW * (len(remarks) - 1), "about", ROW)
    return canvas.svg()


@cache
def _style() -> str:
    return files("posterity.papers.figures").joinpath("sheet.css").read_text(encoding="utf-8").rstrip()


def _place(
    canvas: Canvas, title: list[str], remark: str, drawn: ElementTree.Element, x: float, y: float, head: float
) -> None:
    for i, line in enumerate(title):
        canvas.text(x, y + 12 + ROW * i, line, "panel")
    canvas.text(x, y + head - 11, remark, "about")
    drawn.set("x", number(x))
    drawn.set("y", number(y + head))
    canvas.root.append(drawn)


def _wrapped(lines: Sequence[str], width: float, character: float = WIDE) -> list[str]:
    return [piece for line in lines for piece in _lines(line, width - 2 * MARGIN, character)]


def _lines(text: str, room: float, character: float) -> list[str]:
    """`text` in lines that are no longer than `room`; none if it is empty."""
    return textwrap.wrap(text, int(room / character))


def _write(canvas: Canvas, lines: Sequence[str], y: float, css: str, step: float) -> None:
    for i, line in enumerate(lines):
        canvas.text(MARGIN, y + step * i, line, css)
