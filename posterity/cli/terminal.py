"""What a terminal is shown of runs: their progress as they go, then tables, findings and remarks.

Progress is a live line in a terminal; in a file or a pipe a plain line now and then. Tables have the numbers of the
report, in as many columns as there is room for. What is no result is in `listing.py`. Names that came from somebody's
file are neither acted on (`settings/text.py`) nor read as rich's markup (`label`).
"""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from posterity.cli.flags import Output
from posterity.core.protocol import POINTS
from posterity.data.user_files import looks_like_path
from posterity.evaluate import METRICS
from posterity.experiment.run import Watch, silent
from posterity.experiment.setup import Setup
from posterity.report import findings, load_runs, sections
from posterity.report.findings import Comparison, complete, headline, main_comparison
from posterity.report.show import FORMS, RULE, name_of
from posterity.report.table import Column, Row, by_seed, columns, describe_divergence
from posterity.runs.files import clean
from posterity.runs.lines import Line, rounds_of, scores_of
from posterity.settings.text import plain

EVERY = 10.0  # seconds between two plain lines
UNBOUND = 10_000  # columns, to measure what a table would take
ONE_CLASS = {"auprc", "sensitivity", "specificity", "calibration_slope", "calibration_intercept"}
PAIR = 12  # characters of a pair's names that stand in a line at least
LABEL = 28  # characters of a label; longer ones go on in the next line
COMPACT: dict[str, Any] = {"title_justify": "left", "header_style": "bold", "box": SIMPLE_HEAD, "pad_edge": False,
                           "padding": (0, 1), "collapse_padding": True}  # fmt: skip
console = Console()


def label(text: str) -> str:
    return escape(plain(text))


@contextmanager
def progress(title: str, total: int, quiet: bool) -> Iterator[Watch]:
    """Show how far a run is: rounds, time left, what was last scored, clients per second."""
    if quiet:
        yield silent
    elif console.is_terminal and not console.is_dumb_terminal:
        with _live(title, total) as watch:
            yield watch
    else:
        yield _lines(title)


@contextmanager
def _live(title: str, total: int) -> Iterator[Watch]:
    text, note = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
    left = TimeRemainingColumn(compact=True)
    bar = Progress(text, BarColumn(bar_width=12), MofNCompleteColumn(), left, note, console=console)
    task, seen = bar.add_task(label(title), total=total, note=""), _Watched()
    try:

        def watch(round: int, rounds: int, lines: list[Line]) -> None:
            bar.start()  # not before the first round: a mistake in the settings should stand alone
            for note in seen.news(lines):
                bar.console.print(plain(note), markup=False, highlight=False)
            bar.update(task, completed=round, note=seen.note(lines))

        yield watch
    finally:
        bar.stop()


def _lines(title: str) -> Watch:
    seen, printed = _Watched(), [0.0]

    def watch(round: int, rounds: int, lines: list[Line]) -> None:
        note, now = seen.note(lines), time.monotonic()
        for each in seen.news(lines):
            print(f"{plain(title)}: {plain(each)}", flush=True)
        if round < rounds and printed[0] and now - printed[0] < EVERY:
            return
        printed[0] = now
        left = seen.seconds / max(1, seen.rounds) * (rounds - round)
        rest = f", {left:,.0f} s left" if round < rounds else f", {seen.seconds:,.1f} s"
        print(f"{plain(title)}: round {round:,} of {rounds:,}, {note}{rest}", flush=True)

    return watch


class _Watched:
    def __init__(self) -> None:
        self.begun, self.visits, self.rounds, self.scored = time.perf_counter(), 0, 0, ""
        self.noted: set[str] = set()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.begun

    def news(self, lines: list[Line]) -> list[str]:
        """What a round notes that no round before it has: the runs of a comparison often say the same."""
        found = [note for note in notes_of(lines) if note not in self.noted]
        self.noted.update(found)
        return found

    def note(self, lines: Sequence[Line]) -> str:
        """The last scores of all members on validation, named, and the speed."""
        self.rounds += 1
        self.visits += sum(line.cohort for line in rounds_of(lines))
        self.scored = describe_scores(lines) or self.scored
        speed = f"{self.visits / max(1e-9, self.seconds):,.0f} clients/s"
        return f"{self.scored}, {speed}" if self.scored else speed


def notes_of(lines: Sequence[Line]) -> list[str]:
    return [f"round {line.round}: {note}" for line in rounds_of(lines)
            for note in ([f"rolled back, {line.rolled_back}"] if line.rolled_back else []) + [*line.notes]]  # fmt: skip


