"""What the tables of the papers cost: rounds of FedAvg in every table's own setting, times what its rows cost more.

    python benchmarks/minutes.py [--device cuda] [--engine graph] [--only N-T1,B-T3] [--rounds 4] --json FILE
    python benchmarks/minutes.py --only P-T1 --rows …       every row by itself, not FedAvg for all of them
    python benchmarks/minutes.py --table FILE [FILE …]      Markdown from such JSON

Pictures are noise of the data set's own shape, number and classes (time does not depend on pixels), everything else is
the recipe's: network, clients, partition, participation, epochs, batch. A round is timed without evaluation, as the
median of all but the first two, in which engines record. Rounds of the large networks (`HEAVY`) take minutes: these are
timed with one epoch and about `STEPS` full batches a client, and the time of a sample is what counts. A row costs what
`costs.py` measured for its method in rounds of FedAvg (`docs/results/raw/costs-compiled-*.json`; on pFedVMP's network),
1 where it was not measured: those rows are named. Tables whose data are embedded are left out: they run on a laptop.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import torch

from posterity.data import Pool
from posterity.data.registry import available
from posterity.experiment.compare import configs_of
from posterity.experiment.run import start_run
from posterity.papers.recipe import Recipe, RecipeCell, recipes
from posterity.runs.lines import rounds_of
from posterity.settings.config import Config

RAW = Path(__file__).parents[1] / "docs" / "results" / "raw"
RECORDED = 2  # rounds in which engines record
HEAVY = ("resnet", "office")  # how the names of networks begin whose rounds are long
STEPS = 4  # of a client of a heavy network
FREE = ("ft", "calibrated")  # wrappers that change nothing in a round
USUAL = {"fedbps": "ggn"}  # what a method does where nothing else is asked for
WAITS = ("fedbe",)  # whose rounds are longer by what the server does from Python, one step after another
EMBEDDED = {each.name for each in available() if each.embedded}


@dataclass(frozen=True)
class Form:
    """What a data set is made of."""

    rows: int
    channels: int
    side: int
    classes: int
    owners: int = 0


FORMS = {
    "cifar10": Form(60_000, 3, 32, 10),
    "cifar100": Form(60_000, 3, 32, 100),
    "mnist": Form(70_000, 1, 28, 10),
    "fmnist": Form(70_000, 1, 28, 10),
    "emnist47": Form(131_600, 1, 28, 47),
    "tinyimagenet": Form(110_000, 3, 64, 200),
    "office31": Form(4_110, 3, 224, 31, 3),
    "femnist": Form(40_000, 1, 28, 62, 200),
    "celeba": Form(4_000, 3, 32, 2, 200),
}


MIXED = {"cifar100": 60_000, "celeba": 200_288, "femnist": 805_263}
"""Rows of whole data sets (LEAF's paper has the last two): a mix is divided among its clients with all of them."""


def form_of(dataset: str) -> Form:
    """Of a data set; for a mix that of CIFAR-100, whose pictures all of them are made like."""
    return FORMS["cifar100" if "+" in dataset else dataset]


def in_a_mix(dataset: str) -> float:
    """How many times the rows that are timed a mix has, and so its clients and their rounds."""
    return sum(MIXED[name] for name in dataset.split("+")) / form_of(dataset).rows if "+" in dataset else 1.0


def noise(data_dir: object, seed: int, *, of: str = "cifar10", rows: int = 0) -> Pool:
    """So many rows of noise in the form of a data set, or as many as it has."""
    form, draw = form_of(of), torch.Generator().manual_seed(seed)
    rows = rows or form.rows
    x = torch.rand(rows, form.channels, form.side, form.side, generator=draw)
    y = torch.randint(form.classes, (rows,), generator=draw)
    names = tuple(f"w{k}" for k in range(form.owners))
    owner = torch.arange(rows) % form.owners if names else None
    return Pool("noise", x, y, form.classes, owner=owner, owner_names=names, official_test=torch.arange(rows) % 6 == 0)


@dataclass(frozen=True)
class Cost:
    """What a round of a method takes: so many of FedAvg's, and seconds that no network makes longer."""

    rounds: float = 1.0
    seconds: float = 0.0


def costs() -> dict[str, Cost]:
    """Of each method that was measured; a later file's row takes the place of an earlier one's."""
    found: dict[str, Cost] = {}
    for file in sorted(RAW.glob("costs-compiled-*.json")):
        rows = {row["case"]["name"]: row["timing"] for row in json.loads(file.read_text())["rows"]}
        took = {name: timing["ms"] for name, timing in rows.items() if timing and timing.get("ms")}
        unit = took["fedavg"]
        found |= {n: Cost(1.0, (ms - unit) / 1000) if n in WAITS else Cost(ms / unit) for n, ms in took.items()}
    return found


def cost(method: str, known: Mapping[str, Cost]) -> Cost | None:
    """Of a row, by its method's name and settings; None where nothing was measured.

    A wrapper that was not measured around this host costs what it does around FedAvg; `+drop` prunes with `+metavd`'s
    posterior, which it therefore includes.
    """
    chosen = re.search(r"(?:mode|curvature)=(\w+)", method)
    host, *wrappers = re.sub(r"\[[^]]*\]|@paper", "", method).split("+")
    wrappers = [each for each in wrappers if each not in FREE and not (each == "metavd" and "drop" in wrappers)]
    mode = chosen[1] if chosen else USUAL.get(host, "")
    if (full := "+".join([host, *wrappers])) in known:
        return known[full]
    value = known.get(f"{host}:{mode}", known.get(host))
    times = prod(known[f"fedavg+{each}"].rounds for each in wrappers)
    return None if value is None else Cost(value.rounds * times, value.seconds)


def settings(recipe: Recipe) -> Iterator[tuple[RecipeCell, Config]]:
    """Every setting of a table in which something is run."""
    for cell, _ in recipe.folders().values():
        config = recipe.config(cell, {})
        if config.dataset not in EMBEDDED:
            yield cell, config


def work(config: Config) -> tuple[str, ...]:
    """What decides the time of a round: two columns with the same need be timed once."""
    names = ("subset", "model", "clients", "split", "participation", "local_epochs", "batch_size")
    kind = str(config.partition).partition(":")[0]  # whether clients can be full matters, not by how much they differ
    subset, *rest = (str(getattr(config, name)) for name in names)
    return subset, kind, str(form_of(config.dataset)), *rest


def seconds_of(config: Config, timed: Mapping[tuple[str, ...], float | str]) -> float | str | None:
    """Of a round as it was timed; or, by its rows, as one was that divides another share of the same data."""
    asked, *rest = work(config)
    if (asked, *rest) in timed:
        return timed[(asked, *rest)]
    others = [(share(key[0]), value) for key, value in timed.items() if list(key[1:]) == rest]
    return next((value * share(asked) / part for part, value in others if not isinstance(value, str)), None)


def share(subset: str) -> float:
    """How much of the data, in per cent."""
    return 100.0 if subset == "None" else float(subset.rstrip("%"))


def lightened(config: Config) -> tuple[Config, int, float]:
    """The setting that is timed, its rows (0 for all), and the rounds of it that make one of `config`."""
    if not str(config.model).startswith(HEAVY):
        return config, 0, 1.0
    form = form_of(config.dataset)
    rows = min(form.rows, int((config.clients or form.owners) * config.batch_size * STEPS * 1.25))
    return replace(config, local_epochs=1), rows, config.local_epochs * form.rows / rows


def as_fedavg(config: Config) -> Config:
    """FedAvg in this setting."""
    return replace(config, method="fedavg", set={k: v for k, v in config.set.items() if k.startswith("model.")})


def rows_of(recipe: Recipe) -> Iterator[tuple[RecipeCell, str, Config]]:
    """Every row of every setting of a table, with its own hyper-parameters."""
    for cell, lines in recipe.folders().values():
        for line in lines:
            ((_, config),) = configs_of(recipe.config(cell, {}, line), [line.method])
            yield cell, line.method, config


def time_round(config: Config, more: Mapping[str, Any], rounds: int) -> float:
    """Seconds of a round in this setting."""
    light, rows, times = lightened(config)
    noisy = replace(light, dataset="minutes:noise", rounds=rounds + RECORDED, evaluate_every=rounds + RECORDED,
                    set={**config.set, "data.of": config.dataset, "data.rows": str(rows)}, **more)  # fmt: skip
    found = start_run(noisy, None)
    seconds = [line.seconds for line in rounds_of(found.lines)]
    return times * statistics.median(seconds[RECORDED:-1])  # the last one has the evaluation in it


def measure(only: list[str], more: Mapping[str, Any], rounds: int, rows: bool = False) -> Iterator[dict[str, Any]]:
    """Every table's columns with the seconds of their rounds, in the order asked for; with `rows` those of each row."""
    timed: dict[tuple[str, ...], float | str] = {}
    for recipe in [recipes()[name] for name in only] if only else recipes().values():
        usual = ((cell, "", as_fedavg(config)) for cell, config in settings(recipe))
        for cell, name, config in rows_of(recipe) if rows else usual:
            key, began = (name, *work(config)), time.perf_counter()
            if key not in timed:
                try:
                    timed[key] = time_round(config, more, rounds)
                except (ValueError, RuntimeError) as error:
                    timed[key] = str(error).splitlines()[0][:200]
            took = f"({time.perf_counter() - began:.0f} s)"
            print(recipe.id, cell.name, name, timed[key], took, file=sys.stderr, flush=True)
            told = {"table": recipe.id, "folder": cell.folder, "rounds": config.rounds, "seconds": timed[key]}
            yield told | {"method": name} if rows else told


def minutes(recipe: Recipe, seconds: Mapping[str, float], known: Mapping[str, Cost]) -> tuple[float, list[str]]:
    """Of one seed of a table, and the rows whose cost was taken for FedAvg's."""
    total, missing = 0.0, []
    for folder, (cell, lines) in recipe.folders().items():
        rounds = recipe.config(cell, {}).rounds if folder in seconds else 0
        for line in lines:
            if (found := cost(line.method, known)) is None:
                missing.append(line.method)
                found = Cost()
            total += rounds * (seconds.get(folder, 0.0) * found.rounds + found.seconds)
    return total / 60, sorted(set(missing))


def stored(files: list[Path]) -> list[dict[str, Any]]:
    """What was measured."""
    return [row for file in files for row in json.loads(file.read_text())["rows"]]


def tabulate_rows(files: list[Path]) -> str:
    """Markdown: a line for every row that was timed by itself, with its cost in rounds of FedAvg."""
    found = [row for row in stored(files) if "method" in row]
    unit = {(row["table"], row["folder"]): row["seconds"] for row in found if row["method"] == "fedavg"}
    lines = ["| table | column | method | s a round | rounds of FedAvg |", "|---|---|---|--:|--:|"] if found else []
    for row in found:
        place, seconds = (row["table"], row["folder"]), row["seconds"]
        ratio = "" if place not in unit or isinstance(seconds, str) else f"{seconds / unit[place]:.2f}"
        told = seconds if isinstance(seconds, str) else f"{seconds:.3f}"
        lines.append(f"| {place[0]} | {place[1]} | {row['method']} | {told} | {ratio} |")
    return "\n".join(lines)


def longer(timed: float | str, config: Config) -> float | str:
    """The seconds of a round with as many rows as this setting has; of what was refused, why."""
    return timed if isinstance(timed, str) else timed * in_a_mix(config.dataset)


def tabulate(files: list[Path]) -> str:
    """Markdown: a line for every table with a setting that was timed, in it or in another table."""
    timed: dict[tuple[str, ...], float | str] = {}
    for row in [row for row in stored(files) if "method" not in row]:
        recipe = recipes()[row["table"]]
        key = work(recipe.config(recipe.folders()[row["folder"]][0], {}))
        if key not in timed or not isinstance(row["seconds"], str):  # a time counts, whatever was refused elsewhere
            timed[key] = row["seconds"]
    lines = ["| table | s a round of FedAvg | minutes a seed | rows taken for FedAvg's cost |", "|---|--:|--:|---|"]
    for recipe in recipes().values():
        asked = {cell.folder: config for cell, config in settings(recipe)}
        mine = {folder: longer(value, each) for folder, each in asked.items()
                if (value := seconds_of(each, timed)) is not None}  # fmt: skip
        seconds = {folder: value for folder, value in mine.items() if not isinstance(value, str)}
        if not mine:
            continue
        total, missing = minutes(recipe, seconds, costs())
        each = ", ".join(dict.fromkeys(v if isinstance(v, str) else f"{v:.3f}" for v in mine.values()))
        partly = "" if len(seconds) == len(asked) else " and more"
        lines.append(f"| {recipe.id} | {each} | {total:.0f}{partly} | {', '.join(missing)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="GPU minutes of every table.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--engine", default="graph")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--only", default="")
    parser.add_argument("--rows", action="store_true")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", type=Path, default=Path("minutes.json"))
    parser.add_argument("--table", type=Path, nargs="+")
    args = parser.parse_args()
    if args.table:
        print(*filter(None, (tabulate(args.table), tabulate_rows(args.table))), sep="\n\n")
        return
    more = {"device": args.device, "engine": args.engine, "precision": args.precision,
            "convolution": "triton" if args.device == "cuda" else "auto"}  # fmt: skip
    told: dict[str, Any] = {"run": {"torch": torch.__version__, **more, "rounds": args.rounds}, "rows": []}
    for row in measure([name for name in args.only.split(",") if name], more, args.rounds, args.rows):
        told["rows"].append(row)
        args.json.write_text(json.dumps(told, indent=1))  # after every row: GPU time may end at any


if __name__ == "__main__":
    sys.modules["minutes"] = sys.modules["__main__"]  # `minutes:noise` names this file, also when it is run
    main()
