"""The critical-difference picture: methods on one axis, bars over neighbours that are not separated.

After Demšar (2006), with the metric itself on the axis in place of mean ranks, and pairs judged as everywhere here
(`ranking.py`).
"""

from __future__ import annotations

import math

from posterity.report.ranking import Comparison
from posterity.report.svg import CHARACTER, AxisScale, Canvas, colour, percent, plain, shorten, ticks, widen
from posterity.report.verdict import quoted

SHOWN = 40  # methods: with more, the first forty
BAR, STEP = 9.0, 20.0


def critical_chart(comparison: Comparison, width: float) -> str:
    """Means across; below the axis the bars, and below them the names, the outermost first."""
    column = comparison.column
    rows = [row for row in comparison.rows[:SHOWN] if math.isfinite(row.cells[column.key].mean)]
    bars = [(a, min(b, len(rows) - 1)) for a, b in comparison.together if a < len(rows) - 1]
    is_share = column.unit == "%"
    measured = f"{column.noun}, %" if is_share else column.title
    longest = max(len(measured), *(len(row.label) for row in rows))
    margin = min(CHARACTER * longest + 24, 0.3 * width)
    x = AxisScale(*widen(row.cells[column.key].mean for row in rows), margin, width - margin)
    foot = 42 + BAR * len(bars) + 12
    canvas = Canvas(width, foot + STEP * math.ceil(len(rows) / 2) + 6, "Methods on one axis, bars over equals")
    for tick in ticks(x.low, x.high, max(3, int((x.end - x.start) / 60))):
        canvas.line(x(tick), 26, x(tick), 32, "axis")
        canvas.text(x(tick), 20, percent(tick) if is_share else plain(tick), "tick", "middle")
    canvas.line(x.start, 32, x.end, 32, "axis")
    canvas.text(x.start - 8, 36, shorten(measured, margin - 8), "tick", "end")
    for k, (first, last) in enumerate(bars):
        ends = sorted(x(rows[m].cells[column.key].mean) for m in (first, last))
        level = 44 + BAR * k
        canvas.add("line", "joined", f"not separated: {rows[first].label} to {rows[last].label}",
                   x1=ends[0] - 5, x2=ends[1] + 5, y1=level, y2=level)  # fmt: skip
    across = sorted(rows, key=lambda row: row.cells[column.key].mean)
    half = (len(across) + 1) // 2
    for side, names in (("end", across[:half]), ("start", across[half:][::-1])):
        for k, row in enumerate(names):
            at, level = x(row.cells[column.key].mean), foot + STEP * k + 8
            edge = x.start - 8 if side == "end" else x.end + 8
            canvas.path([(at, 32), (at, level), (edge, level)], f"elbow {colour(row.arm.index)}")
            told = f"{row.label}: {quoted(row.cells[column.key], column)}"
            canvas.add("circle", f"dot {colour(row.arm.index)}", told, cx=at, cy=32, r=4)
            place = edge - 5 if side == "end" else edge + 5
            label = shorten(row.label, margin - 14)
            canvas.text(place, level + 4, label, f"end {colour(row.arm.index)}", side)
    return canvas.svg()
