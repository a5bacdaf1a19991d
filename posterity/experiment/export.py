"""The headline table for a paper, a repository or a spreadsheet: Markdown, LaTeX, CSV.

Markdown and LaTeX print what the terminal prints (`Cell.text`: mean ± sd over seeds; bold is the best, and where
that is tested what is not separated from it); CSV has the numbers as they are. Labels may come from anywhere, so each
form escapes what it would act on.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence

from posterity.core.text import plain
from posterity.report import Column, Row, main_comparison, verdict

RULE = {"validated": "round chosen on validation, shown on test", "paper": "best round on all held-out data",
        "last": "last round, shown on test"}  # fmt: skip
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "−": r"$-$", "∞": r"$\infty$", "≥": r"$\geq$",
    "×": r"$\times$", "µ": r"$\mu$", "…": r"\ldots{}", "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip


def export(form: str, rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """The table in one of the forms."""
    return FORMS[form](rows, columns)


def caption(rows: Sequence[Row]) -> str:
    """What the numbers are, in a sentence."""
    rule = rows[0].rule
    over = f"mean ± sample standard deviation over {_seeds(rows)}; " if max(r.seeds for r in rows) > 1 else ""
    return f"{rule}: {RULE[rule]}; {over}{_bold(rows)}."


def _bold(rows: Sequence[Row]) -> str:
    """What bold means: where nothing is tested, a number that is not bold has not been found to be worse."""
    if len(rows) == 1:
        return "one method"
    why = verdict.untested(main_comparison(rows))
    more = f"; nothing is tested, because {why}" if why else ", and what is not separated from it"
    return f"bold: the best of its column{more}"


def _seeds(rows: Sequence[Row]) -> str:
    counts = sorted({row.seeds for row in rows})
    told = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{told} seeds"


def name_of(row: Row) -> str:
    return row.label + (f" ({row.mark})" if row.mark else "")


def markdown(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    heads = ["Method", "scored at", "seeds", *(c.heading for c in columns)]
    lines = [[_md(head) for head in heads], ["---", "---", *["--:"] * (len(columns) + 1)]]
    for row in rows:
        cells = [_cell(row, c, _md, "**{}**") for c in columns]
        lines.append([_md(name_of(row)), _md(row.point), str(row.seeds), *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{_md(caption(rows))}\n"


def latex(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    heads = ["Method", "scored at", "seeds", *(c.heading for c in columns)]
    lines = [f"% {plain(caption(rows))}", rf"\begin{{tabular}}{{ll{'r' * (len(columns) + 1)}}}", r"\hline"]
    lines += [" & ".join(_tex(head) for head in heads) + r" \\", r"\hline"]
    for row in rows:
        cells = [_cell(row, c, _tex, r"\textbf{{{}}}") for c in columns]
        lines.append(" & ".join([_tex(name_of(row)), _tex(row.point), str(row.seeds), *cells]) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"


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


def _cell(row: Row, column: Column, escaped: Callable[[str], str], bold: str) -> str:
    cell = row.cells.get(column.key)
    if cell is None:
        return ""
    return bold.format(escaped(cell.text)) if cell.best else escaped(cell.text)


def _md(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|~#!])", r"\\\1", plain(text))


def _tex(text: str) -> str:
    return "".join(LATEX.get(character, character) for character in plain(text))


FORMS: dict[str, Callable[[Sequence[Row], Sequence[Column]], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": comma_separated,
}
