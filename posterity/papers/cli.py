"""`posterity reproduce`: a table of a paper, run and printed beside what the paper prints, or a figure, drawn.

`posterity/cli` finds this file by its place when the command runs, so that nothing below imports it.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from posterity.cli.terminal import COMPACT, label, print_rows, print_uncut, say, say_sentence
from posterity.papers import page as pages
from posterity.papers import runs as made
from posterity.papers.figures import draw_figure, figures, is_figure
from posterity.papers.figures.catalogue import find_figure
from posterity.papers.page import RULES, Entry
from posterity.papers.recipe import Recipe, RecipeCell, find, recipes, without_recipe
from posterity.papers.runs import PAGE, Gathered, RunRequest, gather, read_places
from posterity.runs.files import write_atomic

NAME, GAP = 9, 14  # characters of a method's name, and of a difference, that stand in a line at least


def print_recipes(folder: Path) -> None:
    """Every table and figure: what it needs, what came of it, and whether it lies under `folder`."""
    tables = []
    for recipe in recipes().values():
        data = {str({**recipe.settings, **cell.settings}.get("dataset", "digits")) for cell in recipe.cells}
        minutes = "not timed" if recipe.minutes is None else f"{recipe.minutes:g}"
        here = "; here" if (folder / recipe.id / PAGE).exists() else ""
        tables.append(
            (recipe.id, f"{recipe.paper}, {recipe.title}", "; ".join(sorted(data)), minutes, recipe.outcome + here)
        )
    print_rows("Tables", ("Table", "what it is", "data", "GPU minutes a seed", "result"), tables)
    others = [(each.id, f"{each.paper}, {each.title}", each.why) for each in without_recipe().values()]
    print_rows("Neither run nor drawn", ("Id", "what it is", "why not"), others)
    say("result: of the runs that the project publishes, docs/results/README.md tells more; here: its page is here")
    say("run one: posterity reproduce V-T1a (--seeds, --rounds, --scale, --methods, --cells make it smaller)")
    pictures = []
    for figure in figures().values():
        drawn = (folder.parent / "figures" / f"{figure.id}.svg").exists()
        pictures.append((figure.id, f"{figure.paper}, {figure.title}", "; ".join(figure.needs),
                         ", ".join(figure.tables), "drawn" if drawn else "not yet drawn"))  # fmt: skip
    print_rows("Figures", ("Figure", "what it is", "data", "drawn from", "done"), pictures)
    say("draw one: posterity reproduce N-F1")


def reproduce_table(name: str, folder: Path, asked: RunRequest, cells: Sequence[str], methods: Sequence[str]) -> None:
    """Run what is missing, print the table and write it into the folder; or draw a figure. With places, runs are those
    that lie there, and none is started."""
    places = ", ".join(map(str, asked.places))
    if is_figure(name):
        figure = draw_figure(name, folder, asked, cells, methods)
        say_sentence(*figure.notes)
        say(f"figure: {figure.svg}; its numbers: {figure.numbers}; runs: {places or folder / 'tables'}")
        return
    table = find_table(name)
    made.check_place(table, folder)
    recipe = table.chosen(cells, methods)
    if not asked.places:
        made.run_cells(recipe, folder, asked)
    found = gather(table, read_places(asked.places or [folder]))  # a run's column is known among all of the table
    wanted = {(cell.folder, line.name) for cell in recipe.cells for line in recipe.lines_of(cell)}
    if not wanted & found.runs.keys():
        what = f"{table.id} that was asked for" if found.runs else table.id
        raise ValueError(f"{places}: no run of {what} is there, so nothing was written; "
                         f"give the folders and packed files of `posterity reproduce {table.id}`")  # fmt: skip
    show_table(recipe, found)
    write_atomic(folder / PAGE, pages.markdown(recipe, found).encode())
    say(f"table, and what it leaves open: {folder / PAGE}; runs: {places or folder}")


def show_table(recipe: Recipe, found: Gathered) -> None:
    """What there is of a table, in the terminal; its page says more."""
    say(f"{recipe.id}: {recipe.paper}, {recipe.title}")
    run = [cell for cell in recipe.cells if found.of(cell)]
    for cell in run:
        each = pages.entries(recipe, cell, found)
        print_uncut(_terminal(cell, pages.with_numbers(each)))
        say_sentence(made.other_size(recipe, cell, found), *pages.sentences(recipe, cell, found, each))
    missing = ", ".join(cell.name for cell in recipe.cells if cell not in run)
    say_sentence(f"not yet run: {missing}" if missing else "", *(f"remark: {remark}" for remark in found.remarks))


def _terminal(cell: RecipeCell, found: Sequence[Entry]) -> Table:
    table = Table(title=label(cell.name), **COMPACT)
    heads = ("paper", *(pages.HEADS[rule] for rule in RULES), "seeds")
    numbers = [(each.paper, *(each.ours[rule] for rule in RULES), str(each.seeds or "")) for each in found]
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
    runs = Path(os.curdir) / "runs"
    return runs if is_figure(name) else runs / "tables" / find_table(name).id


def find_table(name: str) -> Recipe:
    """The table with this id; of what looks like a figure's, the figures that there are."""
    if "-F" in name.upper() and name.upper() not in {each.upper() for each in without_recipe()}:
        find_figure(name)  # which says so
    return find(name)
