"""A table as the paper prints it and as our runs give it, side by side, and whether both have the same order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from posterity.evaluate.paired import Paired, Sample, compare_pair
from posterity.report import Run
from posterity.report.columns import Column
from posterity.report.selected_round import main_epochs
from posterity.report.tables import point_name, summarise
from posterity.report.verdict import signed
from posterity.reproduce.gather import Gathered, other_size
from posterity.reproduce.recipe import Line, Recipe, RecipeCell
from posterity.reproduce.shown import Shown, find_score, read_samples, read_value

RULES = ("validated", "paper", "last")
NUMBER = re.compile(r"[-+−]?[0-9]+(\.[0-9]+)?")


@dataclass(frozen=True)
class Entry:
    """A row of a column: the paper's number and ours."""

    line: Line
    paper: str
    ours: Mapping[str, str]  # selection rule -> mean ± sd over seeds, empty where nothing was run
    seeds: int
    point: str  # at which evaluation point ours are
    pair: Paired | None  # the table's own method less this one, under the rule by which rows are compared
    column: Column


def entries(recipe: Recipe, cell: RecipeCell, found: Gathered) -> list[Entry]:
    """What there is of a column; the last row is the paper's own method, which the others are compared with."""
    lines, shown = recipe.lines_of(cell), cell.shown
    runs = [found.runs.get((cell.folder, line.name), ()) for line in lines]
    rule = _compared(runs, shown)
    mine = [read_samples(some, rule, shown) if shown.column.better else {} for some in runs]
    return [
        Entry(line, line.paper.get(cell.name, ""), {rule: _text(some, rule, shown) for rule in RULES}, len(some),
              _point(some, shown), None if line is lines[-1] else _pair(mine[-1], its), shown.column)
        for line, some, its in zip(lines, runs, mine, strict=True)
    ]  # fmt: skip


def _compared(runs: Sequence[Sequence[Run]], shown: Shown) -> str:
    """The rule by which rows are compared: `last` where members hold nothing out to validate a round by."""
    scored = (find_score(run, "validated", shown) for some in runs for run in some)
    return "validated" if any(score is not None for score in scored) else "last"


def _text(runs: Sequence[Run], rule: str, shown: Shown) -> str:
    found = summarise([read_value(run, rule, shown) for run in runs], shown.column)
    if found is None:
        return ""
    return f"+{found.text}" if shown.shows == "gap" and found.mean > 0 else found.text


def _point(runs: Sequence[Run], shown: Shown) -> str:
    if not runs:
        return ""
    score = find_score(runs[0], "last", shown)
    return point_name(score.point, score.epochs or main_epochs(runs[0], score.point)) if score else ""


def _pair(first: Mapping[int, Sample], second: Mapping[int, Sample]) -> Paired | None:
    return compare_pair(dict(first), dict(second)) if first and second else None


def markdown(recipe: Recipe, found: Gathered) -> str:
    """The whole table."""
    pieces = [f"## {recipe.id}: {recipe.paper}, {recipe.title}", _listed("Left open by the paper", recipe.open)]
    for cell in recipe.cells:
        each = entries(recipe, cell, found)
        pieces += [f"### {cell.name}", other_size(recipe, cell, found.of(cell)), _table(each), order(each)]
    pieces.append(_listed("About the runs", found.remarks))
    return "\n\n".join(piece for piece in pieces if piece) + "\n"


def _listed(what: str, sentences: Sequence[str]) -> str:
    return f"{what}:\n\n" + "\n".join(f"- {each}" for each in sentences) if sentences else ""


def _table(found: Sequence[Entry]) -> str:
    own = found[-1].line.name
    heads = ["method", "paper", "validated", "best round", "last", "scored at", "seeds", f"{own} − it (95 %)"]
    lines = [heads, ["---", "--:", "--:", "--:", "--:", "---", "--:", "--:"]]
    for each in found:
        lines.append([each.line.name, each.paper, *(each.ours[rule] for rule in RULES), each.point,
                      str(each.seeds or ""), gap(each)])  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def gap(each: Entry) -> str:
    """By how much the table's own method is ahead, with the interval of this pair by itself."""
    pair = each.pair
    if pair is None or not pair.seeds:
        return ""
    told = signed(pair.difference, each.column)
    if pair.interval is not None:
        low, high = pair.interval
        tie = "" if low > 0 or high < 0 else ", level"
        told += f" ({signed(low, each.column)} to {signed(high, each.column)}{tie})"
    return told


def number(text: str) -> float | None:
    """The first number of a printed cell."""
    match = NUMBER.search(text)
    return float(match[0].replace("−", "-")) if match else None


def order(found: Sequence[Entry]) -> str:
    """Whether ours put the rows in the paper's order, in a sentence; nothing where there are no two rows to compare."""
    rule = "validated" if any(each.ours["validated"] for each in found) else "last"
    both = [(p, o) for e in found if (p := number(e.paper)) is not None and (o := number(e.ours[rule])) is not None]
    pairs = [(a, b) for i, a in enumerate(both) for b in both[i + 1 :] if a[0] != b[0]]
    if not pairs:
        return ""
    same = sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in pairs)
    return f"{same} of {len(pairs)} pairs of methods are in the paper's order."


__all__ = ["RULES", "Entry", "entries", "gap", "markdown", "number", "order"]
