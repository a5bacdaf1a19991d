"""A sheet of panels: a title that says what was run, panels side by side with their own titles, remarks below.

Panels are drawings of `posterity.report`; the sheet places them, and brings the part of the page's style sheet along
that they need, so that the file stands alone. It has white paper: what a reader's screen is set to is not known.

A style sheet without variables: browsers know them, but librsvg, which turns figures into PDF or PNG, draws all
of it black.

Colours of `:root` stand where they are used, a mixture of two is computed, and a rule that uses `--m`, the colour of a
method, becomes one for each class `.m0`, `.m1`, … that sets it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from xml.etree import ElementTree

from posterity.report.svg import Canvas, number

RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
VARIABLE = re.compile(r"var\(--([\w-]+)\)")
MIXTURE = re.compile(r"color-mix\(in srgb, #(\w{6}) (\d+)%, #(\w{6})\)")
COLOUR = "m"  # the variable that classes set


def without_variables(css: str) -> str:
    """The same rules with every colour written out."""
    rules = [(selector.strip(), _declarations(body)) for selector, body in RULE.findall(css)]
    known = {name[2:]: value for selector, body in rules if selector == ":root" for name, value in body}
    own = {s: _resolved(v, known) for s, body in rules for name, v in body if s != ":root" and name == f"--{COLOUR}"}
    told = []
    for selector, body in rules:
        coloured = [(n, v) for n, v in body if f"var(--{COLOUR})" in v]
        fixed = [(n, _resolved(v, known)) for n, v in body if not n.startswith("--") and (n, v) not in coloured]
        told += [_rule(selector, fixed)] if fixed else []
        for css_class, colour in own.items() if coloured else ():
            mine = [(n, _resolved(v, {**known, COLOUR: colour})) for n, v in coloured]
            told.append(_rule(_of_class(selector, css_class), mine))
    return "\n".join(told)


def _declarations(body: str) -> list[tuple[str, str]]:
    pairs = (each.partition(":") for each in body.split(";") if each.strip())
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def _resolved(value: str, known: Mapping[str, str]) -> str:
    return MIXTURE.sub(_mixed, VARIABLE.sub(lambda found: known[found[1]], value))


def _mixed(found: re.Match[str]) -> str:
    """The colour of `color-mix`, channel by channel."""
    share = int(found[2]) / 100
    pairs = zip(bytes.fromhex(found[1]), bytes.fromhex(found[3]), strict=True)
    return "#" + bytes(round(share * a + (1 - share) * b) for a, b in pairs).hex()


def _of_class(selector: str, css_class: str) -> str:
    """`svg .line` where it has the class itself, and where something around it has: `.m0.line`, `.m0 .line`."""
    before, _, last = selector.rpartition(" ")
    return f"{before} {css_class}{last}, {before} {css_class} {last}".strip()


def _rule(selector: str, body: list[tuple[str, str]]) -> str:
    return f"{selector} {{ {'; '.join(f'{name}: {value}' for name, value in body)} }}"


MARGIN, GAP = 24.0, 26.0
ROW, HEAD = 18.0, 40.0  # height of a line of text; of a panel's title and its remark
WIDE, BOLD = 7.0, 8.2  # mean width of a character: plain text at 13 px, a panel's title
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif'
FURTHER = f"""svg {{ font: 12px {FONT}; font-variant-numeric: tabular-nums; }}
.paper {{ fill: var(--paper); }} .title {{ font-size: 17px; font-weight: 650; fill: var(--ink); }}
.about {{ font-size: 13px; fill: var(--soft); }} .panel {{ font-size: 13.5px; font-weight: 600; fill: var(--ink); }}
svg .swatch {{ fill: var(--m); }} svg .mark {{ fill: var(--m); stroke: var(--paper); stroke-width: .5; }}
svg .faint {{ fill: var(--rule); }} svg .label {{ font-weight: 700; fill: var(--ink); stroke: var(--paper);
stroke-width: 3px; paint-order: stroke; }} svg .truth {{ fill: none; stroke: var(--soft); stroke-width: 1.5;
stroke-dasharray: 5 4; }} svg .thick {{ fill: none; stroke: var(--ink); stroke-width: 2.6; }}
svg .cross {{ fill: none; stroke: var(--m); stroke-width: 1.2; opacity: .75; }} svg .shade {{ fill: var(--soft);
opacity: .22; }} svg .frame {{ fill: none; stroke: var(--rule); }} svg .thin {{ stroke-width: 1.3; }}"""


@dataclass(frozen=True)
class Panel:
    """One drawing with its title; `remark` is a second line, such as the number that goes with it."""

    title: str
    svg: str
    remark: str = ""


@cache
def style() -> str:
    """What drawings need of the page's style sheet: the rules about SVG, with the colours on white paper."""
    lines = files("posterity.report").joinpath("page.css").read_text(encoding="utf-8").splitlines()
    end = lines.index("}")
    rules = [line for line in lines[end:] if line.startswith(("svg .", ".m0", ".m4"))]
    return without_variables("\n".join([*lines[: end + 1], *rules, FURTHER]))


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
    told, remarks = (_wrapped(lines, width) for lines in (about, below))
    heading = _wrapped([title], width, 8.6)
    top = MARGIN + 22 * len(heading) + ROW * len(told) + 14
    height = top + sum(heights) + GAP * (len(rows) - 1) + (ROW * len(remarks) + 18 if remarks else 0) + MARGIN
    canvas = Canvas(width, height, title)
    canvas.root.set("xmlns", "http://www.w3.org/2000/svg")
    ElementTree.SubElement(canvas.root, "style").text = style()
    canvas.add("rect", "paper", x=0, y=0, width=width, height=height)
    _write(canvas, heading, MARGIN + 14, "title", 22)
    _write(canvas, told, MARGIN + 22 * len(heading) + 10, "about", ROW)
    for number_of_row, row in enumerate(rows):
        y = top + sum(heights[:number_of_row]) + GAP * number_of_row
        for column, i in enumerate(row):
            x = MARGIN + sum(widths[:column]) + GAP * column
            _place(canvas, titles[i], panels[i].remark, drawn[i], x, y, heads[number_of_row])
    _write(canvas, remarks, height - MARGIN - ROW * (len(remarks) - 1), "about", ROW)
    return canvas.svg()


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
