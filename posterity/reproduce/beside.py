"""A table as the paper prints it and as our runs give it, side by side, and whether both have the same order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from posterity.evaluate.paired import Paired, compare_pair
from posterity.experiment.variants import parse_variant
from posterity.report import Row, Run, complete, headline, load_runs
from posterity.report.columns import Column, table_columns
from posterity.report.ranking import samples
from posterity.report.verdict import signed
from posterity.reproduce.cells import other_size
from posterity.reproduce.recipe import Line, Recipe, RecipeCell

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
    pair: Paired | None  # the table's own method less this one, under the first rule
    column: Column


def entries(recipe: Recipe, cell: RecipeCell, runs: Sequence[Run]) -> list[Entry]:
    """What there is of a column; the last row is the paper's own method, which the others are compared with."""
    rows = {rule: _rows(recipe.lines_of(cell), runs, rule) for rule in RULES}
    column = next(c for table in ("main", "further") for c in table_columns((), table) if c.key == recipe.metric)
    own = rows[RULES[0]].get(recipe.lines_of(cell)[-1].name)
    found = []
    for line in recipe.lines_of(cell):
        row = rows[RULES[0]].get(line.name)
        ours = {rule: _text(rows[rule].get(line.name), recipe.metric) for rule in RULES}
        pair = None
        if row is not None and own is not None and row is not own:
            pair = compare_pair(samples(own, column), samples(row, column))
        found.append(Entry(line, line.paper.get(cell.name, ""), ours, row.seeds if row else 0,
                           row.point if row else "", pair, column))  # fmt: skip
    return found


def _rows(lines: Iterable[Line], runs: Sequence[Run], rule: str) -> dict[str, Row]:
    """The row of each line that has runs."""
    made = complete(headline(runs, rule)) if runs else []
    found = {}
    for line in lines:
        variant = parse_variant(line.method)
        for row in made:
            config = row.arm.runs[0].config
            given = {name: str(value) for name, value in config.get("set", {}).items()}
            if config["method"] == variant.method and all(given.get(n) == v for n, v in variant.settings.items()):
                found[line.name] = row
    return found


def _text(row: Row | None, metric: str) -> str:
    return row.cells[metric].text if row is not None and metric in row.cells else ""


def read_cell(recipe: Recipe, cell: RecipeCell, places: Sequence[Path]) -> list[Run]:
    """A column's runs out of several folders, or files of packed runs."""
    found = []
    for place in places:
        inside = place if place.is_file() else place / cell.folder
        found += load_runs(inside) if inside.exists() else []
    wanted = recipe.config(cell, {})
    return [run for run in found if _fits(run, wanted.partition, wanted.dataset)]


def _fits(run: Run, partition: str | None, dataset: str) -> bool:
    return run.config.get("partition") == partition and run.config.get("dataset") == dataset


def markdown(recipe: Recipe, places: Sequence[Path]) -> str:
    """The whole table."""
    pieces = [f"## {recipe.id}: {recipe.paper}, {recipe.title}", _open(recipe)]
    for cell in recipe.cells:
        runs = read_cell(recipe, cell, places)
        found = entries(recipe, cell, runs)
        pieces += [f"### {cell.name}", other_size(recipe, cell, runs), _table(found), order(found)]
    return "\n\n".join(piece for piece in pieces if piece) + "\n"


def _open(recipe: Recipe) -> str:
    return "Left open by the paper:\n\n" + "\n".join(f"- {each}" for each in recipe.open) if recipe.open else ""


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
    both = [
        (p, o) for e in found if (p := number(e.paper)) is not None and (o := number(e.ours["validated"])) is not None
    ]
    pairs = [(a, b) for i, a in enumerate(both) for b in both[i + 1 :] if a[0] != b[0]]
    if not pairs:
        return ""
    same = sum((a[0] - b[0]) * (a[1] - b[1]) > 0 for a, b in pairs)
    return f"{same} of {len(pairs)} pairs of methods are in the paper's order."


__all__ = ["RULES", "Entry", "entries", "gap", "markdown", "number", "order", "read_cell"]
