"""FedMAP, Tables 1, 3 and 4: balanced accuracy of every client on the synthetic federations.

    python recipes/fedmap_tables.py --out DIR [--epochs 1,2,3] [--rounds 80] [--seeds 3] [--jobs 2] [--together]
    python recipes/fedmap_tables.py --from docs/results/raw/fedmap.jsonl

Ten clients, label, feature and quantity skew. MLP 30-32-16-1, plain and with batch norm; Adam 1e-3, batch 64, 50 local
epochs (authors' code) or those of --epochs, 70/30 split, all clients every round. Tables are shown at 20, 40 and 60
rounds (--rounds), all from one run: with a constant step size the first 20 rounds of the long run are the short one.
Nothing is chosen: the number is that of the last round, on all that is held out. `paper` data has the nuisance variance
2 of the paper's appendix, `code` the 9 of the authors' programme.

DIR is a tree of run folders; runs of other than 50 epochs are below DIR/epochs-E. A second call does only what is
missing; with more --rounds it goes on where the shorter runs ended. DIR/tables.md is the page, DIR/tables.jsonl the raw
numbers of what is finished (fedmap_page.py); --no-run only writes them. --from prints the page of such a file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from common import perform, reached, read_run, read_score
from fedmap_page import METHODS, METRIC, SKEWS, Line, page

from posterity.experiment.compare import Task
from posterity.runs import files
from posterity.settings.config import Config

OWN = {"fedprox": {"mu": 2.0}}  # settings of one method alone
EPOCHS = 50  # the authors' number
FACTS = ("commit", "posterity", "torch", "python", "machine", "engine")  # of a source, where a run has them


@dataclass(frozen=True)
class BatchPlan:
    """What to run and where."""

    out: Path
    seeds: tuple[int, ...] = (0, 1, 2)
    rounds: int = 60
    every: int = 20  # rounds between evaluations, of which each costs as much as a round; the authors' number of rounds
    epochs: int = EPOCHS
    samples: int = 2000
    engine: str = "auto"
    presets: tuple[str, ...] = ("paper", "code")
    models: tuple[str, ...] = ("mlp", "mlp_bn")
    methods: tuple[str, ...] = tuple(METHODS)
    device: str = "cpu"
    together: bool = False  # all seeds of a setting in one stack

    @property
    def marks(self) -> list[int]:
        """The rounds at which tables are shown: those that are scored."""
        return sorted({*range(self.every, self.rounds + 1, self.every), self.rounds})

    def config(self, method: str, skew: str, preset: str, model: str, seed: int, **own: Any) -> Config:
        """One run of the paper's setting; `own` are further settings."""
        fixed = {"data.skew": skew, "data.preset": preset, "data.samples": self.samples}
        network = {"model.hidden": "32,16", "model.unit": "true"}
        return Config(
            method=method,
            dataset="synthetic",
            split="70/30",
            model=model,
            rounds=self.rounds,
            evaluate_every=self.every,
            local_epochs=self.epochs,
            batch_size=64,
            lr=1e-3,
            optimiser="adam",
            seed=seed,
            engine=self.engine,
            device=self.device,
            set={**fixed, **network, **OWN.get(method, {}), **own},
        )

    def folder(self, method: str, skew: str, preset: str, model: str, seed: int) -> Path:
        return self.out / preset / model / skew / method.replace("@", "-") / f"seed-{seed}"

    def task(self, *which: Any) -> Task:
        method, skew, preset, model, seed = which
        title = f"{method}, {skew} skew, {preset} data, {model}, seed {seed}"
        return Task(title, ((self.folder(*which), self.config(method, skew, preset, model, seed)),))

    def tasks(self) -> list[Task]:
        """Every run, in an order in which an interrupted call leaves whole seeds."""
        groups = [(seed,) for seed in self.seeds] if not self.together else [self.seeds]
        tasks = []
        for model, preset, seeds, skew, method in product(self.models, self.presets, groups, SKEWS, self.methods):
            first, *others = [self.task(method, skew, preset, model, seed) for seed in seeds]
            tasks.append(replace(first, runs=first.runs + tuple(run for task in others for run in task.runs)))
        return tasks


