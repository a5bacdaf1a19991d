"""A curve that stands alone: the report's line chart with its colours inside, for a notebook or a file."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from posterity.core.hyperparameters import nearest
from posterity.evaluate import METRICS
from posterity.report import Run
from posterity.report.columns import Column, metric_column, user_metrics
from posterity.report.line_charts import LearningCurve, line_chart, thin
from posterity.report.logs import write_atomic
from posterity.report.selected_round import goal, main_epochs, series
from posterity.report.tables import Arm, arms

WIDTH = 720.0
COLOURS = ("#0072b2", "#d55e00", "#00845f", "#b8548c", "#9a6a00", "#3d4248", "#3b96cf", "#7a52c7")
STYLES = {
    "tick": "fill:#586069;font-size:11px", "name": "fill:#586069", "end": "fill:{m};font-weight:600",
    "grid": "stroke:#e9ecef", "axis": "stroke:#586069", "line": "fill:none;stroke:{m};stroke-width:2",
    "band": "fill:{m};opacity:.15", "leader": "fill:none;stroke:{m};opacity:.45", "dot": "fill:{m}",
    "dash1": "stroke-dasharray:6 3", "dash2": "stroke-dasharray:2 2.5",
}  # fmt: skip  # what the report's style sheet says of these classes
PARTS = ("validation", "test", "held")


@dataclass(frozen=True)
class Plot:
    """A drawing: a notebook shows it, `save("curve.svg")` writes it."""

    svg: str

    def save(self, path: str | Path) -> Path:
        """Write the SVG; browsers, LaTeX (by Inkscape or rsvg-convert) and word processors read it."""
        out = Path(path)
        if out.suffix.lower() != ".svg":
            raise ValueError(f"a plot is an SVG: give a name such as {out.with_suffix('.svg')}, not {out}")
        write_atomic(out, self.svg.encode())
        return out

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<Plot of {len(self.svg):,} characters; save('curve.svg') writes it>"


def plot(runs: Sequence[Run], metric: str | None = None, part: str = "test") -> Plot:
    """A metric by round: a line a method, a band of ± one sd over seeds."""
    if part not in PARTS:
        raise ValueError(f"there is no part {part!r} of the held-out data: {nearest(part, PARTS)}")
    column = _column(runs, metric or goal(runs[0]).name)
    lines = [line for arm in arms(runs) if (line := _curve(arm, column, part)) is not None]
    if not lines:
        raise ValueError(f"{column.key} has no value at any scored round on {part}")
    title = f"{column.noun}{', %' if column.unit == '%' else ''}, {part}"
    return Plot(_standing_alone(line_chart(lines, WIDTH, title, "round", y_axis=(title, column.unit == "%"))))


def _column(runs: Sequence[Run], metric: str) -> Column:
    known = {m.name: m.facts() for m in METRICS} | dict(user_metrics(runs))
    measured = {name for run in runs for score in run.scores[-1:] for name in score.metrics}
    if metric not in measured:
        raise ValueError(f"there is no metric {metric!r} in this run: {nearest(metric, measured)}")
    return metric_column(known.get(metric, {"name": metric}))


def _curve(arm: Arm, column: Column, part: str) -> LearningCurve | None:
    """The mean over seeds at the rounds that all of them have, clients weighed as in the column of a table."""
    _, metric, weight = column.source
    courses = []
    for run in arm.runs:
        scores = series(run, part, run.scored, main_epochs(run, run.scored))
        found = {r: s.value(metric, weight) for r, s in scores.items()}
        courses.append({r: v for r, v in found.items() if v is not None and math.isfinite(v)})
    shared = thin(sorted(set.intersection(*(set(course) for course in courses))))
    values = [[course[r] for course in courses] for r in shared]
    if not shared:
        return None
    band = tuple(statistics.stdev(v) for v in values) if len(courses) > 1 else ()
    return LearningCurve(arm, tuple(map(float, shared)), tuple(statistics.fmean(v) for v in values), band)


def _standing_alone(svg: str) -> str:
    """Classes become attributes: a page that shows it has another style sheet, or none."""
    root = ElementTree.fromstring(svg)
    root.set("xmlns", "http://www.w3.org/2000/svg")
    root.set("style", "font:12px system-ui,'DejaVu Sans',sans-serif;background:#ffffff")
    for each in root.iter():
        words = each.attrib.pop("class", "").split()
        colour = next((COLOURS[int(w[1:])] for w in words if w[:1] == "m" and w[1:].isdigit()), "#3d4248")
        style = ";".join(STYLES[w].replace("{m}", colour) for w in words if w in STYLES)
        if style:
            each.set("style", style)
    return ElementTree.tostring(root, encoding="unicode")
