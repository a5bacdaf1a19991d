"""The runs of a table: each column a comparison of its own, in any order, finished ones skipped, killed ones resumed.

Runs lie under FOLDER/COLUMN/METHOD/seed-N, as `posterity compare` writes them, so that folders of several machines
merge by being copied into one another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posterity.experiment.compare import Watching, compare_runs
from posterity.experiment.place import check_out
from posterity.report import Run
from posterity.reproduce.recipe import Recipe, RecipeCell

LEAST_ROUNDS, LEAST_CLIENTS = 2, 5  # of a table that is made smaller
PAGE = "table.md"
SIZE = ("rounds", "clients", "subset")


def check_place(recipe: Recipe, out: Path) -> None:
    """Refuse a folder with other things in it than this table's."""
    known = {PAGE, *(cell.folder for cell in recipe.cells)}
    others = sorted({path.name for path in out.iterdir()} - known) if out.is_dir() else []
    if others:
        raise ValueError(f"{out} holds other files ({', '.join(others[:3])}) than runs of {recipe.id}: give an empty "
                         "or a new folder; nothing was written")  # fmt: skip
    for cell in recipe.cells:
        check_out(out / cell.folder, comparison=True)


def run_cells(
    recipe: Recipe,
    out: Path,
    seeds: Sequence[int],
    scale: float,
    more: Mapping[str, Any],
    watching: Watching,
    jobs: int = 1,
    together: bool = False,
) -> None:
    """Do what is not done yet of all columns and rows; `more` are settings of the machine, or of the user."""
    for cell in recipe.cells:
        names = [line.method for line in recipe.lines_of(cell)]
        config = recipe.config(cell, {**shrunk(recipe, cell, scale), **more})
        compare_runs(config, names, list(seeds), out / cell.folder, watching, jobs, together)


def shrunk(recipe: Recipe, cell: RecipeCell, scale: float) -> dict[str, Any]:
    """A column that is `scale` of its size: fewer rounds, and fewer clients with as many samples each."""
    if not 0 < scale <= 1:
        raise ValueError(f"--scale must be above 0 and at most 1; {scale:g} was given")
    full = recipe.config(cell, {})
    if scale == 1:
        return {}
    made: dict[str, Any] = {"rounds": max(LEAST_ROUNDS, round(full.rounds * scale))}
    if full.clients:
        made["clients"] = max(min(full.clients, LEAST_CLIENTS), round(full.clients * scale))
        share = float((full.subset or "100%").rstrip("%")) * made["clients"] / full.clients
        made["subset"] = f"{share:g}%"
        if full.participation.isdecimal() and int(full.participation) > made["clients"] // 2:
            made["participation"] = "50%"
    return made


def other_size(recipe: Recipe, cell: RecipeCell, runs: Sequence[Run]) -> str:
    """What the runs of a column have otherwise than the paper, in a sentence; nothing if they are of its size."""
    full = recipe.config(cell, {})
    wanted = {name: getattr(full, name) for name in SIZE}
    found = {tuple((n, run.config.get(n)) for n in SIZE if run.config.get(n) != wanted[n]) for run in runs}
    told = sorted(" and ".join(f"{n} {x} instead of {wanted[n] or 'all'}" for n, x in some) for some in found if some)
    return f"Not at the paper's size: {'; '.join(told)}." if told else ""


__all__ = ["PAGE", "check_place", "other_size", "run_cells", "shrunk"]
