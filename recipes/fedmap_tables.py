"""FedMAP, Tables 1, 3 and 4: balanced accuracy of every client on the synthetic federations.

    python recipes/fedmap_tables.py --out DIR [--seeds 3] [--jobs 2] [--rounds 60] [--quick]

Ten clients, label, feature and quantity skew. MLP 30-32-16-1, plain and with batch norm; Adam 1e-3, batch 64, 50 local
epochs, 70/30 split, all clients every round. Tables are shown at 20 and at 60 rounds, both from one run: with a
constant step size the first 20 rounds of the long run are the short one. Nothing is chosen: the number is that of the
last round, on all that is held out. `paper` data has the nuisance variance 2 of the paper's appendix, `code` the 9 of
the authors' programme.

DIR is a tree of run folders. A second call does only what is missing; with more --rounds it goes on where the shorter
runs ended. The pages DIR/tables.md and DIR/tables.json are written from what is finished; --no-run only writes them.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import beside, perform, reached, read_score, spread, table, versions, write

from posterity.experiment.compare import Task
from posterity.experiment.config import Config

METRIC = "balanced_accuracy"  # erratum A8: the paper's "accuracy"
SKEWS = {"label": "Table 1, label skew", "feature": "Table 3, feature skew", "quantity": "Table 4, quantity skew"}
METHODS = {
    "local": "Individual",
    "fedmap": "FedMAP",
    "fedmap@paper": "FedMAP, ω of eq. 8",
    "fedbn": "FedBN",
    "fedprox": "FedProx",
    "fedavg": "FedAvg",
}
OWN = {"fedprox": {"mu": 2.0}}  # settings of one method alone
# Per client, as printed. All columns of the paper's tables are here; there are no others.
PAPER: dict[str, dict[str, list[float]]] = {
    "label": {
        "local": [84.51, 86.44, 86.95, 87.84, 88.08, 59.37, 65.17, 60.73, 57.68, 62.12],
        "fedmap": [86.91, 87.15, 87.01, 89.94, 89.08, 66.80, 73.02, 76.08, 71.66, 76.32],
        "fedbn": [67.49, 67.43, 69.18, 72.88, 71.53, 55.60, 57.68, 56.73, 54.76, 57.31],
        "fedprox": [53.16, 56.70, 55.37, 57.09, 55.42, 52.00, 52.57, 51.81, 51.56, 51.50],
        "fedavg": [52.19, 55.61, 54.79, 56.17, 53.92, 51.34, 51.65, 50.98, 51.36, 51.22],
    },
    "feature": {
        "local": [82.25, 86.24, 80.76, 88.07, 83.03, 80.27, 83.48, 82.21, 85.92, 85.78],
        "fedmap": [85.26, 88.94, 83.70, 89.70, 84.97, 83.39, 86.55, 85.38, 87.45, 87.38],
        "fedbn": [62.77, 65.86, 66.99, 65.32, 66.46, 61.08, 68.39, 64.47, 66.16, 66.33],
        "fedprox": [58.44, 64.28, 65.99, 62.09, 64.78, 58.92, 67.34, 61.25, 63.14, 63.77],
        "fedavg": [57.85, 65.35, 66.06, 63.46, 64.74, 60.03, 66.65, 61.54, 63.55, 62.53],
    },
    "quantity": {
        "local": [83.37, 88.10, 87.48, 84.40, 78.47, 61.62, 64.07, 63.83, 67.32, 64.04],
        "fedmap": [84.47, 89.64, 88.88, 86.95, 80.23, 65.48, 72.97, 67.10, 74.92, 71.74],
        "fedbn": [67.69, 72.41, 73.74, 71.38, 66.96, 56.28, 54.96, 48.58, 62.26, 61.99],
        "fedprox": [64.33, 70.10, 72.56, 69.19, 63.93, 54.49, 56.05, 45.45, 60.37, 57.03],
        "fedavg": [66.45, 70.22, 71.08, 68.82, 62.76, 53.96, 55.02, 46.33, 61.03, 59.73],
    },
}


@dataclass(frozen=True)
class Plan:
    """What to run and where."""

    out: Path
    seeds: tuple[int, ...] = (0, 1, 2)
    rounds: int = 60
    early: int = 20  # the authors' number of rounds: tables are shown here too
    every: int = 20  # rounds between evaluations: each costs as much as a round
    epochs: int = 50
    samples: int = 2000
    engine: str = "auto"
    presets: tuple[str, ...] = ("paper", "code")
    models: tuple[str, ...] = ("mlp", "mlp_bn")
    methods: tuple[str, ...] = tuple(METHODS)

    @property
    def marks(self) -> list[int]:
        """The rounds at which tables are shown."""
        return sorted({min(self.early, self.rounds), self.rounds})

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
            set={**fixed, **network, **OWN.get(method, {}), **own},
        )

    def folder(self, method: str, skew: str, preset: str, model: str, seed: int) -> Path:
        return self.out / preset / model / skew / method.replace("@", "-") / f"seed-{seed}"

    def task(self, *which: Any) -> Task:
        method, skew, preset, model, seed = which
        title = f"{method}, {skew} skew, {preset} data, {model}, seed {seed}"
        return Task(title, self.folder(*which), self.config(method, skew, preset, model, seed))

    def tasks(self) -> list[Task]:
        """Every run, in an order in which an interrupted call leaves whole seeds."""
        return [
            self.task(method, skew, preset, model, seed)
            for model in self.models
            for preset in self.presets
            for seed in self.seeds
            for skew in SKEWS
            for method in self.methods
        ]


def quick(plan: Plan) -> Plan:
    """The same programme on next to nothing, to see that it works."""
    return replace(plan, rounds=2, early=1, every=1, epochs=1, samples=80)


# --- reading ----------------------------------------------------------------------------------------------------------


def per_client(plan: Plan, method: str, skew: str, preset: str, model: str, round: int) -> dict[int, list[float]]:
    """Every client's balanced accuracy, for the seeds that have come so far."""
    paths = {seed: plan.folder(method, skew, preset, model, seed) for seed in plan.seeds}
    return {s: read_score(path, round)["clients"][METRIC] for s, path in paths.items() if reached(path) >= round}


