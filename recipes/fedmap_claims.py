"""FedMAP's claims, measured: communication, outlier clients, and one change at a time where our order differs.

    python recipes/fedmap_claims.py --out DIR [--only changes,outlier,communication] [--seeds 3] [--jobs 2] [--quick]

Setting as in fedmap_tables.py (the authors' data, plain MLP), 20 rounds. Runs are done once; a second call does what is
missing, and runs of the tables in the same DIR are shared. Each part writes DIR/PART.md and DIR/PART.json.

communication   label skew: rounds and bytes until the mean balanced accuracy over clients reaches what FedAvg, and what
                training alone, has at its end. The paper states no level.
outlier         feature skew: the training labels of client 1 are shuffled. What the other nine lose, and the outlier's
                share ω in γ, under FedMAP's five weightings and under FedAvg.
changes         runs that differ from the table's in one setting, each a guess at why our numbers are not the paper's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from common import beside, perform, reached, read_run, read_score, spread, table, versions, write
from fedmap_page import METHODS, METRIC, PAPER
from fedmap_tables import BatchPlan, quick

import posterity
from posterity.core.tree import tree_leaves
from posterity.experiment.compare import Task
from posterity.methods.fedmap import WEIGHTINGS

COMPARED = ("local", "fedavg", "fedprox", "fedmap")
FIT = 1e-3  # how far γ may lie from the span of the estimates, relative to their spread: float32 leaves about 1e-6


@dataclass(frozen=True)
class Arm:
    """One setting, run with every seed."""

    name: str  # of its folder
    label: str  # in the table
    method: str
    skew: str = "feature"
    own: tuple[tuple[str, Any], ...] = ()
    rounds: int | None = None  # if other than the plan's
    model: str = "mlp"

    def last(self, plan: BatchPlan) -> int:
        return min(self.rounds or plan.rounds, plan.rounds)

    def folder(self, plan: BatchPlan, seed: int) -> Path:
        return plan.out / self.name / f"seed-{seed}"

    def tasks(self, plan: BatchPlan) -> list[Task]:
        plan = replace(plan, rounds=self.last(plan))
        config = [
            plan.config(self.method, self.skew, "code", self.model, seed, **dict(self.own)) for seed in plan.seeds
        ]
        return [Task(f"{self.name} seed {c.seed}", ((self.folder(plan, c.seed), c),)) for c in config]

    def seeds(self, plan: BatchPlan) -> list[int]:
        """The seeds that are finished."""
        return [seed for seed in plan.seeds if reached(self.folder(plan, seed)) >= self.last(plan)]

    def clients(self, plan: BatchPlan, seed: int) -> list[float]:
        """Every client's balanced accuracy after the last round."""
        values: list[float] = read_score(self.folder(plan, seed), self.last(plan))["clients"][METRIC]
        return values


@dataclass(frozen=True)
class Change:
    """A setting that differs from the table's."""

    method: str
    what: str
    own: Mapping[str, Any] = field(default_factory=dict)
    rounds: int | None = None
    model: str = "mlp"


# --- communication ----------------------------------------------------------------------------------------------------


def communication_arms() -> list[Arm]:
    return [Arm(f"communication/{method}", METHODS[method], method, "label") for method in COMPARED]


def history(path: Path) -> list[dict[str, float | None]]:
    """Balanced accuracy (mean over clients, all held-out rows) and bytes sent so far, for every evaluated round."""
    _, lines = read_run(path)
    sent, entries = {0: 0}, []
    for line in (x for x in lines if x["kind"] == "round"):
        sent[line["round"]] = sent[line["round"] - 1] + line["bytes_up"] + line["bytes_down"]
    for round in (r for r in sent if r):
        value = read_score(path, round)["metrics"][METRIC]["mean"]
        entries.append({"round": round, "accuracy": value, "bytes_up": sent[round], "bytes_down": 0})
    return entries


def communication(plan: BatchPlan) -> tuple[str, dict[str, Any]]:
    """Rounds and bytes to two levels, label skew."""
    arms = communication_arms()
    curves = {a.method: {s: history(a.folder(plan, s)) for s in a.seeds(plan)} for a in arms}
    rows = [[a.label, *_costs(curves, a.method)] for a in arms]
    head = ["label skew", "end, %", "to FedAvg's end: rounds", "kB", "to Individual's end: rounds", "kB"]
    return table(head, rows), curves


