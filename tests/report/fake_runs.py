"""Fake run folders: the format of the runner, curves that look like training, numbers a test can recompute."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

LABELS = {
    "fedavg": "FedAvg",
    "fedper": "FedPer",
    "fedrep": "FedRep",
    "pfedvmp": "pFedVMP",
    "metavd": "MetaVD",
    "local": "Local",
}
POINTS = {"metavd": "adapted"}
PARTS = {"validation": 0, "test": 1, "held": 2}


def comparison(root: Path, methods: dict[str, float], seeds: int = 3, **options: Any) -> Path:
    """One folder of runs: each method levels off near its own accuracy."""
    for method, level in methods.items():
        for seed in range(seeds):
            write_run(root / method / f"seed-{seed}", method, level, seed, **options)
    return root


def write_run(folder: Path, method: str, level: float, seed: int, **options: Any) -> Path:
    """One run folder. Options: rounds, every, clients, classes, newcomers, status, task, trouble, parts, common, lr;
    data_seed (the same clients with every seed), named (the clients have names of their own), noise (of a client)."""
    o = {"rounds": 40, "every": 2, "clients": 20, "classes": 10, "newcomers": 0, "status": "finished", "lr": 0.05}
    o |= {"task": "classification", "trouble": False, "parts": tuple(PARTS), "common": False, "stop": None}
    o |= {"data_seed": None, "named": True, "noise": 0.0} | options
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(_config(method, seed, o), encoding="utf-8")
    (folder / "run.json").write_text(json.dumps(_facts(method, seed, o)), encoding="utf-8")
    lines = _lines(method, level, seed, o)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder


def _config(method: str, seed: int, o: dict[str, Any]) -> str:
    return (
        f'method = "{method}"\ndataset = "digits"\npartition = "dirichlet(0.3)"\nclients = {o["clients"]}\n'
        f'model = "mlp"\nrounds = {o["rounds"]}\nseed = {seed}\ndata_seed = {_drawn(seed, o)}\nparticipation = 1.0\n'
        f'lr = {o["lr"]}\nbatch_size = 10\nlocal_epochs = 1\nscored = "{POINTS.get(method, "received")}"\n'
        f"\n[hyper]\nxi = 1.0\nv0 = 1.0\n"
    )


def _drawn(seed: int, o: dict[str, Any]) -> int:
    return seed if o["data_seed"] is None else o["data_seed"]


def _sizes(seed: int, o: dict[str, Any]) -> np.ndarray:
    random = np.random.default_rng(_drawn(seed, o))
    total = np.maximum(random.lognormal(4.2, 0.6, o["clients"]), 6)
    shares = random.dirichlet(np.full(o["classes"], 0.3), o["clients"])
    return np.round(total[:, None] * shares).astype(int)  # (clients, classes)


def _facts(method: str, seed: int, o: dict[str, Any]) -> dict[str, Any]:
    counts = _sizes(seed, o)
    train = counts.sum(1)
    federation = {
        "name": "digits",
        "clients": o["clients"],
        "members": o["clients"] - o["newcomers"],
        "newcomers": o["newcomers"],
        "classes": o["classes"],
        "class_names": [f"digit {c}" for c in range(o["classes"])],
        "task": o["task"],
        "names": [f"{'hospital' if o['named'] else 'client'} {k}" for k in range(o["clients"])],
        "train": train.tolist(),
        "validation": (train // 4 + 2).tolist(),
        "test": (train // 4 + 2).tolist(),
        "histogram": counts.tolist() if o["task"] == "classification" else [],
        "notes": ["Digits: 8×8 images; the split into clients is ours, not the data set's."],
    }
    return {
        "posterity": "0.1.0",
        "torch": "2.13.0",
        "python": "3.11",
        "device": "cpu",
        "engine": "stacked",
        "command": f"posterity run --method {method} --dataset digits --seed {seed}",
        "started": "2025-01-01T12:00:00",
        "seconds": 12.5 + seed,
        "status": o["status"],
        "method": {
            "name": method,
            "label": LABELS.get(method, method),
            "scored": POINTS.get(method, "received"),
            "reference": f"The paper of {LABELS.get(method, method)}, 2024.",
        },
        "federation": federation,
    }


def _lines(method: str, level: float, seed: int, o: dict[str, Any]) -> list[dict[str, Any]]:
    random = np.random.default_rng([seed, *method.encode()])
    shift = random.normal(0, 0.008)
    lines: list[dict[str, Any]] = []
    for r in range(1, (o["stop"] or o["rounds"]) + 1):
        lines.append(_round(method, r, seed, o))
        if r % o["every"] and r != o["rounds"]:
            continue
        for point, bonus in (("received", 0.0), ("adapted", 0.015), ("trained", 0.02)):
            now = level + shift + bonus - 0.6 * math.exp(-r / 8) + random.normal(0, 0.006)
            epochs = 1 if point == "adapted" else 0
            lines += [_score(now, r, point, epochs, "members", part, seed, random, o) for part in o["parts"]]
        if o["newcomers"]:
            for point, epochs, loss in (("received", 0, 0.3), ("adapted", 1, 0.1), ("adapted", 5, 0.03)):
                now = level - loss - 0.6 * math.exp(-r / 8)
                lines += [
                    _score(now, r, point, epochs, "newcomers", part, seed, random, o) for part in ("test", "held")
                ]
        if o["common"]:
            lines.append(_score(level - 0.1, r, "received", 0, "common", "test", seed, random, o))
    return lines


def _round(method: str, r: int, seed: int, o: dict[str, Any]) -> dict[str, Any]:
    bad = o["trouble"] and r in (3, 7) and seed == 0
    cost = 120_000 if method == "fedavg" else 40_000 + 5_000 * len(method)
    return {
        "kind": "round",
        "round": r,
        "cohort": o["clients"],
        "refused": [{"client": 4, "reason": "not finite <&>"}] if bad else [],
        "empty": bool(o["trouble"] and r == 9 and seed == 1),
        "loss": 2.3 * math.exp(-r / 12) + 0.1,
        "bytes_up": cost,
        "bytes_down": cost + 1_000,
        "seconds": 0.3,
        "report": {"effective_clients": 8 - 5 * math.exp(-r / 10)} if method == "pfedvmp" else {},
    }


def _score(
    level: float, r: int, point: str, epochs: int, group: str, part: str, seed: int, random: Any, o: dict[str, Any]
) -> dict[str, Any]:
    count = o["newcomers"] if group == "newcomers" else o["clients"] - o["newcomers"]
    n = np.maximum(_sizes(seed, o).sum(1)[:count] // 4 + 2, 1) * (2 if part == "held" else 1)
    each = np.random.default_rng(seed).normal(level, 0.09, count) + random.normal(0, o["noise"], count)
    each = np.clip(each, 0.02, 1.0)
    base = {"kind": "score", "round": r, "point": point, "epochs": epochs, "group": group, "part": part}
    if o["task"] == "regression":
        error = 1.2 - each
        mse = {"pooled": float(np.average(error, weights=n)), "mean": float(error.mean()), "train_weighted": None}
        nll = {"pooled": mse["pooled"] + 0.4, "mean": mse["mean"] + 0.4, "train_weighted": None}
        return base | {"metrics": {"mse": mse, "nll": nll}, "clients": {"n": n.tolist(), "mse": error.tolist()}}
    pooled = float(np.average(each, weights=n)) + random.normal(0, 0.004)

    def by(value: float) -> dict[str, float]:
        return {"pooled": value, "mean": value - 0.002, "train_weighted": value + 0.001}

    metrics = {
        "accuracy": by(pooled),
        "balanced_accuracy": by(pooled - 0.03),
        "nll": by(1.9 - 1.7 * pooled),
        "brier": by(1.1 - 1.0 * pooled),
        "ece": by(0.12 - 0.1 * pooled),
        "mce": by(0.3 - 0.2 * pooled),
        "ece_flat": by(0.012),
    }
    if o["classes"] == 2:
        metrics |= {"auroc": by(min(pooled + 0.05, 0.999)), "sensitivity": by(pooled), "specificity": by(pooled)}
    fairness = {"sd": float(each.std()), "cov": float(each.std() / pooled), "clients": count}
    worst = np.argsort(each, kind="stable")[: max(1, count // 10)]
    fairness |= {
        "cov_mean": float(each.std() / each.mean()),
        "worst10": float(each[worst].mean()),
        "worst10_rows": int(n[worst].sum()),
    }
    return base | {
        "metrics": metrics,
        "fairness": fairness,
        "clients": {"n": n.tolist(), "accuracy": each.tolist(), "nll": (1.9 - 1.7 * each).tolist()},
        "bins": _bins(pooled, int(n.sum())),
    }


def _bins(accuracy: float, total: int) -> list[list[float]]:
    """Confidence piled up near one and a little too high, as networks have it."""
    middles = (np.arange(15) + 0.5) / 15
    share = middles**4 * (middles > 0.1)
    counts = np.round(total * share / share.sum())
    correct = np.clip(middles * (0.55 + 0.45 * accuracy), 0, 1)
    return [[float(n), float(n * m), float(n * c)] for n, m, c in zip(counts, middles, correct, strict=True)]


def write_exact(
    root: Path, method: str, by_seed: dict[int, list[float]], metric: str = "accuracy", **more: Any
) -> Path:
    """Runs of two scored rounds whose clients have exactly these values at the first one, the one to be chosen.

    Every client has ten rows. Options: bytes, and metrics besides (name to a value for each seed).
    """
    o = {"rounds": 2, "clients": len(next(iter(by_seed.values()))), "classes": 4, "newcomers": 0, "lr": 0.05}
    o |= {"status": "finished", "task": "regression" if metric == "mse" else "classification", "data_seed": None}
    o |= {"named": False}
    worse = 5.0 if metric == "mse" else -0.2
    for k, (seed, values) in enumerate(by_seed.items()):
        lines: list[dict[str, Any]] = []
        for r in (1, 2):
            cost = more.get("bytes", 100)
            lines.append({"kind": "round", "round": r, "cohort": 3, "bytes_up": cost, "bytes_down": cost})
            each = [v + worse * (r - 1) for v in values]
            metrics = {metric: {"pooled": float(np.mean(each))}}
            metrics |= {name: {"pooled": given[k]} for name, given in more.items() if name != "bytes"}
            score = {"kind": "score", "round": r, "point": "received", "epochs": 0, "group": "members"}
            clients = {"n": [10] * len(each), metric: each}
            lines += [score | {"part": p, "metrics": metrics, "clients": clients} for p in PARTS]
        folder = root / method / f"seed-{seed}"
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text(_config(method, seed, o).replace("metavd", method), encoding="utf-8")
        (folder / "run.json").write_text(json.dumps(_facts(method, seed, o)), encoding="utf-8")
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return root
