"""`posterity reproduce`: a table of a paper, run and printed beside what the paper prints."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from posterity.cli import figures
from posterity.cli.neutral import label
from posterity.cli.show import console, say, say_sentence
from posterity.experiment.compare import Watching
from posterity.report.logs import write_atomic
from posterity.reproduce.beside import RULES, Entry, entries, gap, markdown, order, read_cell
from posterity.reproduce.cells import PAGE, check_place, other_size, run_cells
from posterity.reproduce.recipe import Recipe, RecipeCell, find, recipes


def print_recipes(folder: Path) -> None:
    """Every table: what it needs, how long it takes, how much of it lies under `folder`."""
    table = Table("Table", "what it is", "data", "GPU minutes a seed", "done", title="Tables", title_justify="left")
    for recipe in recipes().values():
        minutes = "not timed" if recipe.minutes is None else f"{recipe.minutes:g}"
        needs = "; ".join(sorted({_data(recipe, cell) for cell in recipe.cells}))
        cells = [recipe.id, f"{recipe.paper}, {recipe.title}", needs, minutes, _done(recipe, folder / recipe.id)]
        table.add_row(*map(label, cells))
    console.print(table)
    say("run one: posterity reproduce V-T1a (--seeds, --rounds, --scale, --methods, --cells make it smaller)")
    figures.print_figures(folder)


def _data(recipe: Recipe, cell: RecipeCell) -> str:
    return str({**recipe.settings, **cell.settings}.get("dataset", "digits"))


def _done(recipe: Recipe, folder: Path) -> str:
    """Finished runs of those that the table has."""
    wanted = sum(len(recipe.lines_of(cell)) for cell in recipe.cells) * len(recipe.seeds)
    found = 0
    for cell in recipe.cells:
        found += sum(run.finished for run in read_cell(recipe, cell, [folder]))
    return f"{found} of {wanted} runs" if found else "not yet run"


def reproduce_table(
    name: str,
    folder: Path,
    seeds: Sequence[int] | None,
    cells: Sequence[str],
    methods: Sequence[str],
    scale: float,
    more: dict[str, Any],
    watching: Watching,
    jobs: int,
    together: bool,
) -> None:
    """Run what is missing, print the table, write it into the folder; or draw a figure."""
    if figures.is_figure(name):
        figures.draw(name, folder, seeds, cells, methods, scale, more, watching, jobs, together)
        return
    table = find(name)
    check_place(table, folder)
    recipe = table.chosen(cells, methods)
    run_cells(recipe, folder, seeds or recipe.seeds, scale, more, watching, jobs, together)
    show_table(recipe, [folder])
    write_atomic(folder / PAGE, markdown(recipe, [folder]).encode())
    say(f"table: {folder / PAGE}; runs: {folder}")


def show_table(recipe: Recipe, places: Sequence[Path]) -> None:
    """What there is of a table, in the terminal."""
    say(f"{recipe.id}: {recipe.paper}, {recipe.title}")
    for cell in recipe.cells:
        runs = read_cell(recipe, cell, places)
        found = entries(recipe, cell, runs)
        console.print(_terminal(cell, found))
        if told := other_size(recipe, cell, runs):
            say_sentence(told)
        if told := order(found):
            say(told)
    for each in recipe.open:
        say_sentence(f"left open by the paper: {each}")


def _terminal(cell: RecipeCell, found: Sequence[Entry]) -> Table:
    heads = ("Method", "paper", *("best round" if rule == "paper" else rule for rule in RULES), "seeds",
             f"{found[-1].line.name} less it")  # fmt: skip
    table = Table(*heads, title=cell.name, title_justify="left")
    for each in found:
        cells = (
            each.line.name,
            each.paper,
            *(each.ours[rule] for rule in RULES),
            str(each.seeds or ""),
            gap(each),
        )
        table.add_row(*map(label, cells))
    return table


def default_folder(name: str) -> Path:
    """Where a table's runs lie unless --out says otherwise: a second call finds what the first has done.

    A figure is drawn beside the tables, since it is drawn from their runs.
    """
    if figures.is_figure(name):
        return Path(os.curdir) / "runs"
    return Path(os.curdir) / "runs" / "tables" / find(name).id


__all__ = ["default_folder", "print_recipes", "reproduce_table", "show_table"]
