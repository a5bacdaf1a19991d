"""The rows of a column as the paper prints them and as our runs give them, side by side.

Whether our runs put the rows of a table in the paper's order, and which pairs they do not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from posterity.evaluate.paired import Paired, Samples, compare_pair
from posterity.papers.recipe import Line, Recipe, RecipeCell
from posterity.papers.runs import Gathered, departure
from posterity.papers.shown import Shown, find_score, read_samples, read_value
from posterity.report import Run
from posterity.report.findings import amount, signed
from posterity.report.table import Column, main_epochs, mark, point_name, select_round, summarise

RULES = ("validated", "paper", "last")


@dataclass(frozen=True)
class Entry:
    """A row of a column: the paper's number and ours."""

    line: Line
    paper: str
    ours: Mapping[str, str]  # selection rule -> mean ± sd over seeds, empty where nothing was run
    seeds: int  # that the numbers are of
    point: str  # at which evaluation point ours are
    pair: Paired | None  # the row that others are held against less this one, under the rule by which rows are compared
    column: Column
    samples: Samples  # ours by seed, under that rule
    seconds: str = ""  # of the median round of a seed, which shares the device as it did
    mark: str = ""  # whether runs of it exploded: its numbers are shown, and compared with nothing
    size: str = ""  # how its runs differ in size from the paper's: rows of different sizes are not compared

    @property
    def name(self) -> str:
        """The row as it is called in the table."""
        return f"{self.line.name} ({self.mark})" if self.mark else self.line.name


def entries(recipe: Recipe, cell: RecipeCell, found: Gathered, by: str = "") -> list[Entry]:
    """What there is of a column; rows are compared `by` a selection rule, or without leaks."""
    lines, shown = recipe.lines_of(cell), cell.shown
    runs = [found.runs.get((cell.folder, line.name), ()) for line in lines]
    rule = by or _compared(runs, shown)
    marks = [_mark(some, rule) for some in runs]
    mine = [read_samples(some, rule, shown) if shown.column.better and not word else {}
            for some, word in zip(runs, marks, strict=True)]  # fmt: skip
    sizes = [departure(recipe, cell, line, found) for line in lines]
    ran = [place for place, some in enumerate(runs) if some]
    own, of = (mine[ran[-1]], sizes[ran[-1]]) if ran else ({}, "")
    return [
        Entry(line, line.paper.get(cell.name, ""), {rule: _text(some, rule, shown) for rule in RULES},
              _seeds(some, rule, shown), _point(some, shown), None if its is own or size != of else _pair(own, its),
              shown.column, its, _seconds(some) if recipe.timed else "", word, size)
        for line, some, its, word, size in zip(lines, runs, mine, marks, sizes, strict=True)
    ]  # fmt: skip


def held_against(found: Sequence[Entry]) -> Entry:
    """The row that the others are compared with: the last, the paper's own method, or the last that was run."""
    return next((each for each in reversed(found) if each.seeds), found[-1])


def compared_by(found: Sequence[Entry]) -> str:
    """The rule by which rows are compared: `last` where members hold nothing out to validate a round by."""
    return "validated" if any(each.ours["validated"] for each in found) else "last"


def with_numbers(found: Sequence[Entry]) -> list[Entry]:
    """Rows that have a number, the paper's or ours, and the paper's own method."""
    return [each for each in found if each.paper or each.seeds or each is found[-1]]


def without_numbers(found: Sequence[Entry]) -> str:
    """A sentence about the other rows: settings that the paper does not have, and that were not run."""
    shown = with_numbers(found)
    names = [each.name for each in found if each not in shown]
    return f"Rows that the paper does not have, not yet run: {'; '.join(names)}." if names else ""


def _compared(runs: Sequence[Sequence[Run]], shown: Shown) -> str:
    """The rule by which rows are compared: `last` where members hold nothing out to validate a round by."""
    scored = (find_score(run, "validated", shown) for some in runs for run in some)
    return "validated" if any(score is not None for score in scored) else "last"


def _mark(runs: Sequence[Run], rule: str) -> str:
    return mark([(run, selected) for run in runs if (selected := select_round(run, rule))])


