"""Every table from its first run to its page, by the functions of the command, on next to nothing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from posterity.experiment.compare import planned
from posterity.papers.page import entries, markdown, number
from posterity.papers.recipe import Line, Recipe, recipes
from posterity.papers.runs import RunRequest, comparisons, gather, read_places, run_cells, shrunk
from posterity.settings.config import Config, to_toml

from .stand_in import stand_in

SCALE = 0.001
TINY = {"rounds": 2, "engine": "stacked", "convolution": "native", "evaluate_every": 2, "subset": None,
        "newcomer_epochs": 1}  # fmt: skip
DONE: dict[str, Path] = {}  # configuration of a run -> where it is: on noise many tables have the same ones


def key(config: Config) -> str:
    return to_toml(replace(config, set=dict(sorted(config.set.items()))))


def make(recipe: Recipe, out: Path) -> str:
    """Run a table with one seed; every column has a number of every row."""
    places = {}
    for folder, (cell, lines) in recipe.folders().items():
        for config, names in comparisons(recipe, cell, lines, {**shrunk(recipe, cell, SCALE), **TINY}):
            places |= {path: key(each) for path, each in planned(config, names, [0], out / folder)}
    for path, config in places.items():
        if config in DONE:
            shutil.copytree(DONE[config], path)  # as from another machine
    run_cells(recipe, out, RunRequest([0], SCALE, TINY))
    DONE.update({config: path for path, config in places.items()})
    found = gather(recipe, read_places([out]))
    assert found.remarks == ()
    assert sum(map(len, found.runs.values())) == len(places)
    for cell in recipe.cells:
        for entry in entries(recipe, cell, found):
            assert number(entry.ours["last"]) is not None, (cell.name, entry.line.name)
            assert entry.paper == entry.line.paper.get(cell.name, "")
            assert entry.seeds == 1
    return markdown(recipe, found)


def some(recipe: Recipe, lines: tuple[Line, ...]) -> Recipe:
    """The columns of the first runs of a table, and some rows."""
    return replace(recipe, lines=lines, cells=tuple(c for c in recipe.cells if c.folder == recipe.cells[0].folder))


@pytest.mark.parametrize("name", list(recipes()))
def test_a_column_of_every_table(name, tmp_path):
    """The first and the last row."""
    recipe = stand_in(recipes()[name], small=True)
    page = make(some(recipe, (*recipe.lines[:1], *recipe.lines[1:][-1:])), tmp_path)
    assert f"## {name}: " in page
    assert "Not at the paper's size: " in page
    assert "rounds 2 instead of " in page


@pytest.mark.everything
@pytest.mark.parametrize("name", list(recipes()))
def test_all_of_every_table(name, tmp_path):
    make(stand_in(recipes()[name], small=True), tmp_path)


@pytest.mark.everything
@pytest.mark.parametrize("name", ["A-T2", "B-T1", "B-T3", "M-T2", "N-T1", "V-T1a"])
def test_a_table_with_the_papers_network(name, tmp_path):
    recipe = stand_in(recipes()[name], small=False)
    make(some(recipe, recipe.lines[-1:]), tmp_path)
