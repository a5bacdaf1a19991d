"""The runs of a table: each column a comparison of its own, in any order, finished ones skipped, killed ones resumed.

Runs lie under FOLDER/COLUMN/METHOD/seed-N, as `posterity compare` writes them, so that folders of several machines
merge by being copied into one another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posterity.experiment.compare import Watching, compare_runs
from posterity.experiment.config import Config
from posterity.reproduce.recipe import Recipe, RecipeCell

LEAST_ROUNDS, LEAST_CLIENTS = 2, 5  # of a table that is made smaller


def run_cells(
    recipe: Recipe,
    out: Path,
    seeds: Sequence[int],
    more: Mapping[str, Any],
    watching: Watching,
    jobs: int = 1,
    together: bool = False,
) -> None:
    """Do what is not done yet of all columns and rows."""
    for cell in recipe.cells:
        names = [line.method for line in recipe.lines_of(cell)]
        compare_runs(
            recipe.config(cell, shrunk(recipe, cell, more)),
            names,
            list(seeds),
            out / cell.folder,
            watching,
            jobs,
            together,
        )


def smaller(recipe: Recipe, scale: float) -> dict[str, Any]:
    """Settings of a table that is `scale` of its size: fewer rounds, and fewer clients with as many samples each."""
    if not 0 < scale <= 1:
        raise ValueError(f"--scale must be above 0 and at most 1; {scale:g} was given")
    if scale == 1:
        return {}
    base = Config()
    rounds = int(recipe.settings.get("rounds", base.rounds))
    made: dict[str, Any] = {"rounds": max(LEAST_ROUNDS, round(rounds * scale))}
    if "clients" in recipe.settings:
        many = int(recipe.settings["clients"])
        made["clients"] = max(min(many, LEAST_CLIENTS), round(many * scale))
    return made


def shrunk(recipe: Recipe, cell: RecipeCell, size: Mapping[str, Any]) -> dict[str, Any]:
    """`size`, and the share of the data that leaves a cell's clients as many samples as they have in the table."""
    every = {**recipe.settings, **cell.settings}
    if "clients" not in size or "clients" not in every:
        return dict(size)
    share = _share(str(every.get("subset") or "100%")) * size["clients"] / int(every["clients"])
    taken = str(every.get("participation", "all"))
    some = {"participation": "50%"} if taken.isdecimal() and int(taken) > size["clients"] // 2 else {}
    return {**size, "subset": f"{100 * share:g}%", **some}


def _share(text: str) -> float:
    number = re.fullmatch(r"([0-9.]+)%", text)
    if number is None:
        raise ValueError(f"subset = {text!r} of a recipe is no share in percent")
    return float(number[1]) / 100


__all__ = ["run_cells", "shrunk", "smaller"]
