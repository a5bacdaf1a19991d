"""`posterity reproduce` with the id of a figure: draw it, and say where it and its numbers lie.

`posterity reproduce`: a table of a paper, run and printed beside what the paper prints.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from posterity.cli.terminal import console, label, least_width, print_uncut, ruled_table, say, say_sentence
from posterity.papers.beside import (
    RULES,
    Entry,
    entries,
    gap,
    held_against,
    order,
    with_numbers,
    without_numbers,
)
from posterity.papers.figures import draw_figure, figures, is_figure
from posterity.papers.figures.catalogue import find_figure
from posterity.papers.page import HEADS, SECONDS, TIMES, markdown, order_as_reported
from posterity.papers.recipe import Recipe, RecipeCell, find, recipes, without_recipe
from posterity.papers.runs import (
    PAGE,
    Gathered,
    RunRequest,
    Size,
    check_place,
    gather,
    other_size,
    read_places,
    run_cells,
    size_of,
)
from posterity.runs.files import read_json, write_atomic
from posterity.runs.folder import CONFIG, RUN, runs_below
from posterity.settings.config import from_table, read_toml


def print_figures(folder: Path) -> None:
    """Every figure: what it needs, whose runs it is drawn from, whether it lies beside the tables in `folder`."""
    table = ruled_table("Figures", "Figure", "what it is", "data", "drawn from", "done")
    for figure in figures().values():
        drawn = (folder.parent / "figures" / f"{figure.id}.svg").exists()
        cells = [figure.id, f"{figure.paper}, {figure.title}", "; ".join(figure.needs), ", ".join(figure.tables),
                 "drawn" if drawn else "not yet drawn"]  # fmt: skip
        table.add_row(*map(label, cells))
    console.print(table)
    say("draw one: posterity reproduce N-F1")


def draw(name: str, folder: Path, asked: RunRequest, cells: Sequence[str], methods: Sequence[str]) -> None:
    """Run what is missing and draw the figure below `folder`."""
    made = draw_figure(name, folder, asked, cells, methods)
    for note in made.notes:
        say_sentence(note)
    runs = ", ".join(map(str, asked.places)) or folder / "tables"
    say(f"figure: {made.svg}; its numbers: {made.numbers}; runs: {runs}")


NAME, GAP = 9, 14  # characters of a method's name, and of a difference, that stand in a line at least


def print_recipes(folder: Path, places: Sequence[Path] = ()) -> None:
    """Every table: what it needs, how long it takes, how much of it lies under `folder`, or in `places`."""
    runs = read_places(places)
    table = ruled_table("Tables", "Table", "what it is", "data", "GPU minutes a seed", "result")
    for recipe in recipes().values():
        minutes = "not timed" if recipe.minutes is None else f"{recipe.minutes:g}"
        needs = "; ".join(sorted({_data(recipe, cell) for cell in recipe.cells}))
        found = gather(recipe, runs).count if places else _finished(recipe, folder / recipe.id)
        cells = [recipe.id, f"{recipe.paper}, {recipe.title}", needs, minutes, _result(recipe, found)]
        table.add_row(*map(label, cells))
    console.print(table)
    others = ruled_table("Neither run nor drawn", "Id", "what it is", "why not")
    for each in without_recipe().values():
        others.add_row(*map(label, (each.id, f"{each.paper}, {each.title}", each.why)))
    console.print(others)
    say("result: of the runs that the project publishes, docs/results/README.md tells more; and how many are here")
    say("run one: posterity reproduce V-T1a (--seeds, --rounds, --scale, --methods, --cells make it smaller)")
    print_figures(folder)


def _data(recipe: Recipe, cell: RecipeCell) -> str:
    return str({**recipe.settings, **cell.settings}.get("dataset", "digits"))


def _finished(recipe: Recipe, folder: Path) -> int:
    """Runs of a table that are finished in its folder, of the paper's size; their logs are not read."""
    return sum(_full(path, {size_of(recipe.config(cell, {}, line)) for line in lines})
               for name, (cell, lines) in recipe.folders().items()
               for path in runs_below(folder / name, "*/seed-*"))  # fmt: skip


def _full(path: Path, sizes: Collection[Size]) -> bool:
    if not (path / RUN).exists() or read_json(path / RUN).get("status") != "finished":
        return False
    try:
        return size_of(from_table(read_toml(path / CONFIG))) in sizes
    except ValueError:  # of another version, or not as it was written
        return False


def _result(recipe: Recipe, found: int) -> str:
    """What came of the published runs; with finished ones here, how many of those that the table has."""
    wanted = sum(len(lines) for _, lines in recipe.folders().values()) * len(recipe.seeds)
    return f"{recipe.outcome}; here {found} of {wanted} runs" if found else recipe.outcome