def describe_scores(lines: Sequence[Line]) -> str:
    """`validation accuracy 0.831 (received), 0.852 (trained)`; empty where the round was not scored."""
    found = [x for x in scores_of(lines) if x.part == "validation" and x.group == "members"]
    if not found:
        return ""
    metric = next(m for m in METRICS if m.goal and m.name in found[-1].metrics)
    last = {x.point: x.value(metric.name) for x in found}
    texts = {point: "undefined" if value is None else f"{value:.3f}" for point, value in last.items()}
    numbers = ", ".join(f"{texts[point]} ({point})" for point in POINTS if point in texts)
    return f"validation {metric.noun or metric.name} {numbers}"


def print_setup(setup: Setup, dataset: str) -> None:
    """Before a run: why the loop was taken instead of a stack, and the notes of its network, method and data."""
    if setup.engine.name == "loop" and setup.remark:
        say_sentence(f"note: one client after another (loop): {setup.remark}")
    about_data = setup.sim.federation.notes if looks_like_path(dataset) else ()
    say_sentence(*(f"note: {note}" for note in (*setup.notes, *about_data)))


def print_notes(folder: Path, dataset: str) -> None:
    """After a comparison: the notes of all its runs, each once, with who says it, and of their data."""
    runs = load_runs(folder)
    notes = [f"{who}: {note}" if who else note for who, note in sections.run_notes(headline(runs))]
    notes += sections.data_notes(runs) if looks_like_path(dataset) else ()
    say_sentence(*(f"note: {note}" for note in notes))


def show_runs(folder: Path, output: Output, page: Path | None) -> None:
    if output.form == "json":
        print_json(folder, output.show, page)
    elif output.alone:
        rows, shown, _ = choose_columns(folder, output)
        print(FORMS[output.form](rows, shown), end="")
    else:
        print_table(folder, output.show, output)
        if page is not None:
            say(f"report: {page}")


def say(line: str) -> None:
    """A line that ends with a path or a command: never broken, never read as markup."""
    console.print(plain(line), soft_wrap=True, markup=False, highlight=False)


def choose_columns(folder: Path, output: Output) -> tuple[list[Row], list[Column], list[str]]:
    """Rows and columns of a table: those asked for by name, or all of the main one; and names that nothing fills."""
    rows = headline(load_runs(folder), output.show)
    if not output.metrics:
        return rows, columns(rows), []
    rows = complete(rows)
    every = {c.key: c for table in ("main", "further") for c in columns(rows, table)}
    missing = [name for name in output.metrics if name not in every]
    return rows, [every[name] for name in output.metrics if name in every], missing


def print_table(folder: Path, show: str, output: Output | None = None) -> None:
    """The headline table of a run or comparison, its numbers exactly as the report prints them."""
    output = output or Output(show)
    rows, every, missing = choose_columns(folder, output)
    shown = every if output.wide or output.metrics else fitting(rows, every)
    table = make_table(rows, shown, len(shown) == len(every))
    print_uncut(table, measured(table).maximum)
    keys = {c.key for c in shown}
    left = [c.key for c in every if c.key not in keys]
    comparison = main_comparison(rows)
    say_sentence(
        f"also measured (--wide, or by name with --metrics): {', '.join(left)}" if left else "",
        f"not measured here: {', '.join(missing)}" if missing else "",
        findings.worst_note(rows) if "worst10" in keys else "",
        sections.positive_class(rows[0].arm.runs[0]) if keys & ONE_CLASS else "",
    )
    if comparison.tested:
        _print_pairs(comparison)
    remarks = (*describe_divergence(rows), *sections.unlike(rows), *sections.uneven(rows))
    say_sentence(findings.describe(comparison, rows), *remarks, *(sections.fitted(rows) if show == "paper" else ()))


def fitting(rows: Sequence[Row], every: Sequence[Column]) -> list[Column]:
    """All columns where there is room for them; else the few that answer the question, as far as they fit."""
    few = [c for c in every if not c.wide_only]
    for shown in (list(every), *(few[:count] for count in range(len(few), 1, -1))):
        if measured(make_table(rows, shown, len(shown) == len(every))).maximum <= console.width:
            return shown
    return few[:1]


def measured(table: Table) -> Measurement:
    """The characters that a table takes across: at least, with its names folded, and at most."""
    return console.measure(table, options=console.options.update(width=UNBOUND))


