"""Many clients: memory and time of a round as their number grows, personal records in a file.

    python benchmarks/scale.py [--quick] [--json FILE]

First all of 100, 1,000 and 10,000 clients take part, then 1,000 of 10,000, 100,000 and 1,000,000 registered ones, drawn
anew each round. FedPer on an MLP 16-32-10 (the head is personal and memory-mapped), five synthetic samples a client,
batch 5, one epoch, each case in a process of its own. `before` is the anonymous memory with data and names loaded,
`peak` the most during the rounds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

from posterity import models
from posterity.core.draw import make_key
from posterity.core.training import Training
from posterity.data.federation import Federation, Part
from posterity.engine import graph
from posterity.engine.cohort import Participation
from posterity.engine.round import able, first_state, train_round
from posterity.engine.store import Mapped
from posterity.engine.world import World
from posterity.methods.fedper import FedPer

SAMPLES, FEATURES = 5, 16
ALL = ((100, 100), (1000, 1000), (10_000, 10_000))
SOME = ((10_000, 1000), (100_000, 1000), (1_000_000, 1000))


def make_world(clients: int) -> World:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(clients * SAMPLES, FEATURES, generator=generator)
    y = torch.randint(0, 10, (clients * SAMPLES,), generator=generator)
    offsets = torch.arange(clients + 1) * SAMPLES
    part, nothing = Part(torch.arange(len(x)), offsets), Part(torch.zeros(0, dtype=torch.long), offsets * 0)
    names = tuple(map(str, range(clients)))
    federation = Federation("synthetic", "classification", x, y, 10, part, nothing, nothing, clients, names)
    model = models.build("mlp", (FEATURES,), 10, hidden=(32,))
    return World(FedPer(Training(lr=0.1, batch=5)), model, federation, model.init(0), make_key(0))


def anonymous() -> float:
    """MiB that belong to this process alone."""
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("RssAnon")).split()[1]) / 1024


def measure(clients: int, cohort: int, rounds: int, pipe: Any) -> None:
    """In a process of its own."""
    world, peak, stop = make_world(clients), [0.0], threading.Event()
    before, times = anonymous(), []

    def look() -> None:
        while not stop.wait(0.005):
            peak[0] = max(peak[0], anonymous())

    watcher = threading.Thread(target=look)
    watcher.start()
    with tempfile.TemporaryDirectory() as folder:
        state, store, everyone = first_state(world), Mapped(Path(folder), clients), able(world)
        for number in range(rounds):
            begun = time.perf_counter()
            chosen = Participation(count=cohort).draw(everyone, world.root, number)
            state, _ = train_round(world, graph, state, store, chosen, number, rounds)
            times.append(time.perf_counter() - begun)
        held = sum(file.stat().st_blocks * 512 for file in Path(folder).iterdir()) / 2**20
    stop.set()
    watcher.join()
    pipe.send({"clients": clients, "cohort": cohort, "rounds": rounds, "seconds": statistics.median(times[1:]),
               "before": before, "peak": peak[0], "disk": held})  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="three rounds, at most 10,000 clients")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} threads, seed 0")
    print(f"{'registered':>10} {'a round':>8} {'s a round':>10} {'before MiB':>11} {'peak MiB':>9} {'disk MiB':>9}")
    found = []
    for clients, cohort in (*ALL, *SOME):
        if options.quick and clients > 10_000:
            continue
        receive, send = multiprocessing.Pipe(False)
        rounds = 3 if options.quick else 20 if (clients, cohort) in SOME else 5
        worker = multiprocessing.get_context("spawn").Process(target=measure, args=(clients, cohort, rounds, send))
        worker.start()
        found.append(one := receive.recv())
        worker.join()
        print(f"{clients:>10,} {cohort:>8,} {one['seconds']:>10.3f} {one['before']:>11.0f} {one['peak']:>9.0f} "
              f"{one['disk']:>9.1f}", flush=True)  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    sys.exit(main())
