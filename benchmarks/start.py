"""Short runs, start-up included: `--engine auto` against `--engine loop` and a plain PyTorch loop.

    python benchmarks/start.py [--repeats 3] [--json FILE]

FedAvg with an MLP of 64 hidden units: on a table of 735 rows (even: five clients of 147; uneven: 500, 100, 80, 35, 20;
25 rounds, batch 10) and on the demo's digits (20 clients by Dirichlet(0.3), 30 rounds, two epochs, batch 20). Every run
is a process of its own, from the first import to the last score; its processor time counts (user and system, one
thread), and ways take turns, so that other work on the machine hits all of them. `plain` is what one writes by hand: a
network, `DataLoader`-free batches, `torch.optim.SGD`, the weighted mean, and the accuracy of every client at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SIZES = {"even": (147,) * 5, "uneven": (500, 100, 80, 35, 20)}
FEATURES, ROUNDS, BATCH, LR, HIDDEN = 12, 25, 10, 0.1, 64
WAYS = ("auto", "loop", "plain")


def write_table(path: Path, sizes: tuple[int, ...]) -> None:
    """A table with a column that says whose row it is."""
    import numpy as np

    draw, rows = np.random.default_rng(0), sum(sizes)
    x, owner = draw.normal(size=(rows, FEATURES)), np.repeat(np.arange(len(sizes)), sizes)
    y = (x[:, 0] + 0.5 * x[:, 1] * (owner - 2) + 0.5 * draw.normal(size=rows) > 0).astype(int)
    lines = [",".join([*(f"f{i}" for i in range(FEATURES)), "hospital", "label"])]
    lines += [",".join([*(f"{v:.4f}" for v in x[i]), f"h{owner[i]}", str(y[i])]) for i in range(rows)]
    path.write_text("\n".join(lines) + "\n")


def run_ours(case: str, table: str, engine: str) -> None:
    """One run, as `posterity run` does it."""
    import torch

    import posterity

    torch.set_num_threads(1)
    own = {"dataset": "digits", "clients": 20, "partition": "dirichlet:0.3", "rounds": 30, "batch_size": 20,
           "local_epochs": 2}  # fmt: skip
    if case != "demo":
        own = {"dataset": table, "target": "label", "client_column": "hospital", "rounds": ROUNDS, "batch_size": BATCH}
    with tempfile.TemporaryDirectory() as folder:
        result = posterity.run("fedavg", out=Path(folder) / "run", engine=engine, lr=LR, **own)
        result.metric("accuracy", show="last")


def run_plain(case: str, table: str) -> None:
    """The same by hand."""
    import copy

    import numpy as np
    import torch
    from torch import nn

    torch.set_num_threads(1)
    if case == "demo":
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        draw, owner = np.random.default_rng(0), np.zeros(len(y), int)
        for label in range(10):
            share = draw.dirichlet([0.3] * 20)
            owner[y == label] = draw.choice(20, (y == label).sum(), p=share)
        x, rounds, batch, epochs = x / 16.0, 30, 20, 2
    else:
        raw = np.genfromtxt(table, delimiter=",", skip_header=1, dtype=str)
        x, owner, y = raw[:, :FEATURES].astype(float), np.unique(raw[:, -2], return_inverse=True)[1], raw[:, -1]
        rounds, batch, epochs = ROUNDS, BATCH, 1
    x, y = torch.tensor(x).float(), torch.tensor(y.astype(int))
    cut = [torch.tensor(np.flatnonzero(owner == k)) for k in np.unique(owner)]
    train, held = [c[: int(0.8 * len(c))] for c in cut], [c[int(0.8 * len(c)) :] for c in cut]
    net = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, int(y.max()) + 1))
    for _ in range(rounds):
        total = {n: torch.zeros_like(p) for n, p in net.state_dict().items()}
        for rows in (rows for rows in train if len(rows)):
            own = copy.deepcopy(net)
            optimiser = torch.optim.SGD(own.parameters(), lr=LR)
            for _ in range(epochs):
                for some in rows[torch.randperm(len(rows))].split(batch):
                    optimiser.zero_grad()
                    nn.functional.cross_entropy(own(x[some]), y[some]).backward()
                    optimiser.step()
            for n, p in own.state_dict().items():
                total[n] += p * (len(rows) / sum(map(len, train)))
        net.load_state_dict(total)
    with torch.no_grad():
        [float((net(x[rows]).argmax(1) == y[rows]).float().mean()) for rows in held if len(rows)]


def seconds_of(case: str, table: str, way: str) -> float:
    """Processor time of a process of its own."""
    command = [sys.executable, __file__, "--one", case, way, "--table", table]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    child = subprocess.Popen(command, env=environment)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{way} on {case} failed")
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", default="even,uneven,demo")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=2)
    parser.add_argument("--table", default="")
    asked = parser.parse_args()
    if asked.one:
        case, way = asked.one
        return run_plain(case, asked.table) if way == "plain" else run_ours(case, asked.table, way)
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in asked.cases.split(","):
            table = Path(folder) / f"{case}.csv"
            if case in SIZES:
                write_table(table, SIZES[case])
            turns = [{way: seconds_of(case, str(table), way) for way in WAYS} for _ in range(asked.repeats)]
            found[case] = {way: statistics.median(turn[way] for turn in turns) for way in WAYS}
            one = found[case]
            shown = " ".join(f"{way} {seconds:.1f} s" for way, seconds in one.items())
            print(f"{case:8} {shown}   auto/loop {one['auto'] / one['loop']:.2f}  auto/plain "
                  f"{one['auto'] / one['plain']:.2f}", flush=True)  # fmt: skip
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
