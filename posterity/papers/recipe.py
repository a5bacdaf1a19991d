"""A table of a paper as a TOML file: its setting, its columns and rows, the numbers it prints, what it leaves open.

id = "V-T1a"                        # the table's number, as the matrix of results has it
paper = "pFedVMP"
title = "Table 1, CIFAR-10, 25 % of the images"
outcome = "reproduced"              # of the runs that are published with this project; left out where there are none
metric = "accuracy"                 # what the columns show of their runs, by the names of `shown.py`: shows, metric,
weight = "pooled"                   # weight, point, client, percent; for all columns, unless one says otherwise
seeds = [0, 1, 2]
minutes = 10                        # of one H200 for one seed of all cells and rows; left out where never timed
timed = true                        # seconds of a round as a further column; left out by most
reported = "paper"                  # the rule of the paper's numbers where it says so: "paper" (best round) or "last"
open = ["how rows are held out: a fifth of each client's"]
differs = ["clients are fine-tuned for an epoch, not for five steps"]

[settings]                          # what all runs have in common, by the names of `posterity run`
dataset = "cifar10"

[[cell]]                            # a column: what distinguishes its runs
name = "Dirichlet(0.3)"
partition = "dirichlet:0.3"

[[cell]]                            # another column of the same runs, because its settings are the same
name = "Dirichlet(0.3), newcomers"
partition = "dirichlet:0.3"
shows = "newcomers"

[[line]]                            # a row: a method as `posterity compare` names it, and the paper's numbers
name = "FedAvg-FT"
method = "fedavg+ft"
settings = { public = "4%" }        # that its runs alone have; left out by most
cells = ["Dirichlet(0.3)"]          # where it is run; left out: everywhere
paper = { "Dirichlet(0.3)" = "77.70" }

What else the papers show is in `without_recipe.toml`, each with the reason.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

from posterity.papers.shown import Shown
from posterity.settings.config import Config, from_table
from posterity.settings.hyperparameters import nearest


@dataclass(frozen=True)
class Elsewhere:
    """A table or figure without a recipe."""

    id: str
    paper: str
    title: str
    why: str  # it has none, and what there is instead


@cache
def without_recipe() -> dict[str, Elsewhere]:
    """Every table and figure of the papers that has no recipe, by its id (`without_recipe.toml`)."""
    text = files("posterity.papers").joinpath("without_recipe.toml").read_text(encoding="utf-8")
    return {raw["id"]: Elsewhere(**raw) for raw in tomllib.loads(text)["item"]}


T = TypeVar("T")
SHOWN = tuple(each.name for each in fields(Shown))
SETTINGS = re.compile(r"\[[^]]*\]|@paper")  # of a method, in its row


@dataclass(frozen=True)
class RecipeCell:
    """A column of the table."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)  # that its runs alone have
    shown: Shown = Shown()
    folder: str = ""  # of its runs; columns with the same settings share it


@dataclass(frozen=True)
class Line:
    """A row of the table."""

    name: str  # as the paper has it
    method: str  # as a comparison names it
    paper: Mapping[str, str] = field(default_factory=dict)  # name of a cell -> the number as printed
    cells: tuple[str, ...] = ()  # where it is run; empty: everywhere
    settings: Mapping[str, Any] = field(default_factory=dict)  # that its runs alone have


