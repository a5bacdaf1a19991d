"""Stacked against loop: MLP clients at 20, 100 and 1,000, and growth to 10,000, all in one run.

    python benchmarks/engine.py [--quick]

Prints ratios, and the anonymous memory that each size took in a process of its own. Clients are synthetic samples of
the digits' shape, 5 to 60 each (log-uniform), an MLP 64-64-10, batch 10, one epoch, FedAvg. All do the same visits:
`plain` is what one would write in PyTorch (one module, autograd, an optimiser per client, one client after the other),
`loop` our reference engine, whose steps are recorded too; `stacked`, `graph` and `compiled` run all clients at once. Of
the first two at most 100 clients are run, and the time is scaled up by the number of steps.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import platform
import sys
import threading
import time
from dataclasses import replace

import torch

from posterity import models
from posterity.core.passes import Training
from posterity.core.random import make_key
from posterity.data.federation import Federation, Part
from posterity.engine.cache import TraceCache
from posterity.engine.engines import ORACLE, STACKED
from posterity.engine.round import first_state, train_round
from posterity.engine.simulation import Simulation
from posterity.engine.store import Store
from posterity.fast.compiled import engine as COMPILED
from posterity.fast.graph import engine as GRAPH
from posterity.methods.fedavg import FedAvg

ENGINES = {"stacked": STACKED, "graph": GRAPH, "compiled": COMPILED}
SIZES = (20, 100, 1000)
GROWTH = (100, 1000, 10_000)


def make_simulation(clients: int) -> Simulation:
    """A federation of `clients` with 5 to 60 samples of shape (1, 8, 8)."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.exp(torch.rand(clients, generator=generator) * math.log(12) + math.log(5)).long()
    offsets = torch.cat((torch.zeros(1, dtype=torch.long), counts.cumsum(0)))
    total = int(counts.sum())
    x = torch.randn(total, 1, 8, 8, generator=generator)
    y = torch.randint(0, 10, (total,), generator=generator)
    part, nothing = Part(torch.arange(total), offsets), Part(torch.zeros(0, dtype=torch.long), offsets * 0)
    names = tuple(str(k) for k in range(clients))
    federation = Federation("synthetic", "classification", x, y, 10, part, nothing, nothing, clients, names)
    model = models.build("mlp", (1, 8, 8), 10, hidden=(64,))
    return Simulation(FedAvg(Training(lr=0.1)), model, federation, model.init(0), make_key(0))


def seconds(sim: Simulation, engine: object, clients: int, repeats: int) -> float:
    """The fastest of `repeats` rounds."""
    state, best = first_state(sim), math.inf
    for round in range(1, repeats + 2):  # the first warms up
        begun = time.perf_counter()
        train_round(sim, engine, state, Store(sim.federation.clients), torch.arange(clients), round, 1)  # type: ignore[arg-type]
        best = min(best, time.perf_counter() - begun) if round > 1 else best
    return best


def plain_seconds(sim: Simulation, clients: int, repeats: int) -> float:
    """The fastest of `repeats` rounds of FedAvg as one would write it without this library."""
    federation, best = sim.federation, math.inf
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    start = {n: p.clone() for n, p in module.state_dict().items()}
    for round in range(repeats + 1):
        begun = time.perf_counter()
        total = {n: torch.zeros_like(p) for n, p in start.items()}
        for client in range(clients):
            module.load_state_dict(start)
            optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
            rows = federation.train.client(client)
            for batch in torch.split(rows[torch.randperm(len(rows))], 10):
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(module(federation.x[batch]), federation.y[batch]).backward()
                optimiser.step()
            for n, p in module.state_dict().items():
                total[n] += len(rows) * p
        best = min(best, time.perf_counter() - begun) if round else best
    return best


def grow(clients: int, pipe: object) -> None:
    """In a process of its own: seconds a round, and anonymous memory beyond what was there before."""
    torch.set_num_threads(2)
    sim = make_simulation(clients)
    before = _anonymous()
    highest, stop = [before], threading.Event()

    def look() -> None:
        while not stop.wait(0.005):
            highest[0] = max(highest[0], _anonymous())

    watcher = threading.Thread(target=look)
    watcher.start()
    took = seconds(sim, STACKED, clients, 2)
    stop.set()
    watcher.join()
    pipe.send((took, highest[0], before))  # type: ignore[attr-defined]


def _anonymous() -> int:
    with open("/proc/self/status") as file:
        found = [line.split()[1] for line in file if line.startswith("RssAnon")]
    return int(found[0]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer repeats and no 10,000 clients")
    parser.add_argument("--json", help="also write the numbers to this file")
    options = parser.parse_args()
    repeats = 2 if options.quick else 5
    print(f"torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} threads, seed 0")
    names = ("plain", "loop", *ENGINES)
    print(f"{'clients':>8} {'':>9}" + "".join(f"{name:>12}" for name in names))
    found: dict[str, object] = {"ratios": {}, "growth": {}}
    for clients in SIZES:
        sim = make_simulation(clients)
        few = min(clients, 100)
        took = {"plain": plain_seconds(sim, few, repeats) * _share(sim, few)}
        for name, engine in (("loop", ORACLE), *ENGINES.items()):
            fresh = replace(sim, traces=TraceCache(patience=0))  # the first round records, and is not counted
            some = few if name == "loop" else clients
            took[name] = seconds(fresh, engine, some, repeats) * _share(sim, some)
        found["ratios"][clients] = took  # type: ignore[index]
        print(f"{clients:>8} {'s a round':>9}" + "".join(f"{took[name]:>12.4f}" for name in names))
        print(f"{'':>8} {'plain/it':>9}" + "".join(f"{took['plain'] / took[name]:>11.1f}x" for name in names))
    print(f"\n{'clients':>8} {'s a round':>10} {'µs a client':>12} {'anonymous MiB':>14} {'before':>7}")
    for clients in GROWTH[: 2 if options.quick else 3]:
        receive, send = multiprocessing.Pipe(False)
        worker = multiprocessing.get_context("spawn").Process(target=grow, args=(clients, send))
        worker.start()
        took, peak, before = receive.recv()
        worker.join()
        found["growth"][clients] = (took, peak)  # type: ignore[index]
        print(f"{clients:>8} {took:>10.3f} {took / clients * 1e6:>12.0f} {peak / 2**20:>14.0f} {before / 2**20:>7.0f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file)


def _share(sim: Simulation, few: int) -> float:
    """All steps over the steps of the first `few` clients: how the loop's time scales."""
    steps = (sim.federation.train.counts + 9) // 10
    return float(steps.sum() / steps[:few].sum())


if __name__ == "__main__":
    sys.exit(main())
