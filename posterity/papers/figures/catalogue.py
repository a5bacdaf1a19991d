"""The papers' figures: what each shows, and the table whose setting, or runs, it is drawn from.

A figure names its table by id. Where no table of `tables/` is meant, the setting is a file of the same form in
`sources/`, named after the first figure that is drawn from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files

from posterity.papers.recipe import Line, Recipe, read, recipes
from posterity.settings.hyperparameters import nearest


@dataclass(frozen=True)
class FigureSource:
    """A table, and which of its columns and rows a figure shows; all where none are named."""

    table: str
    cells: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()

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
            made = [recipe for recipe in (_columns(each, cells) for each in made) if recipe.cells]
        return [_rows(recipe, methods) for recipe in made]


def _columns(recipe: Recipe, cells: Sequence[str]) -> Recipe:
    """With the columns that are named, among all that the table has; or with its own, where the table is named."""
    if recipe.id in cells:
        return recipe
    return replace(recipe, cells=tuple(cell for cell in known_tables()[recipe.id].cells if cell.name in cells))


def _rows(recipe: Recipe, methods: Sequence[str]) -> Recipe:
    """With the rows that are named, among all that the table has."""
    return replace(recipe, lines=known_tables()[recipe.id].chosen((), methods).lines) if methods else recipe


FOUR = ("FedPer", "GPFL", "FedPAC", "pFedVMP")
DIRICHLET = {"V-T1a": "0.3", "V-T1b": "0.1", "V-T1c": "0.3", "V-T1d": "0.1", "V-T1e": "0.3", "V-T1f": "0.1",
             "V-T1g": "0.3", "V-T1h": "0.1"}  # fmt: skip
HOSTS = ("FedAvg", "Reptile", "MAML", "PerFedAvg (HF-MAML)")
META = tuple(name for host in HOSTS for name in (host, f"{host.partition(' ')[0]}+MetaVD (released defaults)"))

FIGURES = (
    Figure("V-F2", "pFedVMP", "Figure 2, features of the clients' test samples", "features",
           (FigureSource("V-T1a", ("Dirichlet(0.3)",), FOUR),)),
    Figure("V-F3", "pFedVMP", "Figure 3, test accuracy and training loss by round", "curves",
           (FigureSource("V-T1b", ("capped Dirichlet(0.1)",), ("FedAvg-FT", "FedPer", "FedRep", *FOUR[1:])),)),
    Figure("V-F4", "pFedVMP", "Figure 4, who holds which classes", "bubbles",
           tuple(FigureSource(table, (f"Dirichlet({alpha})",)) for table, alpha in DIRICHLET.items())),
    Figure("M-F2", "MetaVD", "Figure 2, who holds which classes", "bubbles", (FigureSource("M-F2"),)),
    Figure("M-F3", "MetaVD", "Figure 3, reliability, CIFAR-100, α̂ = 0.5", "reliability",
           (FigureSource("M-T7", ("α=0.5 Test",), META[2:6]),)),
    Figure("M-F4", "MetaVD", "Figure 4, reliability, CIFAR-100, α̂ = 0.5", "reliability",
           (FigureSource("M-T7", ("α=0.5 Test",), META),)),
    Figure("M-F5", "MetaVD", "Figure 5, reliability, CIFAR-10, α̂ = 0.5", "reliability",
           (FigureSource("M-T8", ("α=0.5 Test",), META),)),
    Figure("N-F1", "FedNP", "Figure 1, a curve that three clients fit together", "toy",
           (FigureSource("N-F1", (), ("FedAvg", "FedNP")),), {"truth": 1, "band": 1}),
    Figure("N-F3", "FedNP", "Figure 3, features of six clients' samples of ten classes", "features",
           (FigureSource("N-F3"),), {"clients": 6, "classes": 10}),
    Figure("N-F4", "FedNP", "Figure 4, the same curve with FedPA", "toy",
           (FigureSource("N-F1", (), ("FedPA", "FedNP")),)),
    Figure("N-F5", "FedNP", "Figure 5, the classifiers that z predicts among the features", "classifiers",
           (FigureSource("N-F3", (), ("FedNP",)),), {"clients": 6, "classes": 10}),
    Figure("A-F1", "FedMAP", "Figure 1, validation accuracy of every client by round", "clients",
           (FigureSource("A-F1"),), metric="balanced_accuracy"),
    Figure("B-F3", "FedBPS", "Figure 3, accuracy against the share p of personal parameters", "proportion",
           (FigureSource("B-T2", ("Fashion-MNIST",)),)),
)  # fmt: skip


@cache
def figures() -> dict[str, Figure]:
    """Every figure, by its id."""
    return {each.id: each for each in FIGURES}


def find_figure(name: str) -> Figure:
    """The figure with this id."""
    known = {each.casefold(): figure for each, figure in figures().items()}
    if name.casefold() not in known:
        told = nearest(name, list(figures()))
        raise ValueError(f"there is no figure {name!r}: {told}; 'posterity reproduce --list' shows all")
    return known[name.casefold()]


def is_figure(name: str) -> bool:
    return name.casefold() in {each.casefold() for each in figures()}


@cache
def known_tables() -> dict[str, Recipe]:
    """The tables, and the settings of figures that no table has."""
    found = sorted(files("posterity.papers.figures").joinpath("sources").iterdir(), key=lambda file: file.name)
    made = [read(file.read_text(encoding="utf-8"), file.name) for file in found if file.name.endswith(".toml")]
    return {**{each.id: each for each in made}, **recipes()}