def check_fedbn(plan: Plan, skew: str, preset: str, round: int) -> int:
    """In a network without norm layers FedBN is FedAvg: equal numbers, or an error. The number of runs compared."""
    bn, avg = (per_client(plan, m, skew, preset, "mlp", round) for m in ("fedbn", "fedavg"))
    both = bn.keys() & avg.keys()
    for seed in both:
        if bn[seed] != avg[seed]:
            place = f"{skew} skew, {preset} data, seed {seed}, round {round}"
            raise ValueError(f"without norm layers FedBN must be FedAvg, but at {place}: {bn[seed]} and {avg[seed]}")
    return len(both)


# --- writing ----------------------------------------------------------------------------------------------------------


def client_table(plan: Plan, skew: str, preset: str, model: str, round: int) -> str:
    """One of the paper's tables: ours, mean ± sd over seeds, and the paper's number in brackets."""
    found = {m: per_client(plan, m, skew, preset, model, round) for m in plan.methods}
    rows = []
    for k in range(10):
        cells = [beside(spread([s[k] for s in found[m].values()]), _printed(skew, m, k)) for m in plan.methods]
        rows.append([str(k + 1), *cells])
    rows.append(["mean", *(average_cell(found[m], skew, m) for m in plan.methods)])
    return table(["client", *(METHODS[m] for m in plan.methods)], rows)


def average_cell(found: dict[int, list[float]], skew: str, method: str) -> str:
    """Mean over clients; the paper's is that of its column, not the printed one (erratum A7)."""
    column = PAPER[skew].get(method)
    ours = spread([statistics.fmean(s) for s in found.values()])
    return beside(ours, f"{statistics.fmean(column):.2f}" if column else None)


def _printed(skew: str, method: str, client: int) -> str | None:
    column = PAPER[skew].get(method)
    return f"{column[client]:.2f}" if column else None


def order(means: dict[str, float]) -> str:
    """Methods from the best to the worst."""
    ranked = sorted(means, key=means.__getitem__, reverse=True)
    signs = [" = " if means[a] == means[b] else " > " for a, b in pairwise(ranked)]
    return "".join(METHODS[m] + sign for m, sign in zip(ranked, [*signs, ""], strict=True))


