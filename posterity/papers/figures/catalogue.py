"""The papers' figures (`figures.toml`): what each shows, and the table whose setting, or runs, it is drawn from.

A figure names its table by id. Where no table of `tables/` is meant, the setting is a file of the same form in
`sources/`, named after the first figure that is drawn from it.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files

from posterity.papers.recipe import Line, Recipe, by_id, read, recipes
from posterity.settings.hyperparameters import nearest


@dataclass(frozen=True)
class FigureSource:
    """A table, and which of its columns and rows a figure shows; all where none are named."""

    table: str
    cells: Sequence[str] = ()
    methods: Sequence[str] = ()

    def recipe(self) -> Recipe:
        """The table's part, with its rows in the figure's order: reliability diagrams stand in pairs."""
        made = known_tables()[self.table].chosen(self.cells, self.methods)
        return replace(made, lines=tuple(sorted(made.lines, key=self._place)))

    def _place(self, line: Line) -> int:
        return self.methods.index(line.name) if self.methods else 0


@dataclass(frozen=True)
class Figure:
    """A figure of a paper."""

    id: str
    paper: str
    title: str
    kind: str  # what draws it (`drawing.KINDS`)
    sources: tuple[FigureSource, ...]
    options: dict[str, int] = field(default_factory=dict)  # of its kind
    metric: str = "accuracy"  # where its kind shows one that could be another

    @property
    def needs(self) -> tuple[str, ...]:
        """The data sets of its runs."""
        made = [source.recipe() for source in self.sources]
        return tuple(dict.fromkeys(recipe.config(cell, {}).dataset for recipe in made for cell in recipe.cells))

    @property
    def tables(self) -> tuple[str, ...]:
        """The ids under which its runs lie."""
        return tuple(dict.fromkeys(source.table for source in self.sources))

    def chosen(self, cells: Sequence[str], methods: Sequence[str]) -> list[Recipe]:
        """What is drawn: all, or the columns (or all of a table's, by its id) and rows that are named."""
        made = [source.recipe() for source in self.sources]
        if cells:
            every = [cell.name for recipe in made for cell in known_tables()[recipe.id].cells]
            names = list(dict.fromkeys([*self.tables, *every]))
            if wrong := next((name for name in cells if name not in names), None):
                raise ValueError(f"{self.id} has no cell {wrong!r}: {nearest(wrong, names)}")
            made = [_columns(recipe, cells) for recipe in made]
        made = [recipe for recipe in made if recipe.cells]
        if not methods:
            return made
        return [replace(each, lines=known_tables()[each.id].chosen((), methods).lines) for each in made]


def _columns(recipe: Recipe, cells: Sequence[str]) -> Recipe:
    """With the columns that are named, among all that the table has; or with its own, where the table is named."""
    if recipe.id in cells:
        return recipe
    return replace(recipe, cells=tuple(cell for cell in known_tables()[recipe.id].cells if cell.name in cells))


@cache
def figures() -> dict[str, Figure]:
    """Every figure, by its id."""
    text = files("posterity.papers.figures").joinpath("figures.toml").read_text(encoding="utf-8")
    found = {}
    for raw in tomllib.loads(text)["figure"]:
        sources = [FigureSource(**source) for source in raw.pop("sources")]
        found[raw["id"]] = Figure(sources=tuple(sources), **raw)
    return found


def find_figure(name: str) -> Figure:
    """The figure with this id."""
    return by_id(name, figures(), "figure")


def is_figure(name: str) -> bool:
    return name.casefold() in {each.casefold() for each in figures()}


@cache
def known_tables() -> dict[str, Recipe]:
    """The tables, and the settings of figures that no table has."""
    found = sorted(files("posterity.papers.figures").joinpath("sources").iterdir(), key=lambda file: file.name)
    made = [read(file.read_text(encoding="utf-8"), file.name) for file in found if file.name.endswith(".toml")]
    return {**{each.id: each for each in made}, **recipes()}
