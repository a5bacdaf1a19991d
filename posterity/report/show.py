"""The headline table where no page is: for a paper, a spreadsheet, a notebook, and a curve that stands alone.

Markdown and LaTeX print what the terminal prints (`Cell.text`: mean ± sd over seeds; bold is the best, and where
that is tested what is not separated from it); CSV has the numbers as they are. Labels may come from anywhere, so each
form escapes what it would act on. `experiment/result.py` and `results.py` show tables and curves in notebooks.
"""

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from xml.etree import ElementTree

from posterity.evaluate import METRICS
from posterity.report import Row, Run, columns, headline, main_comparison
from posterity.report import findings as verdict
from posterity.report.charts import line_chart, mean_curve
from posterity.report.table import Column, arms, goal, main_epochs, metric_column, series, user_metrics
from posterity.runs.files import write_atomic
from posterity.settings.hyperparameters import nearest
from posterity.settings.text import plain

RULE = {"validated": "round chosen on validation, shown on test", "paper": "best round on all held-out data",
        "last": "last round, shown on test"}  # fmt: skip
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "−": r"$-$", "∞": r"$\infty$", "≥": r"$\geq$",
    "×": r"$\times$", "µ": r"$\mu$", "…": r"\ldots{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip


def caption(rows: Sequence[Row]) -> str:
    """What the numbers are, in a sentence."""
    rule = rows[0].rule
    over = (
        f"mean ± sample standard deviation over {verdict.span([r.seeds for r in rows])} seeds; "
        if max(r.seeds for r in rows) > 1
        else ""
    )
    return f"{rule}: {RULE[rule]}; {over}{_bold(rows)}."


def _bold(rows: Sequence[Row]) -> str:
    """What bold means: where nothing is tested, a number that is not bold has not been found to be worse."""
    if len(rows) == 1:
        return "one method"
    why = verdict.untested(main_comparison(rows))
    more = f"; nothing is tested, because {why}" if why else ", and what is not separated from it"
    return f"bold: the best of its column{more}"


def name_of(row: Row) -> str:
    return row.label + (f" ({row.mark})" if row.mark else "")


def markdown(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    heads, *lines = _lines(rows, columns, _md, "**{}**")
    rule = ["---", "---", *["--:"] * (len(heads) - 2)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heads, rule, *lines)) + f"\n\n{_md(caption(rows))}\n"


def latex(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    heads, *lines = (" & ".join(line) + r" \\" for line in _lines(rows, columns, _tex, r"\textbf{{{}}}"))
    begin = rf"\begin{{tabular}}{{ll{'r' * (len(columns) + 1)}}}"
    body = [begin, r"\hline", heads, r"\hline", *lines, r"\hline", r"\end{tabular}"]
    return "\n".join([f"% {plain(caption(rows))}", *body]) + "\n"


def html_table(rows: Sequence[Row], columns: Sequence[Column], said: str) -> str:
    """For a notebook, which has a style of its own for tables."""
    heads, *lines = _lines(rows, columns, _html, "<b>{}</b>")
    head = "".join(f"<th>{cell}</th>" for cell in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{_html(said)}</p>"


def _lines(rows: Sequence[Row], columns: Sequence[Column], escaped: Callable[[str], str], bold: str) -> list[list[str]]:
    """Heads and cells of a table, escaped; the best of a column is bold."""
    made = [[escaped(head) for head in ("Method", "scored at", "seeds", *(c.heading for c in columns))]]
    for row in rows:
        cells = [row.cells.get(c.key) for c in columns]
        texts = ["" if c is None else (bold if c.best else "{}").format(escaped(c.text)) for c in cells]
        made.append([escaped(name_of(row)), escaped(row.point), str(row.seeds), *texts])
    return made


def comma_separated(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """Shares as shares (0.955), bytes as bytes; a spreadsheet must not take a label for a formula."""
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    writer.writerow(["method", "point", "rule", "seeds", *(n for c in columns for n in (c.key, f"{c.key}_sd"))])
    for row in rows:
        cells = [row.cells.get(c.key) for c in columns]
        numbers = [v for c in cells for v in ((None, None) if c is None else (c.mean, c.sd))]
        writer.writerow([_sheet(name_of(row)), row.point, row.rule, row.seeds, *(_raw(v) for v in numbers)])
    return made.getvalue()


def _raw(value: float | None) -> str:
    return "" if value is None else repr(float(value))


def _sheet(text: str) -> str:
    text = plain(text)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


def _md(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|~#!])", r"\\\1", plain(text))


def _html(text: str) -> str:
    return escape(plain(text))


def _tex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in plain(text))


FORMS: dict[str, Callable[[Sequence[Row], Sequence[Column]], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": comma_separated,
}


def describe_result(run: Run, round: int, folder: Path | None) -> str:
    """A line for a prompt."""
    name, rounds = plain(run.label), f"{round} rounds"
    rows = _rows(run) if run.scores else []
    shown = [c for c in columns(rows) if not c.wide_only] if rows else []
    cells = [f"{c.title} {rows[0].cells[c.key].text}{' %' if c.unit == '%' else ''}" for c in shown]
    at = f" ({rows[0].rule}, {rows[0].point})" if rows else ""
    place = f", {folder}" if folder is not None else ""
    return f"<Result of {name} on {plain(run.federation.name)}, {rounds}{place}: {', '.join(cells) or 'no scores'}{at}>"


def show_result(run: Run, round: int, folder: Path | None) -> str:
    """The table of one result for a notebook."""
    if not run.scores:
        return f"<p>{escape(describe_result(run, round, folder))}</p>"
    rows = _rows(run)
    chosen = ", ".join(str(each) for each in rows[0].rounds)
    said = f"validated: round {chosen} of {round} was chosen on validation, and is shown on test."
    if rows[0].rule == "last":
        said = f"last: nothing was validated, and round {chosen} of {round} is shown on test."
    return html_table(rows, columns(rows), said)


def _rows(run: Run) -> list[Row]:
    """The row of a run as it was validated; where nothing was, of its last round."""
    rows = headline([run])
    return rows if rows[0].picked else headline([run], "last")


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
    lines = [line.thinned() for arm in arms(runs) if (line := mean_curve(arm, partial(_values, column, part))).x]
    if not lines:
        raise ValueError(f"{column.key} has no value at any scored round on {part}")
    title = f"{column.noun}{', %' if column.unit == '%' else ''}, {part}"
    return Plot(_standing_alone(line_chart(lines, WIDTH, title, y_axis=(title, column.unit == "%"))))


def _values(column: Column, part: str, run: Run) -> dict[int, float]:
    """By round, clients weighed as in the column of a table."""
    scores = series(run, part, run.scored, main_epochs(run, run.scored))
    _, metric, weight = column.source
    return {r: v for r, s in scores.items() if (v := s.value(metric, weight)) is not None}


def _column(runs: Sequence[Run], metric: str) -> Column:
    known = {m.name: m.facts() for m in METRICS} | dict(user_metrics(runs))
    measured = {name for run in runs for score in run.scores[-1:] for name in score.metrics}
    if metric not in measured:
        raise ValueError(f"there is no metric {metric!r} in this run: {nearest(metric, measured)}")
    return metric_column(known.get(metric, {"name": metric}))


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