def _costs(curves: dict[str, dict[int, list[dict[str, float | None]]]], method: str) -> list[str]:
    own = curves[method]
    cells = [spread([c[-1]["accuracy"] or 0.0 for c in own.values()])]
    for rival in ("fedavg", "local"):
        shared = sorted(own.keys() & curves[rival].keys())
        levels = {s: curves[rival][s][-1]["accuracy"] or 0.0 for s in shared}
        first = [_first(own[s], levels[s]) for s in shared]
        cells.append(", ".join("never" if e is None else str(e["round"]) for e in first) or "–")
        cells.append(", ".join("never" if e is None else f"{(e['bytes_up'] or 0) / 1000:.0f}" for e in first) or "–")
    return cells


def _first(entries: list[dict[str, float | None]], accuracy: float) -> dict[str, float | None] | None:
    """The first round that reaches it; rounds stand in their order, and bytes are all that were sent until then."""
    return next((entry for entry in entries if (entry["accuracy"] or 0.0) >= accuracy), None)


# --- outlier ----------------------------------------------------------------------------------------------------------


def outlier_arms() -> list[tuple[Arm, Arm]]:
    """Every method without and with the outlier."""
    kinds = [("fedavg", "FedAvg", "fedavg", ())]
    kinds += [(w, f"FedMAP, {w}", "fedmap", (("weighting", w),)) for w in WEIGHTINGS]  # type: ignore[misc]
    return [
        (
            Arm(f"outlier/without/{name}", label, method, own=own),
            Arm(f"outlier/with/{name}", label, method, own=(*own, ("data.outlier", 0))),
        )
        for name, label, method, own in kinds
    ]


def shares(folder: Path) -> list[float]:
    """Each client's share in the server's last average, found from the average itself.

    γ = Σ ω_k θ_k with Σ ω_k = 1 has one solution, since there are more parameters than clients. Methods whose clients
    keep no model of their own average by size.
    """
    result = posterity.load(folder)
    rows = getattr(result.store, "rows", None)
    if rows is None or not tree_leaves(rows):
        counts = result.federation.train.counts.double()
        return [float(share) for share in counts / counts.sum()]
    names = sorted(result.state.params)
    theta = torch.cat([rows[n].flatten(1) for n in names], 1).double()  # (clients, parameters)
    gamma = torch.cat([result.state.params[n].flatten() for n in names]).double()
    apart = (theta[1:] - theta[0]).T
    rest = torch.linalg.lstsq(apart, (gamma - theta[0])[:, None]).solution[:, 0]
    gap = float((apart @ rest + theta[0] - gamma).norm() / apart.norm())
    if gap > FIT:
        raise ValueError(f"{folder}: the server's model is no mean of the clients' (residual {gap:.1e})")
    return [1 - float(rest.sum()), *rest.tolist()]


def outlier(plan: BatchPlan) -> tuple[str, dict[str, Any]]:
    """What an outlier costs the others, and how much it is listened to."""
    rows, found = [], {}
    for clean, spoilt in outlier_arms():
        seeds = sorted(set(clean.seeds(plan)) & set(spoilt.seeds(plan)))
        pairs = {s: (clean.clients(plan, s), spoilt.clients(plan, s)) for s in seeds}
        others = {s: tuple(statistics.fmean(v[1:]) for v in pair) for s, pair in pairs.items()}
        weights = {s: [shares(a.folder(plan, s)) for a in (clean, spoilt)] for s in seeds}
        effective = {s: [_effective(a.folder(plan, s)) for a in (clean, spoilt)] for s in seeds}
        found[clean.label] = {"accuracy": pairs, "shares": weights, "effective": effective}
        cells = [
            spread([a for a, _ in others.values()]),
            spread([b for _, b in others.values()]),
            spread([b - a for a, b in others.values()]),
            spread([pair[1][0] for pair in pairs.values()]),
            *(spread([w[i][0] for w in weights.values()], 1, 3) for i in (0, 1)),
            *(spread([e[i][-1] for e in effective.values() if e[i]], 1, 2) for i in (0, 1)),
        ]
        rows.append([clean.label, *cells])
    head = ["", "others, none spoilt, %", "others, one spoilt, %", "difference", "the outlier, %",
            "its share, not spoilt", "its share, spoilt", "effective clients, none spoilt", "one spoilt"]  # fmt: skip
    return table(head, rows), found


def _effective(folder: Path) -> list[float]:
    """The effective number of clients in each round, where the method reports it."""
    _, lines = read_run(folder)
    reports = [x["report"] for x in lines if x["kind"] == "round"]
    return [r["effective_clients"] for r in reports if "effective_clients" in r]


# --- one change at a time ---------------------------------------------------------------------------------------------

ALONE = (Change("local", "100 epochs", rounds=2), Change("local", "100 epochs, Adam 1e-4", {"local.lr": 1e-4}, 2))
SLOW = tuple(Change(m, "Adam 1e-4", {"local.lr": 1e-4}) for m in ("local", "fedmap", "fedavg"))
WEIGHTED = (Change("fedmap", "λ = 1/N_k (eq. 6)", {"prior_scale": "bayes"}),
            Change("fedmap", "ω by size", {"weighting": "num_examples"}))  # fmt: skip