def reproduce_table(name: str, folder: Path, asked: RunRequest, cells: Sequence[str], methods: Sequence[str]) -> None:
    """Run what is missing, print the table, write it into the folder; or draw a figure."""
    if is_figure(name):
        draw(name, folder, asked, cells, methods)
        return
    table = find_table(name)
    check_place(table, folder)
    recipe = table.chosen(cells, methods)
    run_cells(recipe, folder, asked)
    _conclude(recipe, gather(table, read_places([folder])), folder)  # a run's column is known among all of the table
    say(f"table: {folder / PAGE}; runs: {folder}")


def merge_table(
    name: str, places: Sequence[Path], folder: Path, cells: Sequence[str], methods: Sequence[str]
) -> None:  # fmt: skip
    """The table or figure of runs that lie in several places, written into a folder; nothing is run."""
    if is_figure(name):
        draw(name, folder, RunRequest(places=places), cells, methods)
        return
    table = find_table(name)
    check_place(table, folder)
    recipe, found = table.chosen(cells, methods), gather(table, read_places(places))
    asked = {(cell.folder, line.name) for cell in recipe.cells for line in recipe.lines_of(cell)}
    if not asked & found.runs.keys():
        what = f"{table.id} that was asked for" if found.count else table.id
        raise ValueError(f"{', '.join(map(str, places))}: no run of {what} is there, so nothing was written; give "
                         f"the folders and packed files of `posterity reproduce {table.id}`")  # fmt: skip
    _conclude(recipe, found, folder)
    say(f"table: {folder / PAGE}; runs: {', '.join(map(str, places))}")


def _conclude(recipe: Recipe, found: Gathered, folder: Path) -> None:
    """Print and write the part of a table that was asked for."""
    show_table(recipe, found)
    write_atomic(folder / PAGE, markdown(recipe, found).encode())


def show_table(recipe: Recipe, found: Gathered) -> None:
    """What there is of a table, in the terminal."""
    say(f"{recipe.id}: {recipe.paper}, {recipe.title}")
    run, timed = [cell for cell in recipe.cells if found.of(cell)], False
    for cell in run:
        each = entries(recipe, cell, found)
        timed = _print_cell(cell, with_numbers(each)) or timed
        for told in (other_size(recipe, cell, found), order(each), order_as_reported(recipe, cell, found),
                     without_numbers(each)):  # fmt: skip
            if told:
                say_sentence(told)
    if recipe.timed and timed:
        say_sentence(f"{SECONDS}: {TIMES}")
    if missing := [cell.name for cell in recipe.cells if cell not in run]:
        say_sentence(f"not yet run: {', '.join(missing)}")
    for remark in found.remarks:
        say_sentence(f"remark: {remark}")
    for choice in recipe.open:
        say_sentence(f"left open by the paper: {choice}")
    for departure in recipe.differs:
        say_sentence(f"differs from the paper: {departure}")


def _print_cell(cell: RecipeCell, found: Sequence[Entry]) -> bool:
    """A column of the paper's table; whether it shows the seconds, for which a narrow terminal has no room."""
    timed = _terminal(cell, found, timed=any(each.seconds for each in found))
    fits = least_width(timed) <= console.width
    print_uncut(timed if fits else _terminal(cell, found, timed=False))
    return fits


def _terminal(cell: RecipeCell, found: Sequence[Entry], timed: bool) -> Table:
    table = Table(title=label(cell.name), title_justify="left", box=SIMPLE_HEAD, header_style="bold", pad_edge=False,
                  padding=(0, 1), collapse_padding=True)  # fmt: skip
    heads = ("paper", *(HEADS[rule] for rule in RULES), "seeds", *([SECONDS] if timed else []))
    numbers = [(each.paper, *(each.ours[rule] for rule in RULES), str(each.seeds or ""),
                *([each.seconds] if timed else [])) for each in found]  # fmt: skip
    table.add_column("Method", overflow="fold", min_width=NAME)
    for head, cells in zip(heads, zip(*numbers, strict=True), strict=True):
        table.add_column(head, justify="right", no_wrap=True, min_width=max(map(len, (head, *cells))))
    table.add_column(label(f"{held_against(found).line.name} less it (95 %)"), overflow="fold", min_width=GAP)
    for each, cells in zip(found, numbers, strict=True):
        table.add_row(*map(label, (each.name, *cells, gap(each))))
    return table


def default_folder(name: str) -> Path:
    """Where a table's runs lie unless --out says otherwise: a second call finds what the first has done.

    A figure is drawn beside the tables, since it is drawn from their runs.
    """
    if is_figure(name):
        return Path(os.curdir) / "runs"
    return Path(os.curdir) / "runs" / "tables" / find_table(name).id


def find_table(name: str) -> Recipe:
    """The table with this id; of what looks like a figure's, the figures that there are."""
    if "-F" in name.upper() and name.upper() not in {each.upper() for each in without_recipe()}:
        find_figure(name)  # which says so
    return find(name)