def _text(runs: Sequence[Run], rule: str, shown: Shown) -> str:
    found = summarise([read_value(run, rule, shown) for run in runs], shown.column)
    if found is None:
        return ""
    return f"+{found.text}" if shown.shows == "gap" and found.mean > 0 else found.text


def _seeds(runs: Sequence[Run], rule: str, shown: Shown) -> int:
    """How many runs have a number; all of them where none has."""
    return sum(read_value(run, rule, shown) is not None for run in runs) or len(runs)


def _point(runs: Sequence[Run], shown: Shown) -> str:
    if not runs:
        return ""
    score = find_score(runs[0], "last", shown)
    return point_name(score.point, score.epochs or main_epochs(runs[0], score.point), runs[:1]) if score else ""


def _pair(first: Samples, second: Samples) -> Paired | None:
    return compare_pair(first, second) if first and second else None


def _seconds(runs: Sequence[Run]) -> str:
    """Of the median round: rounds that are recorded or scored, or in which the program was halted, take longer."""
    each = [line.seconds for run in runs for line in run.rounds if line.seconds is not None]
    return f"{median(each):.3f}" if each else ""


def gap(each: Entry) -> str:
    """By how much the row that others are held against is ahead, with the interval of this pair by itself."""
    pair = each.pair
    if pair is None or not pair.seeds:
        return ""
    return signed(pair.difference, each.column) + reach(pair, each.column)


def reach(pair: Paired, column: Column) -> str:
    """The 95 % interval of a difference, in brackets; nothing where one seed gives none."""
    if pair.interval is None:
        return ""
    low, high = (signed(end, column) for end in pair.interval)
    return f" ({low} to {high}{', level' if level(pair) else ''})"


def level(pair: Paired) -> bool:
    """Whether the interval leaves open which of two is ahead."""
    return pair.interval is None or pair.interval[0] <= 0 <= pair.interval[1]


NUMBER = re.compile(r"[-+−]?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?")


def number(text: str) -> float | None:
    """The first number of a printed cell."""
    match = NUMBER.search(text)
    return float(match[0].replace("−", "-")) if match else None


def order(found: Sequence[Entry], by: str = "") -> str:
    """How many pairs of rows stand in the paper's order, in a sentence, and which are told apart the other way round.

    Rows of which runs exploded, or that have another size, have no place in it. Nothing where there are no two rows to
    compare. `by` is the selection rule that the rows were made by, if not the one without leaks.
    """
    rule = by or compared_by(found)
    pairs = [(a, b, theirs, ours) for a, b in combinations(found, 2) if not a.mark and not b.mark and a.size == b.size
             if (theirs := _theirs(a, b)) and (ours := _ours(a, b, rule)) is not None]  # fmt: skip
    if not pairs:
        return ""
    others = [(a, b) if ours > 0 else (b, a) for a, b, theirs, ours in pairs if theirs * ours <= 0]
    told = f"{len(pairs) - len(others)} of {len(pairs)} pairs of methods are in the paper's order."
    apart = [said for first, second in others if (said := _apart(first, second))]
    if not others:
        return told
    if not apart:
        one = max(each.seeds for each in found) == 1
        return f"{told} {'One seed tells no two apart' if one else 'Of the others our seeds tell none apart'}."
    return f"{told} Of the others our seeds tell apart: {'; '.join(apart)}."


def _theirs(first: Entry, second: Entry) -> float:
    """By how much the paper has the first above the second; 0 where it has them level, or one of them not at all."""
    a, b = number(first.paper), number(second.paper)
    return 0.0 if a is None or b is None else a - b


def _ours(first: Entry, second: Entry, rule: str) -> float | None:
    """By how much our runs have it so: over the seeds of both, of means that are not rounded as they are printed."""
    if first.samples and second.samples:
        each = compare_pair(first.samples, second.samples)
        return each.difference if each.seeds else None
    a, b = number(first.ours[rule]), number(second.ours[rule])
    return None if a is None or b is None else a - b


def _apart(first: Entry, second: Entry) -> str:
    """By how much the first is above the second; empty where the interval of this pair does not say so."""
    if not first.samples or not second.samples:
        return ""
    pair = compare_pair(first.samples, second.samples)
    if level(pair):
        return ""
    by = amount(pair.difference, first.column) + reach(pair, first.column)
    return f"{first.line.name} above {second.line.name} by {by}"