def quick(plan: BatchPlan) -> BatchPlan:
    """The same programme on next to nothing, to see that it works."""
    return replace(plan, rounds=2, every=1, epochs=1, samples=80)


# --- raw numbers ------------------------------------------------------------------------------------------------------


def raw(plans: Sequence[BatchPlan]) -> list[Line]:
    """A line for every source and for every finished run, as `fedmap_page.py` says."""
    sources: dict[str, int] = {}
    runs = [
        _line(plan, which, sources)
        for plan in plans
        for which in product(plan.methods, SKEWS, plan.presets, plan.models, plan.seeds)
        if reached(plan.folder(*which)) >= plan.rounds
    ]
    return [{"source": number, **json.loads(text)} for text, number in sources.items()] + runs


def _line(plan: BatchPlan, which: tuple[str, str, str, str, int], sources: dict[str, int]) -> Line:
    method, skew, preset, model, seed = which
    facts, _ = read_run(plan.folder(*which))
    about = {"command": facts["command"], **{k: facts[k] for k in FACTS if k in facts}, "device": plan.device}
    source = sources.setdefault(json.dumps(about), len(sources) + 1)
    clients = {
        r: [round(100 * v, 3) for v in read_score(plan.folder(*which), r)["clients"][METRIC]] for r in plan.marks
    }
    return {
        "preset": preset, "model": model, "epochs": plan.epochs, "skew": skew, "method": method, "seed": seed,
        "source": source, "clients": clients,
    }  # fmt: skip


def write(out: Path, lines: Sequence[Line]) -> None:
    """The raw numbers and their page."""
    out.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
    (out / "tables.jsonl").write_text(text, encoding="utf-8")
    (out / "tables.md").write_text(page(files.read_lines(out / "tables.jsonl")), encoding="utf-8")


# --- command line -----------------------------------------------------------------------------------------------------


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--out", type=Path, help="folder of the runs and pages")
    place.add_argument("--from", type=Path, dest="file", help="print the page of a file of raw numbers")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, …")
    parser.add_argument("--rounds", type=int, default=60, help="rounds; tables at every 20th")
    parser.add_argument("--epochs", default=str(EPOCHS), help="local epochs, several with commas")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, one thread each")
    parser.add_argument("--together", action="store_true", help="the seeds of a setting in one stack")
    parser.add_argument("--engine", default="auto", help="as in `posterity run`")
    parser.add_argument("--device", default="cpu", help="as in `posterity run`")
    parser.add_argument("--presets", default="paper,code", help="data of the paper's appendix, of the authors' code")
    parser.add_argument("--models", default="mlp,mlp_bn", help="networks")
    parser.add_argument("--methods", default=",".join(METHODS), help="columns")
    parser.add_argument("--quick", action="store_true", help="two tiny rounds, to see that it works")
    parser.add_argument("--no-run", action="store_true", help="only write the pages")
    return parser.parse_args(words)


def make_plans(given: argparse.Namespace) -> list[BatchPlan]:
    """One for each number of epochs."""
    plans = [
        BatchPlan(
            given.out if epochs == EPOCHS else given.out / f"epochs-{epochs}",
            tuple(range(given.seeds)),
            given.rounds,
            epochs=epochs,
            engine=given.engine,
            presets=tuple(given.presets.split(",")),
            models=tuple(given.models.split(",")),
            methods=tuple(given.methods.split(",")),
            device=given.device,
            together=given.together,
        )
        for epochs in map(int, given.epochs.split(","))
    ]
    return [quick(plan) for plan in plans] if given.quick else plans


def main(words: Sequence[str]) -> None:
    given = arguments(words)
    if given.file is not None:
        print(page(files.read_lines(given.file)))
        return
    plans = make_plans(given)
    try:
        if not given.no_run:
            perform([task for plan in plans for task in plan.tasks()], given.jobs)
    finally:  # what was reached before a failure is worth a page
        write(given.out, raw(plans))
    print(given.out / "tables.md")


if __name__ == "__main__":
    main(sys.argv[1:])
