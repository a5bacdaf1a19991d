"""`posterity reproduce`: a table of a paper, run and printed beside what the paper prints, or a figure, drawn.

`posterity/cli` finds this file by its place when the command runs, so that nothing below imports it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from posterity.cli.terminal import console, label, measured, print_uncut, ruled_table, say, say_sentence
from posterity.papers import page as pages
from posterity.papers import runs as made
from posterity.papers.figures import draw_figure, figures, is_figure
from posterity.papers.figures.catalogue import find_figure
from posterity.papers.page import RULES, SECONDS, Entry
from posterity.papers.recipe import Recipe, RecipeCell, find, recipes, without_recipe
from posterity.papers.runs import PAGE, Gathered, RunRequest, gather, read_places
from posterity.runs.files import write_atomic
from posterity.runs.read import ReportError


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
    figure = draw_figure(name, folder, asked, cells, methods)
    for note in figure.notes:
        say_sentence(note)
    runs = ", ".join(map(str, asked.places)) or folder / "tables"
    say(f"figure: {figure.svg}; its numbers: {figure.numbers}; runs: {runs}")


NAME, GAP = 9, 14  # characters of a method's name, and of a difference, that stand in a line at least


def print_recipes(folder: Path, places: Sequence[Path] = ()) -> None:
    """Every table: what it needs, how long it takes, how much of it lies under `folder`, or in `places`."""
    runs = read_places(places)
    table = ruled_table("Tables", "Table", "what it is", "data", "GPU minutes a seed", "result")
    for recipe in recipes().values():
        minutes = "not timed" if recipe.minutes is None else f"{recipe.minutes:g}"
        needs = "; ".join(sorted({_data(recipe, cell) for cell in recipe.cells}))
        found = gather(recipe, runs).count if places else _count(recipe, [folder / recipe.id])
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


def _count(recipe: Recipe, places: Sequence[Path]) -> int:
    """How many runs of a table are there, of the paper's size."""
    try:
        found = gather(recipe, read_places(places))
    except ReportError:  # nothing is, or something that no run writes
        return 0
    return sum(len(found.runs.get((cell.folder, line.name), ())) for cell, lines in recipe.folders().values()
               for line in lines if not made.departure(recipe, cell, line, found))  # fmt: skip


def _result(recipe: Recipe, found: int) -> str:
    """What came of the published runs; with finished ones here, how many of those that the table has."""
    wanted = sum(len(lines) for _, lines in recipe.folders().values()) * len(recipe.seeds)
    return f"{recipe.outcome}; here {found} of {wanted} runs" if found else recipe.outcome


def reproduce_table(name: str, folder: Path, asked: RunRequest, cells: Sequence[str], methods: Sequence[str]) -> None:
    """Run what is missing, print the table and write it into the folder; or draw a figure. With places, runs are those
    that lie there, and none is started."""
    if is_figure(name):
        draw(name, folder, asked, cells, methods)
        return
    table = find_table(name)
    made.check_place(table, folder)
    recipe = table.chosen(cells, methods)
    if not asked.places:
        made.run_cells(recipe, folder, asked)
    found = gather(table, read_places(asked.places or [folder]))  # a run's column is known among all of the table
    wanted = {(cell.folder, line.name) for cell in recipe.cells for line in recipe.lines_of(cell)}
    if not wanted & found.runs.keys():
        what = f"{table.id} that was asked for" if found.count else table.id
        raise ValueError(f"{', '.join(map(str, asked.places))}: no run of {what} is there, so nothing was written; "
                         f"give the folders and packed files of `posterity reproduce {table.id}`")  # fmt: skip
    show_table(recipe, found)
    write_atomic(folder / PAGE, pages.markdown(recipe, found).encode())
    say(f"table: {folder / PAGE}; runs: {', '.join(map(str, asked.places)) or folder}")


def show_table(recipe: Recipe, found: Gathered) -> None:
    """What there is of a table, in the terminal."""
    say(f"{recipe.id}: {recipe.paper}, {recipe.title}")
    run, timed = [cell for cell in recipe.cells if found.of(cell)], False
    for cell in run:
        each = pages.entries(recipe, cell, found)
        timed = _print_cell(cell, pages.with_numbers(each)) or timed
        sentences = (made.other_size(recipe, cell, found), pages.order(each),
                     pages.order_as_reported(recipe, cell, found), pages.without_numbers(each))  # fmt: skip
        for sentence in filter(None, sentences):
            say_sentence(sentence)
    if recipe.timed and timed:
        say_sentence(f"{SECONDS}: {pages.TIMES}")
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
    fits = measured(timed).minimum <= console.width
    print_uncut(timed if fits else _terminal(cell, found, timed=False))
    return fits


def _terminal(cell: RecipeCell, found: Sequence[Entry], timed: bool) -> Table:
    table = Table(title=label(cell.name), title_justify="left", box=SIMPLE_HEAD, header_style="bold", pad_edge=False,
                  padding=(0, 1), collapse_padding=True)  # fmt: skip
    heads = ("paper", *(pages.HEADS[rule] for rule in RULES), "seeds", *([SECONDS] if timed else []))
    numbers = [(each.paper, *(each.ours[rule] for rule in RULES), str(each.seeds or ""),
                *([each.seconds] if timed else [])) for each in found]  # fmt: skip
    table.add_column("Method", overflow="fold", min_width=NAME)
    for head, cells in zip(heads, zip(*numbers, strict=True), strict=True):
        table.add_column(head, justify="right", no_wrap=True, min_width=max(map(len, (head, *cells))))
    table.add_column(label(f"{pages.held_against(found).line.name} less it (95 %)"), overflow="fold", min_width=GAP)
    for each, cells in zip(found, numbers, strict=True):
        table.add_row(*map(label, (each.name, *cells, pages.gap(each))))
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
