"""What the terminal shows: progress while it runs, the report's own table at the end (`report/tables.py`).

`app.py` calls it; `listing.py` prints what is no result.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from posterity.cli.diverged import notes_of
from posterity.evaluate import METRICS
from posterity.experiment.run import Watch, silent
from posterity.report import Column, Comparison, Row, columns, headline, load_runs, main_comparison, verdict
from posterity.report.remarks import fitted

console = Console()
UNBOUND = 10_000  # columns, to measure what a table would take
NAMES = {"validated": "round chosen on validation, shown on test", "paper": "best round on all held-out data",
         "last": "last round, shown on test"}  # fmt: skip


@contextmanager
def progress(title: str, total: int, quiet: bool) -> Iterator[Watch]:
    """A live line: rounds, time left, accuracy, clients per second."""
    if quiet:
        yield silent
        return
    bar = Progress(
        TextColumn("{task.description:<24}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}"),
        console=console,
    )
    task, begun, visits, shown = bar.add_task(title, total=total, note=""), time.perf_counter(), [0], [""]
    try:

        def watch(round: int, rounds: int, lines: list[dict[str, Any]]) -> None:
            bar.start()  # not before the first round: a mistake in the settings should stand alone
            visits[0] += lines[0]["cohort"]
            for note in notes_of(lines):
                bar.console.print(note, markup=False, highlight=False)
            found = [x for x in lines if x["kind"] == "score" and x["part"] == "validation" and x["group"] == "members"]
            if found:
                metric = next(m.name for m in METRICS if m.goal and m.name in found[-1]["metrics"])
                best = {x["point"]: x["metrics"][metric]["pooled"] for x in found}
                shown[0] = " ".join(f"{point} {value:.3f}" for point, value in best.items())
            speed = visits[0] / max(1e-9, time.perf_counter() - begun)
            bar.update(task, completed=round, note=f"{shown[0]}  {speed:,.0f} clients/s")

        yield watch
    finally:
        bar.stop()


def print_table(folder: Path, show: str) -> None:
    """The headline table of a run or comparison, exactly as the report prints it."""
    rows = headline(load_runs(folder), show)
    every = columns(rows)
    table = _table(rows, every, show, True)
    if wide := console.measure(table, options=console.options.update(width=UNBOUND)).maximum <= console.width:
        console.print(table)
    else:
        console.print(_table(rows, [c for c in every if not c.wide_only], show, False))
    if wide and (note := verdict.worst_note(rows)):
        console.print(note)
    comparison = main_comparison(rows)
    if comparison.tested:
        _print_pairs(comparison)
    console.print(verdict.tell(comparison, rows))
    for remark in fitted(rows) if show == "paper" else ():
        console.print(remark)


def _table(rows: list[Row], shown: list[Column], show: str, wide: bool) -> Table:
    table = Table(title=f"{show}: {NAMES[show]}", title_justify="left", header_style="bold", box=SIMPLE_HEAD,
                  pad_edge=False, padding=(0, 1), collapse_padding=True)  # fmt: skip
    table.add_column("Method", no_wrap=True)
    table.add_column("scored at", no_wrap=True)
    for column in shown:
        table.add_column(column.heading.replace(" per ", "/"), justify="right", no_wrap=True)
    for row in rows:
        cells = [row.cells.get(c.key) for c in shown]
        texts = ["" if c is None else f"[bold]{c.text}[/bold]" if c.best else c.text for c in cells]
        table.add_row(
            row.label + (f" ({row.mark})" if row.mark else ""),
            row.point if wide else row.point.partition(",")[0],
            *texts,
        )
    return table


def _print_pairs(comparison: Comparison) -> None:
    """Neighbours in the ranking; the report has more pairs, and says what was tested."""
    unit = ", in percentage points" if comparison.column.unit == "%" else ""
    title = f"neighbours, paired over {verdict.paired_over(comparison)}{unit}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, header_style="bold", pad_edge=False,
                  padding=(0, 1), collapse_padding=True)  # fmt: skip
    table.add_column("Pair")
    for head in ("Difference", "95 % interval", f"p (Holm, {comparison.tested})", "seeds needed"):
        table.add_column(head, justify="right", no_wrap=True)
    for line in verdict.lines(comparison, verdict.neighbours(comparison)):
        p = f"[bold]{line.p}[/bold]" if line.separated else line.p
        table.add_row(f"{line.first.label} − {line.second.label}", line.difference, line.interval, p, line.needed)
    console.print(table)


def print_json(folder: Path, show: str, report: Path | None) -> None:
    """The same numbers for another program."""
    rows = headline(load_runs(folder), show)
    table = [{"method": r.label, "point": r.point, "rounds": list(r.rounds), "seeds": r.seeds,
              "values": {k: {"mean": _finite(c.mean), "sd": _finite(c.sd)} for k, c in r.cells.items()},
              "worst10_rows": _worst(r)}
             for r in rows]  # fmt: skip
    comparison = main_comparison(rows)
    facts = {"folder": str(folder), "show": show, "report": str(report) if report else None, "rows": table,
             "finding": verdict.tell(comparison, rows), "pairs": _pairs(comparison)}  # fmt: skip
    print(json.dumps(facts))


def _pairs(comparison: Comparison) -> list[dict[str, Any]]:
    """All pairs, the better ranked first; `p` by itself, `holm` adjusted for all pairs."""
    labels = [row.label for row in comparison.rows]
    return [{"first": labels[i], "second": labels[j], "metric": comparison.column.key, "seeds": pair.seeds,
             "difference": _finite(pair.difference), "interval": list(pair.interval) if pair.interval else None,
             "p": pair.p, "holm": pair.holm, "separated": pair.separated, "design": pair.design,
             "seeds_needed": pair.needed if pair.p is not None else None}
            for (i, j), pair in comparison.pairs.items()]  # fmt: skip


def _worst(row: Row) -> list[int] | None:
    """Held-out rows behind the worst tenth of the clients, for each run; None where nobody knows."""
    found = [verdict.worst_rows(selected.score) for _, selected in row.picked] if "worst10" in row.cells else []
    return [behind[2] for behind in found if behind is not None] or None


def _finite(value: float | None) -> float | None:
    return value if value is not None and value == value and abs(value) != float("inf") else None
