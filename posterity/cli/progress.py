"""Progress while runs go: a live line in a terminal; in a file or a pipe a plain line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from posterity.cli.diverged import notes_of
from posterity.cli.neutral import label
from posterity.cli.show import console
from posterity.core.text import plain
from posterity.evaluate import METRICS
from posterity.experiment.run import Watch, silent
from posterity.report.read_runs import POINTS

EVERY = 10.0  # seconds between two plain lines


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
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[note]}"),
        console=console,
    )
    task, told = bar.add_task(label(title), total=total, note=""), _Told()
    try:

        def watch(round: int, rounds: int, lines: list[dict[str, Any]]) -> None:
            bar.start()  # not before the first round: a mistake in the settings should stand alone
            for note in told.news(lines):
                bar.console.print(plain(note), markup=False, highlight=False)
            bar.update(task, completed=round, note=told.note(lines))

        yield watch
    finally:
        bar.stop()


def _lines(title: str) -> Watch:
    told, printed = _Told(), [0.0]

    def watch(round: int, rounds: int, lines: list[dict[str, Any]]) -> None:
        note, now = told.note(lines), time.monotonic()
        for each in told.news(lines):
            print(f"{plain(title)}: {plain(each)}", flush=True)
        if round < rounds and printed[0] and now - printed[0] < EVERY:
            return
        printed[0] = now
        left = told.seconds / max(1, told.rounds) * (rounds - round)
        rest = f", {left:,.0f} s left" if round < rounds else f", {told.seconds:,.1f} s"
        print(f"{plain(title)}: round {round:,} of {rounds:,}, {note}{rest}", flush=True)

    return watch


class _Told:
    """What the rounds so far have said."""

    def __init__(self) -> None:
        self.begun, self.visits, self.rounds, self.scored = time.perf_counter(), 0, 0, ""
        self.said: set[str] = set()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.begun

    def news(self, lines: list[dict[str, Any]]) -> list[str]:
        """What a round notes that no round before it has: the runs of a comparison often say the same."""
        found = [note for note in notes_of(lines) if note not in self.said]
        self.said.update(found)
        return found

    def note(self, lines: Sequence[Mapping[str, Any]]) -> str:
        """The last scores of all members on validation, named, and the speed."""
        self.rounds += 1
        self.visits += lines[0]["cohort"]
        self.scored = scores_told(lines) or self.scored
        speed = f"{self.visits / max(1e-9, self.seconds):,.0f} clients/s"
        return f"{self.scored}, {speed}" if self.scored else speed


def scores_told(lines: Sequence[Mapping[str, Any]]) -> str:
    """`validation accuracy 0.831 (received), 0.852 (trained)`; empty where the round was not scored."""
    found = [x for x in lines if x["kind"] == "score" and x["part"] == "validation" and x["group"] == "members"]
    if not found:
        return ""
    metric = next(m for m in METRICS if m.goal and m.name in found[-1]["metrics"])
    last = {x["point"]: x["metrics"][metric.name]["pooled"] for x in found}
    texts = {point: "undefined" if value is None else f"{value:.3f}" for point, value in last.items()}
    numbers = ", ".join(f"{texts[point]} ({point})" for point in POINTS if point in texts)
    return f"validation {metric.noun or metric.name} {numbers}"
