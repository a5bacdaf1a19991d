"""Many clients: memory and time of a round as their number grows, personal records in a file.

    python benchmarks/scale.py [--quick] [--cold | --shards | --larger] [--json FILE]

First all of 100, 1,000 and 10,000 clients take part, then 1,000 of 10,000, 100,000 and 1,000,000 registered ones, drawn
anew each round. FedPer on an MLP 16-32-10 (the head is personal and on disk), five synthetic samples a client,
batch 5, one epoch, each case in a process of its own. `before` is the anonymous memory with data and names loaded,
`peak` the most during the rounds.

`--cold` instead: 1,000 of a million clients, all of which have a row, and whose rows are dropped from the system's page
cache before each round, as in a file that is larger than memory.

`--larger` instead: 100 of 1,000 and of 10,000 clients a round with 3 MiB of personal head each, every row written: 3
and 30 GiB of records, the second more than most machines' memory; 12 rounds. It needs 35 GiB of disk.

`--shards` instead: samples of the busiest process over the mean, when digits are divided among 50 clients by a
Dirichlet(0.3) draw per class; clients by number or dealt out by samples, everybody or 20 % a round, mean of five seeds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

from posterity import data, models
from posterity.core.passes import Training
from posterity.core.random import make_key
from posterity.data.federation import Federation, Part
from posterity.engine.blocks import able
from posterity.engine.disk_store import DiskStore
from posterity.engine.participation import Participation
from posterity.engine.processes import Processes
from posterity.engine.round import first_state, train_round
from posterity.engine.simulation import Simulation
from posterity.fast.graph import engine as GRAPH
from posterity.methods.fedper import FedPer

SAMPLES, FEATURES = 5, 16
ALL = ((100, 100), (1000, 1000), (10_000, 10_000))
SOME = ((10_000, 1000), (100_000, 1000), (1_000_000, 1000))
ROW = 4 * (32 * 10 + 10)  # bytes of a head


def make_simulation(clients: int, hidden: int = 32) -> Simulation:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(clients * SAMPLES, FEATURES, generator=generator)
    y = torch.randint(0, 10, (clients * SAMPLES,), generator=generator)
    offsets = torch.arange(clients + 1) * SAMPLES
    part, nothing = Part(torch.arange(len(x)), offsets), Part(torch.zeros(0, dtype=torch.long), offsets * 0)
    names = tuple(map(str, range(clients)))
    federation = Federation("synthetic", "classification", x, y, 10, part, nothing, nothing, clients, names)
    model = models.build("mlp", (FEATURES,), 10, hidden=(hidden,))
    return Simulation(FedPer(Training(lr=0.1, batch=5)), model, federation, model.init(0), make_key(0))


def anonymous() -> float:
    """MiB that belong to this process alone."""
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("RssAnon")).split()[1]) / 1024


def write_rows(folder: str, clients: int, width: int) -> None:
    """A row for every client: zeros that are written, not a hole."""
    with open(Path(folder) / "rows.bin", "wb") as file:
        for _ in range(clients // 100):
            file.write(bytes(100 * width))
        os.fsync(file.fileno())


def measure(clients: int, cohort: int, rounds: int, hidden: int, pipe: Any) -> None:
    """In a process of its own; with a wider network than usual, all rows are there already."""
    sim, peak, stop = make_simulation(clients, hidden), [0.0], threading.Event()
    before, times = anonymous(), []

    def look() -> None:
        while not stop.wait(0.005):
            peak[0] = max(peak[0], anonymous())

    watcher = threading.Thread(target=look)
    watcher.start()
    with tempfile.TemporaryDirectory() as folder:
        if hidden != 32:
            write_rows(folder, clients, 4 * 10 * (hidden + 1))
        state, store, everyone = first_state(sim), DiskStore(Path(folder), clients), able(sim)
        store.known[:] = hidden != 32
        for number in range(1, rounds + 1):
            begun = time.perf_counter()
            chosen = Participation(count=cohort).draw(everyone, sim.root, number)
            state, _ = train_round(sim, GRAPH, state, store, chosen, number, rounds)
            times.append(time.perf_counter() - begun)
        held = sum(file.stat().st_blocks * 512 for file in Path(folder).iterdir()) / 2**20
    stop.set()
    watcher.join()
    pipe.send({"clients": clients, "cohort": cohort, "rounds": rounds, "seconds": statistics.median(times[1:]),
               "before": before, "peak": peak[0], "disk": held})  # fmt: skip


def forget(store: DiskStore) -> None:
    """Drop all rows from the page cache."""
    store.prepare()
    with store.path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bytes_read() -> int:
    """Bytes that this process has caused to be fetched from the disk."""
    with open("/proc/self/io") as file:
        return int(next(line for line in file if line.startswith("read_bytes")).split()[1])


def measure_cold(clients: int, cohort: int, rounds: int, pipe: Any) -> None:
    """In a process of its own."""
    sim, times, amounts = make_simulation(clients), [], []
    with tempfile.TemporaryDirectory() as folder:
        write_rows(folder, clients, ROW)
        state, store, everyone = first_state(sim), DiskStore(Path(folder), clients), able(sim)
        store.known[:] = True
        cohorts = [Participation(count=cohort).draw(everyone, sim.root, number) for number in range(1, rounds + 1)]
        for number in range(rounds):
            if number:
                forget(store)
            before, begun = bytes_read(), time.perf_counter()
            state, _ = train_round(sim, GRAPH, state, store, cohorts[number], number + 1, rounds)
            times.append(time.perf_counter() - begun)
            amounts.append(bytes_read() - before)
    pipe.send({"seconds": statistics.median(times[2:]), "read": statistics.median(amounts[2:]) / 2**20})


def imbalance(processes: Processes, counts: torch.Tensor, cohort: torch.Tensor) -> float:
    """Samples of the busiest process over the mean of all."""
    loads = torch.bincount(processes.owner(cohort), counts[cohort], minlength=processes.size)
    return float(loads.max() / loads.mean())


def show_shards() -> None:
    print("processes  all: number  samples  20 %: number  samples")
    for size in (2, 4, 8):
        found: list[list[float]] = [[], [], [], []]
        for seed in range(5):
            federation = data.load("digits", partition="dirichlet:0.3", clients=50, seed=seed)
            counts, everyone = federation.train.counts, torch.arange(50)
            some = [Participation(share=0.2).draw(everyone, make_key(seed), number) for number in range(1, 41)]
            for slot, processes in enumerate((Processes(0, size), Processes(0, size).dealt(counts, 50))):
                found[slot].append(imbalance(processes, counts, everyone))
                found[2 + slot] += [imbalance(processes, counts, cohort) for cohort in some]
        everybody, dealt, few, few_dealt = map(statistics.mean, found)
        print(f"{size:>9} {everybody:>12.2f} {dealt:>8.2f} {few:>13.2f} {few_dealt:>8.2f}")


def alone(target: Any, *how: Any) -> dict[str, Any]:
    """What `target` finds in a fresh process."""
    receive, send = multiprocessing.Pipe(False)
    worker = multiprocessing.get_context("spawn").Process(target=target, args=(*how, send))
    worker.start()
    found: dict[str, Any] = receive.recv()
    worker.join()
    return found


def show_cold(clients: int) -> None:
    one = alone(measure_cold, clients, 1000, 12)
    print(f"{one['seconds']:>8.3f} s a round, {one['read']:>7.1f} MiB read", flush=True)


def show_larger(quick: bool) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    for clients in (1000, 10_000):
        one = alone(measure, clients, 100, 12, 786 if quick else 78_600)
        print(f"{clients:>7,} clients: {one['seconds']:.2f} s a round, {one['before']:.0f} MiB before, "
              f"{one['peak']:.0f} at most, {one['disk'] / 1024:.1f} GiB on disk, {memory:.0f} GiB of memory",
              flush=True)  # fmt: skip


def show_rounds(quick: bool) -> list[dict[str, Any]]:
    print(f"{'registered':>10} {'a round':>8} {'s a round':>10} {'before MiB':>11} {'peak MiB':>9} {'disk MiB':>9}")
    found = []
    for clients, cohort in (*ALL, *SOME):
        if quick and clients > 10_000:
            continue
        rounds = 3 if quick else 20 if (clients, cohort) in SOME else 5
        found.append(one := alone(measure, clients, cohort, rounds, 32))
        print(f"{clients:>10,} {cohort:>8,} {one['seconds']:>10.3f} {one['before']:>11.0f} {one['peak']:>9.0f} "
              f"{one['disk']:>9.1f}", flush=True)  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="three rounds, at most 10,000 clients")
    parser.add_argument("--cold", action="store_true", help="rows that are not in memory")
    parser.add_argument("--larger", action="store_true", help="more records than memory")
    parser.add_argument("--shards", action="store_true", help="how evenly processes share the samples")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {platform.machine()}, {torch.get_num_threads()} threads, seed 0")
    if options.shards:
        show_shards()
    elif options.larger:
        show_larger(options.quick)
    elif options.cold:
        show_cold(10_000 if options.quick else 1_000_000)
    else:
        found = show_rounds(options.quick)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    sys.exit(main())
