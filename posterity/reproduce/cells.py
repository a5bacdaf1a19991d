"""The runs of a table: those of each column a comparison of its own, finished ones skipped, killed ones resumed.

Runs lie under FOLDER/COLUMN/METHOD/seed-N, as `posterity compare` writes them; columns that show the same runs share a
folder. `gather.py` reads them again, of one machine or of several.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posterity.experiment.compare import PLAN, Watching, compare_runs
from posterity.experiment.config import Config
from posterity.experiment.place import check_out
from posterity.experiment.run import silent
from posterity.experiment.run_folder import read_json
from posterity.reproduce.recipe import Line, Recipe, RecipeCell

LEAST_ROUNDS, LEAST_CLIENTS, LEAST_SAMPLES = 2, 5, 40  # of a table that is made smaller
LEAST_ROWS = 500  # of a client, training and held out: more than any partition of a table asks for
ROWS = {"cifar10": 60_000, "cifar100": 60_000, "emnist47": 131_600, "fmnist": 70_000, "mnist": 70_000,
        "tinyimagenet": 110_000}  # fmt: skip
"""Pictures of the data sets that a table divides among its clients."""
PAGE = "table.md"
REPORT = "report.html"  # which `posterity report` and `resume` write there
SAMPLES = "data.samples"  # of every client of a generator


@dataclass(frozen=True)
class RunRequest:
    """What is asked for besides the table or the figure: how large, with which seeds, on which machine."""

    seeds: Sequence[int] | None = None  # None: the table's; of a figure, those that are there
    scale: float = 1.0
    more: Mapping[str, Any] = field(default_factory=dict)  # settings, as `posterity run` names them
    watching: Watching = lambda title, rounds: nullcontext(silent)
    jobs: int = 1
    together: bool = False
    places: Sequence[Path] = ()  # of a figure: where its runs are read, instead of running any


def check_place(recipe: Recipe, out: Path) -> None:
    """Refuse a folder with other things in it than this table's."""
    known = {PAGE, REPORT, *recipe.folders()}
    others = sorted({path.name for path in out.iterdir()} - known) if out.is_dir() else []
    if visible := [name for name in others if not name.startswith(".")]:
        raise ValueError(f"{out} holds other files ({', '.join(visible[:3])}) than runs of {recipe.id}: give an empty "
                         "or a new folder; nothing was written")  # fmt: skip
    if other := _other_table(recipe, out):
        raise ValueError(f"{out} holds {other}, and not {recipe.id}: give an empty or a new folder; nothing was "
                         "written")  # fmt: skip
    for folder in recipe.folders():
        check_out(out / folder, comparison=True)


def _other_table(recipe: Recipe, out: Path) -> str:
    """Which other table's page or runs lie in a folder, in columns of the same names; empty if none do."""
    first = (out / PAGE).read_text(encoding="utf-8").partition(":")[0] if (out / PAGE).is_file() else ""
    if first.startswith("## ") and first != f"## {recipe.id}":
        return f"the table {first.removeprefix('## ')}"
    for folder, (cell, _) in recipe.folders().items():
        if (out / folder / PLAN).is_file():
            there = tomllib.loads(read_json(out / folder / PLAN)["config"])  # of any version
            wanted = recipe.config(cell, {})
            for name in ("dataset", "partition", "model"):
                if (has := there.get(name)) != (asked := getattr(wanted, name)):
                    return f"runs of another table ({folder}: {name} {has} instead of {asked})"
    return ""


def run_cells(recipe: Recipe, out: Path, asked: RunRequest) -> None:
    """Do what is not done yet of all columns and rows."""
    seeds = list(asked.seeds or recipe.seeds)
    for folder, (cell, lines) in recipe.folders().items():
        smaller = {**shrunk(recipe, cell, asked.scale), **asked.more}
        for config, names in comparisons(recipe, cell, lines, smaller):
            compare_runs(config, names, seeds, out / folder, asked.watching, asked.jobs, asked.together)


def comparisons(
    recipe: Recipe, cell: RecipeCell, lines: Sequence[Line], more: Mapping[str, Any]
) -> list[tuple[Config, list[str]]]:
    """A column's rows by their setting. That of most rows comes last: its plan stays in the folder, for `resume`."""
    found: list[tuple[Config, list[str]]] = []
    for line in sorted(lines, key=lambda each: not each.settings):
        config = recipe.config(cell, more, line)
        same = next((names for other, names in found if other == config), None)
        if same is None:
            found.append((config, [line.method]))
        else:
            same.append(line.method)
    return found


def shrunk(recipe: Recipe, cell: RecipeCell, scale: float) -> dict[str, Any]:
    """A column that is `scale` of its size: fewer rounds and epochs, and fewer clients with as many samples each.

    Where there would be fewer clients than a table needs, what is left of `scale` is taken from their samples. A
    generator's clients stay, and have fewer samples.
    """
    if not 0 < scale <= 1:
        raise ValueError(f"--scale must be above 0 and at most 1; {scale:g} was given")
    full = recipe.config(cell, {})
    if scale == 1:
        return {}
    made: dict[str, Any] = {"rounds": max(LEAST_ROUNDS, round(full.rounds * scale))}
    if full.local_epochs:
        made["local_epochs"] = max(1, round(full.local_epochs * scale))
    if SAMPLES in full.set:
        made["set"] = {SAMPLES: max(LEAST_SAMPLES, round(int(full.set[SAMPLES]) * scale))}
    return {**made, **_fewer_clients(full, scale)}


def _fewer_clients(full: Config, scale: float) -> dict[str, Any]:
    if not full.clients:
        return {}
    made: dict[str, Any] = {"clients": max(min(full.clients, LEAST_CLIENTS), round(full.clients * scale))}
    if full.partition is not None:  # the data's own clients have their samples
        each = float((full.subset or "100%").rstrip("%")) / full.clients  # % of the data
        rows = each / 100 * ROWS.get(full.dataset, 0)
        kept = max(min(1.0, full.clients * scale / made["clients"]), min(1.0, LEAST_ROWS / rows) if rows else 1.0)
        made["subset"] = f"{kept * each * made['clients']:g}%"
    late = int(full.newcomers) if full.newcomers.isdecimal() else 0
    if late:
        made["newcomers"] = str(max(1, round(late * made["clients"] / full.clients)))
    members = made["clients"] - int(made.get("newcomers", 0))
    if full.participation.isdecimal() and int(full.participation) > members // 2:
        made["participation"] = "50%"
    return made


__all__ = ["PAGE", "SAMPLES", "RunRequest", "check_place", "comparisons", "run_cells", "shrunk"]
