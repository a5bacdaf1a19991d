"""What figures are drawn from: a table's finished runs, and models of theirs. What is missing is run first."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import posterity
from posterity.experiment.compare import parse_variant
from posterity.experiment.result import Result
from posterity.papers import runs as runs_of
from posterity.papers.figures.catalogue import known_tables
from posterity.papers.figures.sheet import Panel
from posterity.papers.recipe import Line, Recipe, RecipeCell
from posterity.papers.runs import Gathered, RunRequest
from posterity.report import Run, load_runs
from posterity.report.table import select_round
from posterity.settings.config import settings_where

SETTING = settings_where(lambda use: use.changes in ("data", "division", "training") or use.size)


@dataclass(frozen=True)
class Material:
    """A table's setting and its finished runs, in each row of one size; and what is to be said about others."""

    recipe: Recipe
    found: Gathered

    @staticmethod
    def below(recipe: Recipe, place: Path, seeds: Collection[int] = ()) -> Material:
        """With the runs of a table's own folder, whatever their data and size; of these seeds, if some are given."""
        found, remarks = dict[tuple[str, str], tuple[Run, ...]](), list[str]()
        for cell in recipe.cells:
            for line in recipe.lines_of(cell):
                folder = place / cell.folder / parse_variant(line.method).folder
                every = load_runs(folder) if folder.is_dir() else []
                runs = [run for run in every if run.finished and (not seeds or run.seed in seeds)]
                row = (cell.folder, line.name)
                found[row] = runs_of.one_size(row, runs, recipe.config(cell, {}, line), remarks) if runs else ()
        return Material(recipe, Gathered(found, tuple(remarks)))

    def runs(self, cell: RecipeCell, line: Line) -> list[Run]:
        """Those of a row in a column, by seed."""
        return list(self.found.runs.get((cell.folder, line.name), ()))

    def every(self, cell: RecipeCell) -> list[Run]:
        """Those of all rows of a column."""
        return [run for line in self.recipe.lines_of(cell) for run in self.runs(cell, line)]

    @property
    def complete(self) -> bool:
        """Whether every row of every column has finished runs, all with the same seeds."""
        pairs = [(cell, line) for cell in self.recipe.cells for line in self.recipe.lines_of(cell)]
        seeds = {frozenset(run.seed for run in self.runs(cell, line)) for cell, line in pairs}
        return len(seeds) == 1 and frozenset() not in seeds

    def about(self, cell: RecipeCell) -> str:
        """Data, partition, clients, rounds and seeds of a column's runs, and what of it is not as in the paper."""
        runs = self.every(cell)
        federation, config = runs[0].federation, runs[0].config
        partition = f", {config['partition']}" if config.get("partition") else ""
        seeds = sorted({run.seed for run in runs if run.seed is not None})
        rounds = sorted({run.planned or run.reached for run in runs})
        told = (f"{federation.name}{partition}, {federation.clients} clients, {config['model']}, "
                f"{' or '.join(map(str, rounds))} round{'s' * (rounds[-1] != 1)}, "
                f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}")  # fmt: skip
        missing = [line.name for line in self.recipe.lines_of(cell) if not self.runs(cell, line)]
        rest = f"Not yet run: {', '.join(missing)}." if missing else ""
        return " ".join(filter(None, (f"{told}.", self._departures(cell), rest)))

    def _departures(self, cell: RecipeCell) -> str:
        """What of the runs is not the paper's: size, data, network or epochs, in a sentence."""
        full = self.recipe.config(cell, {})
        pairs = [(n, run.config.get(n), getattr(full, n)) for run in self.every(cell) for n in SETTING]
        told = dict.fromkeys(f"{n} {x or 'all'} instead of {y or 'all'}" for n, x, y in pairs if x != y)
        return f"Not as in the paper: {', '.join(told)}." if told else ""


def collect(recipe: Recipe, root: Path, asked: RunRequest, figure: str) -> Material:
    """The runs of a table under `root`; those that are missing are run, and if they cannot be, a sentence says so.

    Where neither seeds nor a size are asked for, finished runs are taken as they are if all rows have the same seeds;
    else these seeds, or the table's own, of that size. With `places`, those that lie there are taken and none is run.
    """
    if asked.places:
        return _read(recipe, asked.places, figure)
    place = root / recipe.id
    if asked.seeds is None and asked.scale == 1 and not asked.more.keys() & set(runs_of.SIZE):
        found = Material.below(recipe, place)
        if found.complete:
            return found
    try:
        runs_of.check_place(known_tables()[recipe.id], place)
        runs_of.run_cells(recipe, place, asked)
    except ValueError as error:
        raise ValueError(f"{figure} is drawn from runs of {recipe.id}, and what is missing of them in {place} "
                         f"cannot be run: {error}") from error  # fmt: skip
    return Material.below(recipe, place, asked.seeds or recipe.seeds)


def _read(recipe: Recipe, places: Sequence[Path], figure: str) -> Material:
    """The runs of a table in folders and packed files of several machines; columns without any are left out."""
    found = runs_of.gather(known_tables()[recipe.id], runs_of.read_places(places))
    every = Material(recipe, found)
    run = tuple(cell for cell in recipe.cells if every.every(cell))
    if not run:
        raise ValueError(f"{', '.join(map(str, places))}: no run of {recipe.id} that {figure} shows is there, so "
                         "nothing was written; give folders and packed files of `posterity reproduce "
                         f"{recipe.id}`, or leave --from out to run it")  # fmt: skip
    return replace(every, recipe=replace(recipe, cells=run))


def chosen_values(runs: Sequence[Run], metric: str) -> list[float]:
    """A metric of the round that was chosen on validation samples, of each run that has it."""
    chosen = [select_round(run, "validated") for run in runs]
    return [v for each in chosen if each is not None and (v := each.value(metric)) is not None]


def spread_text(values: Sequence[float], digits: int) -> str:
    """Mean ± sample sd."""
    sd = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{sd}"


@dataclass
class FigureDrawing:
    """A figure's panels, sentences and numbers; `notes` are about what it could not show."""

    panels: Sequence[Panel]
    about: Sequence[str]  # below the title
    numbers: dict[str, Any]
    columns: int
    below: Sequence[str] = ()
    notes: tuple[str, ...] = ()


def read_models(run: Run) -> Result:
    """A finished run with the models that it delivers, and its data."""
    result = posterity.load(run.folder)
    if result.federation.absent:
        raise ValueError(f"{run.folder} is finished, but its data ({run.config.get('dataset')}) are not found here, "
                         "and what its models make of them is to be drawn: set POSTERITY_DATA")  # fmt: skip
    return result