@dataclass(frozen=True)
class Recipe:
    id: str
    paper: str
    title: str
    settings: Mapping[str, Any]
    cells: tuple[RecipeCell, ...]
    lines: tuple[Line, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    minutes: float | None = None  # of a GPU, for one seed of everything
    outcome: str = "not yet run"  # of the published runs: reproduced, contradicted, in part, …
    timed: bool = False  # whether the page shows the seconds of a round
    reported: str = ""  # the selection rule of the paper's numbers, where it says so
    open: tuple[str, ...] = ()  # choices that the paper leaves open, and what was chosen
    differs: tuple[str, ...] = ()  # what is run otherwise than the paper says, and why

    def config(self, cell: RecipeCell, more: Mapping[str, Any], line: Line | None = None) -> Config:
        """The setting of a cell's runs, or of those of one row; `more` is about the machine, or smaller."""
        every = (self.settings, cell.settings, line.settings if line else {}, more)
        chosen = {name: value for some in every for name, value in (some.get("set") or {}).items()}
        return from_table({name: value for some in every for name, value in some.items()} | {"set": chosen})

    def lines_of(self, cell: RecipeCell) -> list[Line]:
        return [line for line in self.lines if not line.cells or cell.name in line.cells]

    def folders(self) -> dict[str, tuple[RecipeCell, list[Line]]]:
        """The runs: by their folder, a cell that has their settings, and the rows that are run there."""
        found: dict[str, tuple[RecipeCell, list[Line]]] = {}
        for cell in self.cells:
            lines = found.setdefault(cell.folder, (cell, []))[1]
            lines += [line for line in self.lines_of(cell) if line not in lines]
        return found

    def chosen(self, cells: Sequence[str], methods: Sequence[str]) -> Recipe:
        """The recipe with these columns and rows only, in the order of the table; all where nothing is named."""
        some = [_named(name, self.cells, "cell", self.id) for name in cells] or self.cells
        rows = [_row(name, self.lines, self.id) for name in methods] or self.lines
        return replace(self, cells=tuple(each for each in self.cells if each in some),
                       lines=tuple(each for each in self.lines if each in rows))  # fmt: skip


def _named(name: str, among: Sequence[Any], what: str, where: str) -> Any:
    for each in among:
        if name.casefold() == each.name.casefold():
            return each
    raise _unknown(name, among, what, where)


def _unknown(name: str, among: Sequence[Any], what: str, where: str) -> ValueError:
    return ValueError(f"{where} has no {what} {name!r}: {nearest(name, [each.name for each in among])}")


def _row(name: str, lines: Sequence[Line], where: str) -> Line:
    """The row of this name, or of this method; or the paper's own row of this method with some settings."""
    named = [line for line in lines if line.name.casefold() == name.casefold()]
    found = named or [line for line in lines if line.method == name]
    found = found or [line for line in lines if SETTINGS.sub("", line.method) == name.casefold()]
    found = [line for line in found if line.paper] or found
    if not found:
        raise _unknown(name, lines, "method", where)
    if len(found) > 1:
        raise ValueError(f"{where} has several rows of {name}: {'; '.join(line.name for line in found)}; give one of "
                         "these names")  # fmt: skip
    return found[0]


@cache
def recipes() -> dict[str, Recipe]:
    """Every table, by its id, in the order of their files."""
    found = sorted(files("posterity.papers").joinpath("tables").iterdir(), key=lambda file: _order(file.name))
    made = [read(file.read_text(encoding="utf-8"), file.name) for file in found if file.name.endswith(".toml")]
    return {each.id: each for each in made}


def _order(name: str) -> tuple[str, int, str]:
    """M-T2 stands before M-T10."""
    paper, _, rest = name.removesuffix(".toml").partition("-T")
    number = rest.rstrip("abcdefgh")
    return paper, int(number), rest.removeprefix(number)


def find(name: str) -> Recipe:
    """The table with this id."""
    if other := next((each for each in without_recipe().values() if each.id.casefold() == name.casefold()), None):
        raise ValueError(f"{other.id} ({other.paper}, {other.title}) has no runs here: {other.why}")
    return by_id(name, recipes(), "table")


def by_id(name: str, known: Mapping[str, T], what: str) -> T:
    """One of `known`, in capitals or not."""
    for each, value in known.items():
        if each.casefold() == name.casefold():
            return value
    told = nearest(name, list(known))
    raise ValueError(f"there is no {what} {name!r}: {told}; 'posterity reproduce --list' shows all")


def read(text: str, place: str) -> Recipe:
    """A recipe from its file."""
    table = tomllib.loads(text)
    try:
        usual = {name: table.pop(name) for name in SHOWN if name in table}
        cells = _cells(table.pop("cell"), usual)
        lines = tuple(Line(**{**each, "cells": tuple(each.get("cells", ()))}) for each in table.pop("line"))
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in table.items()
        }
        return Recipe(cells=cells, lines=lines, **values)
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{place} is no table of a paper: {error}") from error


def _cells(tables: Sequence[dict[str, Any]], usual: Mapping[str, Any]) -> tuple[RecipeCell, ...]:
    """The columns; the runs of several with the same settings lie in the folder of the first."""
    made: list[RecipeCell] = []
    for each in tables:
        name = each["name"]
        shown = Shown(**{**usual, **{key: each[key] for key in SHOWN if key in each}})
        settings = {key: value for key, value in each.items() if key not in ("name", *SHOWN)}
        folder = next((cell.folder for cell in made if cell.settings == settings), _folder(name))
        made.append(RecipeCell(name, settings, shown, folder))
    return tuple(made)


def _folder(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_.=" else "-" for c in name).strip("-")
