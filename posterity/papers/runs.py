"""The runs of a table: those of each column a comparison of its own, finished ones skipped, killed ones resumed.

Runs lie under FOLDER/COLUMN/METHOD/seed-N, as `posterity compare` writes them; columns that show the same runs share a
folder. `gather` finds them again, in folders and files of packed runs of one machine or of several. Where a run lies
does not matter, its settings say to which column and row it belongs; how large it is (rounds, clients, data) may
differ. Columns that differ in nothing else are told apart by the paper's own size, and smaller ones by the name of
their folder. A run that is found twice counts once.
"""

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posterity.experiment.compare import Watching, compare_runs, configs_of
from posterity.experiment.run import silent
from posterity.papers.recipe import Line, Recipe, RecipeCell
from posterity.papers.shown import Shown, read_value
from posterity.report import Run, load_runs
from posterity.report.findings import goal_column
from posterity.report.table import goal, progress, text
from posterity.runs.files import check_out
from posterity.settings.config import Config, from_table, settings_where

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
    page = (out / PAGE).read_text(encoding="utf-8").partition(":")[0] if (out / PAGE).is_file() else ""
    if page.startswith("## ") and page != f"## {recipe.id}":
        raise ValueError(f"{out} holds the table {page[3:]}, and not {recipe.id}: give an empty or a new folder; "
                         "nothing was written")  # fmt: skip
    for folder in recipe.folders():
        check_out(out / folder, comparison=True)


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


SIZE = settings_where(lambda use: use.size)
WHAT = ("data", "division", "cohort", "training", "method")
ESSENTIAL = settings_where(lambda use: use.changes in WHAT and not use.size)  # makes a run another one, of any size
SAME = 1e-5  # relative: two runs on the same kind of machine, one of them packed with seven digits
Place = tuple[str, str]  # folder of a column, name of a row
Size = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Gathered:
    """The finished runs of a table by column and row, one a seed; and what is to be said about others."""

    runs: Mapping[Place, tuple[Run, ...]]
    remarks: tuple[str, ...] = ()

    def of(self, cell: RecipeCell) -> list[Run]:
        return [run for (folder, _), runs in self.runs.items() if folder == cell.folder for run in runs]


def read_places(places: Sequence[Path]) -> list[Run]:
    """All runs at or below these folders, or in these files of packed runs."""
    return [run for place in places for run in load_runs(place)]


def gather(recipe: Recipe, runs: Sequence[Run]) -> Gathered:
    """The runs that belong to a table."""
    wanted = dict(_wanted(recipe))
    remarks: list[str] = []
    found: dict[Place, dict[int, Run]] = {}
    for run in runs:
        place = _place(run, wanted, remarks)
        if place is None:
            continue
        if not run.finished or run.seed is None:
            remarks.append(f"{run.label}, seed {run.seed} ({run.folder}) is left out: {progress(run)}")
            continue
        mine = found.setdefault(place, {})
        if (first := mine.setdefault(run.seed, run)) is not run:
            mine[run.seed] = _one_of(first, run, wanted[place], remarks)
    kept = {place: one_size(place, list(seeds.values()), wanted[place], remarks) for place, seeds in found.items()}
    return Gathered(kept, tuple(dict.fromkeys(remarks)))


def _wanted(recipe: Recipe) -> Iterator[tuple[Place, Config]]:
    """What the runs of every column and row are to be run with."""
    for folder, (cell, lines) in recipe.folders().items():
        names = {line.method: line.name for line in lines}
        for config, methods in comparisons(recipe, cell, lines, {}):
            for variant, each in configs_of(config, methods):
                yield (folder, names[variant.name]), each


def _place(run: Run, wanted: Mapping[Place, Config], remarks: list[str]) -> Place | None:
    """The column and row of a run; None where it has none, or may have several."""
    try:
        config = from_table(tomllib.loads(run.config_text))
    except ValueError:  # of another version, or of another's method
        return None
    fitting = [place for place, each in wanted.items() if _essence(each) == _essence(config)]
    exact = [place for place in fitting if size_of(wanted[place]) == size_of(config)]
    named = [place for place in fitting if place[0] in run.folder.parts]
    for some in (exact, named, fitting):
        if len(some) == 1:
            return some[0]
    if fitting:
        columns = " or ".join(folder for folder, _ in fitting)
        remarks.append(f"{run.label}, seed {run.seed} ({run.folder}) may belong to {columns} and is in none: its size "
                       "is not the paper's, and its folder does not say which")  # fmt: skip
    return None