FEW = tuple(Change(m, "5 epochs a round", {"local.epochs": 5}) for m in ("fedmap", "fedprox", "fedavg"))
WEAK = tuple(Change("fedprox", f"µ = {mu}", {"mu": mu}) for mu in (0.01, 0.1))
NORMED = tuple(
    Change(m, "batch norm, 5 epochs a round", {"local.epochs": 5}, None, "mlp_bn") for m in ("fedbn", "fedavg")
)
CHANGES = {  # the number of a change is part of its folder's name: new ones go to the end
    "label": (*ALONE, *SLOW, Change("fedprox", "µ = 0", {"mu": 0.0}), *WEIGHTED, *FEW, *WEAK, *NORMED),
    "feature": (*ALONE, *FEW, *NORMED),
    "quantity": (*ALONE, *WEIGHTED, *FEW, *NORMED),
}


def change_arms(skew: str) -> list[Arm]:
    """The runs of the table, where they are shared with fedmap_tables.py, and those that differ in one setting."""
    same = [Arm(f"code/mlp/{skew}/{m}", f"{METHODS[m]}, as in the table", m, skew) for m in PAPER[skew] if m != "fedbn"]
    other = [
        Arm(f"changes/{skew}/{number}-{c.method}", f"{METHODS[c.method]}, {c.what}", c.method, skew,
            tuple(c.own.items()), c.rounds, c.model)
        for number, c in enumerate(CHANGES[skew])
    ]  # fmt: skip
    return sorted([*same, *other], key=lambda arm: list(METHODS).index(arm.method))


def changes(plan: BatchPlan) -> tuple[str, dict[str, Any]]:
    """Mean over all clients, and over the first and the second five; the paper's in brackets."""
    pages, found = [], {}
    for skew in CHANGES:
        arms = change_arms(skew)
        found[skew] = {a.label: {s: a.clients(plan, s) for s in a.seeds(plan)} for a in arms}
        rows = [[a.label, *_means(found[skew][a.label], PAPER[skew][a.method])] for a in arms]
        pages += [f"## {skew} skew\n", table(["", "all clients, %", "clients 1–5", "clients 6–10"], rows)]
    return "\n".join(pages), found


def _means(found: dict[int, list[float]], paper: list[float]) -> list[str]:
    cuts = (slice(None), slice(5), slice(5, None))
    ours = [spread([statistics.fmean(v[cut]) for v in found.values()]) for cut in cuts]
    return [beside(o, f"{statistics.fmean(paper[cut]):.2f}") for o, cut in zip(ours, cuts, strict=True)]


# --- command line -----------------------------------------------------------------------------------------------------


def parts() -> dict[str, tuple[list[Arm], Callable[[BatchPlan], tuple[str, dict[str, Any]]], int]]:
    """Name → its runs, what reads them, and the rounds between evaluations (0: those of the tables)."""
    return {
        "changes": ([arm for skew in CHANGES for arm in change_arms(skew)], changes, 0),
        "outlier": ([arm for pair in outlier_arms() for arm in pair], outlier, 0),
        "communication": (communication_arms(), communication, 1),
    }


def main(words: Sequence[str]) -> None:
    known = parts()
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs and pages")
    parser.add_argument("--only", default=",".join(known), help=f"some of {', '.join(known)}")
    parser.add_argument("--seeds", type=int, default=3, help="seeds 0, 1, …")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of every run")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, one thread each")
    parser.add_argument("--engine", default="auto", help="as in `posterity run`")
    parser.add_argument("--quick", action="store_true", help="two tiny rounds, to see that it works")
    parser.add_argument("--no-run", action="store_true", help="only write the pages")
    given = parser.parse_args(words)
    plan = BatchPlan(given.out, tuple(range(given.seeds)), given.rounds, engine=given.engine)
    plan = quick(plan) if given.quick else plan
    command = " ".join(["python", "recipes/fedmap_claims.py", *words])
    for name in given.only.split(","):
        arms, read, every = known[name]
        planned = replace(plan, every=every or plan.every)
        if not given.no_run:
            perform([task for arm in arms for task in arm.tasks(planned)], given.jobs)
        text, numbers = read(planned)
        seeds = ", ".join(map(str, plan.seeds))
        write(plan.out, name, f"# FedMAP: {name}\n\n`{command}`; {versions()}; seeds {seeds}.\n\n{text}", numbers)
        print(plan.out / f"{name}.md")


if __name__ == "__main__":
    main(sys.argv[1:])