def summary(plan: Plan, preset: str, model: str, round: int) -> str:
    """Means over clients, and the order of the methods in our runs and in the paper."""
    rows, orders = [], []
    for skew, title in SKEWS.items():
        found = {m: per_client(plan, m, skew, preset, model, round) for m in plan.methods}
        rows.append([title, *(average_cell(found[m], skew, m) for m in plan.methods)])
        shared = [m for m in plan.methods if found[m] and m in PAPER[skew]]
        if not shared:
            orders.append(f"- {title}: nothing finished")
            continue
        ours = {m: statistics.fmean(statistics.fmean(s) for s in found[m].values()) for m in shared}
        paper = {m: statistics.fmean(PAPER[skew][m]) for m in shared}
        verdict = "the paper's" if order(ours) == order(paper) else f"paper: {order(paper)}"
        orders.append(f"- {title}: {order(ours)} ({verdict})")
    return table(["", *(METHODS[m] for m in plan.methods)], rows) + "\n" + "\n".join(orders) + "\n"


def page(plan: Plan, command: str) -> str:
    """All tables with what is needed to repeat them."""
    seeds = ", ".join(map(str, plan.seeds))
    parts = [
        "# FedMAP, Tables 1, 3 and 4\n",
        f"`{command}`; {versions()}; seeds {seeds} (each moves data, initial model and batches).\n",
        f"Balanced accuracy in %, mean ± sample sd over seeds, in brackets the paper. MLP 30-32-16-1, Adam 1e-3, batch "
        f"64, {plan.epochs} local epochs, {plan.samples} samples a client, 70/30. Rule of selection: none (the last "
        "round shown), on everything held out. Individual and FedMAP are scored after local training, the others as "
        "received.\n",
    ]
    for preset, model, round in ((p, m, r) for p in plan.presets for m in plan.models for r in plan.marks):
        if not any(per_client(plan, x, s, preset, model, round) for x in plan.methods for s in SKEWS):
            continue
        parts.append(f"## {preset} data, {model}, {round} rounds\n")
        parts.append(summary(plan, preset, model, round))
        if model == "mlp" and {"fedbn", "fedavg"} <= set(plan.methods):
            same = sum(check_fedbn(plan, skew, preset, round) for skew in SKEWS)
            parts.append(f"FedBN = FedAvg, every client's number, in all {same} pairs of runs (no norm layers).\n")
        for skew, title in SKEWS.items():
            parts += [f"### {title}\n", client_table(plan, skew, preset, model, round)]
    return "\n".join(parts)


def numbers(plan: Plan) -> dict[str, Any]:
    """Every number behind the page: preset → model → round → skew → method → seed → clients."""
    return {
        preset: {
            model: {
                str(r): {s: {m: per_client(plan, m, s, preset, model, r) for m in plan.methods} for s in SKEWS}
                for r in plan.marks
            }
            for model in plan.models
        }
        for preset in plan.presets
    }


# --- command line -----------------------------------------------------------------------------------------------------


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and pages")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, …")
    parser.add_argument("--rounds", type=int, default=60, help="rounds; tables at 20 and at the end")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, one thread each")
    parser.add_argument("--engine", default="auto", help="as in `posterity run`")
    parser.add_argument("--presets", default="paper,code", help="data of the paper's appendix, of the authors' code")
    parser.add_argument("--models", default="mlp,mlp_bn", help="networks")
    parser.add_argument("--quick", action="store_true", help="two tiny rounds, to see that it works")
    parser.add_argument("--no-run", action="store_true", help="only write the pages")
    return parser.parse_args(words)


def make_plan(given: argparse.Namespace) -> Plan:
    plan = Plan(
        given.out,
        tuple(range(given.seeds)),
        given.rounds,
        engine=given.engine,
        presets=tuple(given.presets.split(",")),
        models=tuple(given.models.split(",")),
    )
    return quick(plan) if given.quick else plan


def main(words: Sequence[str]) -> None:
    given = arguments(words)
    plan = make_plan(given)
    try:
        if not given.no_run:
            perform(plan.tasks(), given.jobs)
    finally:  # what was reached before a failure is worth a page
        command = " ".join(["python", "recipes/fedmap_tables.py", *words])
        write(plan.out, "tables", page(plan, command), numbers(plan))
    print(plan.out / "tables.md")


if __name__ == "__main__":
    main(sys.argv[1:])
