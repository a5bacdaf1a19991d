"""Results as people look at them in Python: a table in a notebook, columns for a data frame, names nearly right.

`result.py` and `results.py` call it; the numbers are those of the report (`report/tables.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posterity.core.hyperparameters import nearest
from posterity.core.text import plain
from posterity.evaluate.infinite import noted
from posterity.experiment import run_folder
from posterity.experiment.config import to_toml
from posterity.experiment.export import name_of
from posterity.experiment.setup import describe
from posterity.report import Column, Row, Run, columns, headline, load_runs
from posterity.report.logs import RunLog
from posterity.report.read_runs import read_run

if TYPE_CHECKING:
    from posterity.experiment.result import Result

TABLE = "border-collapse:collapse;font-variant-numeric:tabular-nums"
CELL = "padding:0.25em 0.8em 0.25em 0;text-align:{}"


def as_run(result: Result) -> Run:
    """A result as the report reads it, from its folder or as its folder would be."""
    if result.folder is not None and (result.folder / run_folder.RUN).exists():
        return load_runs(result.folder)[0]
    facts = describe(result.config, result.setup, "posterity.run(...)")
    seconds = sum(line.get("seconds") or 0.0 for line in result.lines if line["kind"] == "round")
    lines = [run_folder.clean(noted(line)) for line in result.lines]
    log = RunLog(Path(result.config.method), {**facts, "status": "finished", "seconds": seconds},
                 to_toml(result.config), lines)  # fmt: skip
    return read_run(log)


def describe_result(result: Result) -> str:
    """A line for a prompt."""
    run = as_run(result)
    name, rounds = plain(run.label), f"{result.round} rounds"
    rows = _rows(run) if run.scores else []
    shown = [c for c in columns(rows) if not c.wide_only] if rows else []
    cells = [f"{c.title} {rows[0].cells[c.key].text}{' %' if c.unit == '%' else ''}" for c in shown]
    at = f" ({rows[0].rule}, {rows[0].point})" if rows else ""
    place = f", {result.folder}" if result.folder is not None else ""
    return f"<Result of {name} on {plain(run.federation.name)}, {rounds}{place}: {', '.join(cells) or 'no scores'}{at}>"


def show_result(result: Result) -> str:
    """The table of one result for a notebook."""
    run = as_run(result)
    if not run.scores:
        return f"<p>{escape(describe_result(result))}</p>"
    rows = _rows(run)
    chosen = ", ".join(str(round) for round in rows[0].rounds)
    said = f"validated: round {chosen} of {result.round} was chosen on validation, and is shown on test."
    if rows[0].rule == "last":
        said = f"last: nothing was validated, and round {chosen} of {result.round} is shown on test."
    return html_table(rows, columns(rows), said)


def _rows(run: Run) -> list[Row]:
    """The row of a run as it was validated; where nothing was, of its last round."""
    rows = headline([run])
    return rows if rows[0].picked else headline([run], "last")


def html_table(rows: Sequence[Row], among: Sequence[Column], said: str) -> str:
    """The headline table as HTML without a style sheet; the best of a column is bold."""
    heads = "".join(_cell("th", escape(plain(h)), at > 1) for at, h in enumerate(
        ("Method", "scored at", *(c.heading for c in among))))  # fmt: skip
    lines = []
    for row in rows:
        cells = [row.cells.get(c.key) for c in among]
        texts = ["" if c is None else f"<b>{escape(c.text)}</b>" if c.best else escape(c.text) for c in cells]
        lines.append("".join([_cell("td", escape(plain(name_of(row))), False), _cell("td", escape(row.point), False),
                              *(_cell("td", text, True) for text in texts)]))  # fmt: skip
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    table = f'<table style="{TABLE}"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>'
    return f"{table}<p>{escape(plain(said))}</p>"


def _cell(tag: str, inner: str, number: bool) -> str:
    return f'<{tag} style="{CELL.format("right" if number else "left")}">{inner}</{tag}>'


def to_columns(lines: Iterable[Mapping[str, Any]], rule: str = "pooled") -> dict[str, list[Any]]:
    """Every score of a run, column to list: round, part, point, group, epochs, each metric; None where undefined."""
    scored = [line for line in lines if line["kind"] == "score"]
    names = list(dict.fromkeys(name for line in scored for name in line["metrics"]))
    made: dict[str, list[Any]] = {key: [line[key] for line in scored] for key in ("round", "part", "point", "group",
                                                                                  "epochs")}  # fmt: skip
    for name in names:
        made[name] = [line["metrics"].get(name, {}).get(rule) for line in scored]
    return made


def check_names(lines: Sequence[Mapping[str, Any]], metric: str, rule: str) -> None:
    """Refuse a metric or an aggregation rule that no line has, naming the nearest."""
    metrics = {name: rules for line in lines for name, rules in line["metrics"].items()}
    if metric not in metrics:
        raise ValueError(f"there is no metric {metric!r} in this run: {nearest(metric, metrics)}")
    rules = [each for each in metrics[metric] if each != "clients"]  # that is how many were scored
    if rule not in rules:
        raise ValueError(f"there is no aggregation rule {rule!r} of {metric}: {nearest(rule, rules)}")


def scored_at(lines: Sequence[Mapping[str, Any]], point: str, group: str) -> str:
    """What was scored instead, the nearest first."""
    scored = [line for line in lines if line["kind"] == "score"]
    groups = {line["group"] for line in scored}
    if group not in groups:
        return nearest(group, groups)
    return nearest(point, {line["point"] for line in scored if line["group"] == group})