def _essence(config: Config) -> tuple[tuple[str, str], ...]:
    """What makes a run another one, whatever its size."""
    values = {name: str(getattr(config, name)) for name in ESSENTIAL}
    return tuple(sorted({**values, **{f"set.{n}": str(v) for n, v in config.set.items() if n != SAMPLES}}.items()))


def size_of(config: Config) -> Size:
    values = {name: getattr(config, name) for name in SIZE} | {SAMPLES: config.set.get(SAMPLES)}
    return tuple((name, str(value)) for name, value in values.items())


def _size(run: Run) -> Size:
    return size_of(from_table(tomllib.loads(run.config_text)))


def _one_of(first: Run, second: Run, wanted: Config, remarks: list[str]) -> Run:
    """Of two runs of a seed the one of the paper's size, or the first; and a remark if they are not the same."""
    what = f"{first.label}, seed {first.seed}"
    if (sizes := (_size(first), _size(second)))[0] != sizes[1]:
        remarks.append(f"{what} is there in two sizes ({first.folder}: {_differences(*sizes)}; {second.folder}: "
                       f"{_differences(*sizes[::-1])})")  # fmt: skip
        return second if sizes[1] == size_of(wanted) else first
    column = goal_column(first)
    a, b = (read_value(run, "last", _shown(run)) for run in (first, second))
    if a is not None and b is not None and not math.isclose(a, b, rel_tol=SAME):
        told = ", ".join(f"{text(x, None, column)} in {run.folder}" for x, run in ((a, first), (b, second)))
        remarks.append(f"{what} was run twice with different results at the last round ({told}): the first counts")
    return first


def _shown(run: Run) -> Shown:
    return Shown("members" if any(run.federation.test) else "common", goal(run).name)


def one_size(place: Place, runs: Sequence[Run], wanted: Config, remarks: list[str]) -> tuple[Run, ...]:
    """The runs of one size, the paper's if there are some: sizes are not averaged."""
    runs = sorted(runs, key=lambda run: run.seed or 0)
    sizes = [_size(run) for run in runs]
    kept = size_of(wanted) if size_of(wanted) in sizes else sizes[0]
    for run, size in zip(runs, sizes, strict=True):
        if size != kept:
            remarks.append(f"{place[1]}, seed {run.seed} ({run.folder}) is left out, because it has another size than "
                           f"other seeds: {_differences(size, kept)}")  # fmt: skip
    return tuple(run for run, size in zip(runs, sizes, strict=True) if size == kept)


def departure(recipe: Recipe, cell: RecipeCell, line: Line, found: Gathered) -> str:
    """How the size of a row's runs differs from the paper's, in words; empty where it does not, or nothing was run."""
    runs = found.runs.get((cell.folder, line.name), ())
    return _differences(_size(runs[0]), size_of(recipe.config(cell, {}, line))) if runs else ""


def other_size(recipe: Recipe, cell: RecipeCell, found: Gathered) -> str:
    """What the runs of a column have otherwise than the paper, in sentences: their size, and a part of a data set."""
    names: dict[str, list[str]] = {}
    for line in recipe.lines_of(cell):
        if found.runs.get((cell.folder, line.name)):
            names.setdefault(departure(recipe, cell, line, found), []).append(line.name)
    several = len(names) > 1
    told = [f"{size} ({', '.join(rows)})" if several else size for size, rows in sorted(names.items()) if size]
    parts = recipe.config(cell, {}).dataset.split("+")
    notes = sorted({n for run in found.of(cell) for n in run.federation.notes if n.partition(":")[0] in parts})
    sentences = {"Not at the paper's size": told, "About the data": notes}
    said = [f"{what}: {'; '.join(each)}." for what, each in sentences.items() if each]
    return " ".join([*said, *["Only rows of one size are compared."] * several])


def _differences(size: Size, other: Size) -> str:
    """How a size differs from another one."""
    pairs = [(name, x, y) for (name, x), (_, y) in zip(size, other, strict=True) if x != y]
    return " and ".join(f"{name} {_said(x)} instead of {_said(y)}" for name, x, y in pairs)


def _said(value: str) -> str:
    return "all" if value == "None" else value