def print_uncut(table: Table, least: int | None = None) -> None:
    """Print a table; in a terminal that is narrower than `least` with lines that it breaks: no number is cut."""
    least = least or measured(table).minimum
    place = console if least <= console.width else Console(width=least)
    place.print(table)


def say_sentence(*texts: str) -> None:
    """Prose, broken at blanks; texts that are empty are left out."""
    for text in filter(None, texts):
        console.print(label(text))


def print_rows(title: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    table = Table(title=title, title_justify="left")
    for head in heads:
        table.add_column(head, overflow="fold")  # never cut
    for row in rows:
        table.add_row(*(label(str(cell)) for cell in row))
    console.print(table)


def make_table(rows: Sequence[Row], shown: Sequence[Column], wide: bool) -> Table:
    """The table for a terminal; where it is narrow, evaluation points lose their epochs."""
    show = rows[0].rule
    table = Table(title=f"{show}: {RULE[show]}", **COMPACT)
    table.add_column("Method", max_width=None if wide else LABEL, overflow="fold", no_wrap=wide)
    table.add_column("scored at", no_wrap=True)
    for column in shown:
        table.add_column(label(column.heading.replace(" per ", "/")), justify="right", no_wrap=True)
    for row in rows:
        cells = [row.cells.get(c.key) for c in shown]
        texts = ["" if c is None else f"[bold]{c.text}[/bold]" if c.best else c.text for c in cells]
        table.add_row(label(name_of(row)), row.point if wide else row.point.partition(",")[0], *texts)
    return table


def _print_pairs(comparison: Comparison) -> None:
    """Neighbours in the ranking; the report has more pairs, and says what was tested."""
    unit = ", in percentage points" if comparison.column.unit == "%" else ""
    title = f"neighbours, paired over {findings.paired_over(comparison)}{unit}"
    table = Table(title=title, **COMPACT)
    heads = ("Difference", "95 % interval", f"p (Holm, {comparison.tested})", "seeds needed")
    lines = findings.lines(comparison, [(k, k + 1) for k in range(len(comparison.rows) - 1)])
    numbers = [(line.difference, line.interval, line.p, line.needed) for line in lines]
    table.add_column("Pair", overflow="fold", min_width=PAIR)
    for head, cells in zip(heads, zip(*numbers, strict=True), strict=True):
        table.add_column(head, justify="right", no_wrap=True, min_width=max(map(len, (head, *cells))))
    for line in lines:
        p = f"[bold]{line.p}[/bold]" if line.separated else line.p
        pair = label(f"{line.first.label} − {line.second.label}")
        table.add_row(pair, line.difference, line.interval, p, line.needed)
    print_uncut(table)


def print_json(folder: Path, show: str, report: Path | None) -> None:
    rows = complete(headline(load_runs(folder), show))
    every = [*columns(rows), *columns(rows, "further")]
    table = [{"method": r.label, "point": r.point, "mark": r.mark, "rounds": list(r.rounds), "seeds": r.seeds,
              "values": {c.key: _value(r, c) for c in every if c.key in r.cells}, "worst10_rows": _worst(r)}
             for r in rows]  # fmt: skip
    comparison = main_comparison(rows)
    facts = {"folder": str(folder), "show": show, "report": str(report) if report else None, "rows": table,
             "finding": findings.describe(comparison, rows), "diverged": describe_divergence(rows),
             "cautions": sections.unlike(rows), "pairs": _pairs(comparison)}  # fmt: skip
    print(json.dumps(clean(facts)))


def _value(row: Row, column: Column) -> dict[str, Any]:
    cell = row.cells[column.key]
    return {"mean": cell.mean, "sd": cell.sd, "seeds": by_seed(row, column)}


def _pairs(comparison: Comparison) -> list[dict[str, Any]]:
    """All pairs, the better ranked first; `p` by itself, `holm` adjusted for all pairs."""
    labels = [row.label for row in comparison.rows]
    return [{"first": labels[i], "second": labels[j], "metric": comparison.column.key, "seeds": pair.seeds,
             "difference": pair.difference, "interval": pair.interval,
             "p": pair.p, "holm": pair.holm, "separated": pair.separated, "design": pair.design,
             "seeds_needed": pair.needed if pair.p is not None else None}
            for (i, j), pair in comparison.pairs.items()]  # fmt: skip


def _worst(row: Row) -> list[int] | None:
    """Held-out rows behind the worst tenth of the clients, for each run; None where nobody knows."""
    found = [findings.worst_rows(selected) for _, selected in row.picked] if "worst10" in row.cells else []
    return [behind[2] for behind in found if behind is not None] or None
