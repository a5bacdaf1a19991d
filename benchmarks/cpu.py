"""Six workloads on a CPU, each in every way that posterity has, against a plain PyTorch loop, all in one run.

    python benchmarks/cpu.py [--only mlp-100,cnn-10] [--rounds 5] [--json FILE]

A workload is a network and a number of clients with 20, 30 or 40 synthetic images each; batch 10, one epoch, FedAvg. A
round is timed, from the broadcast to the new state. `plain` is what one would write without this library: one module,
autograd and an optimiser per client, one client after the other, all cores as threads (`plain, 1 thread`: one of them).
The ways take turns, so that a busy moment of the machine hits all of them; recordings are made in the rounds before,
which are not counted. `loop` has as many clients side by side as there are cores, each with one thread. `processes` is
one process of one thread per core, with the clients shared out. `auto` is what the rule of `engine/choose.py` takes
(`choice.py` says how far it is from the best). Slow workloads have fewer rounds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import socket
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from posterity import models
from posterity.core.passes import Training
from posterity.core.random import make_key
from posterity.data.federation import Federation, Part
from posterity.engine.blocks import footprint
from posterity.engine.cache import TraceCache
from posterity.engine.choose import EngineChoice, Wish, choose
from posterity.engine.engines import find_engine
from posterity.engine.process_settings import with_onednn, with_threads
from posterity.engine.processes import find_processes
from posterity.engine.round import first_state, train_round
from posterity.engine.simulation import Simulation
from posterity.engine.store import Store
from posterity.methods.fedavg import FedAvg

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
BATCH, LR = 10, 0.05
WARM = 2  # rounds before those that count
SLOW, FEWER = 0.5, 3  # from so many seconds a round, so many rounds


@dataclass(frozen=True)
class Workload:
    network: str
    shape: tuple[int, ...]
    clients: int
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def convolves(self) -> bool:
        return self.network != "mlp"


WORKLOADS = {
    "mlp-10": Workload("mlp", (1, 8, 8), 10, {"hidden": (64,)}),
    "mlp-100": Workload("mlp", (1, 8, 8), 100, {"hidden": (64,)}),
    "lenet-10": Workload("lenet5", (1, 28, 28), 10),
    "cnn-10": Workload("cnn", (3, 32, 32), 10),
    "cnn-100": Workload("cnn", (3, 32, 32), 100),
    "resnet20-10": Workload("resnet20", (3, 32, 32), 10),
}


@dataclass(frozen=True)
class Way:
    """An engine, a way to convolve and whether oneDNN may."""

    engine: str
    convolution: str = "native"
    onednn: bool = True


PLAIN, SINGLE, SHARED = "plain", "plain, 1 thread", "processes"
EVERY = {"loop": Way("loop"), "stacked": Way("stacked"), "graph": Way("graph")}
FLAT = {"compiled": Way("compiled")}
CONVOLVING = {
    "patches": Way("graph", "patches"),
    "loop, channel last": Way("loop", "last"),
    "loop, no oneDNN": Way("loop", onednn=False),
    "graph, no oneDNN": Way("graph", onednn=False),
}


def make_simulation(load: Workload) -> Simulation:
    """The workload's federation, network and first parameters."""
    generator = torch.Generator().manual_seed(0)
    counts = BATCH * torch.randint(2, 5, (load.clients,), generator=generator)
    offsets = torch.cat((torch.zeros(1, dtype=torch.long), counts.cumsum(0)))
    total = int(counts.sum())
    x = torch.randn(total, *load.shape, generator=generator)
    y = torch.randint(0, 10, (total,), generator=generator)
    part, nothing = Part(torch.arange(total), offsets), Part(torch.zeros(0, dtype=torch.long), offsets * 0)
    names = tuple(str(k) for k in range(load.clients))
    federation = Federation("synthetic", "classification", x, y, 10, part, nothing, nothing, load.clients, names)
    model = models.build(load.network, load.shape, 10, **load.options)
    initial = model.init(0)
    sample = footprint(model, x[:2], initial)
    return Simulation(FedAvg(Training(lr=LR)), model, federation, initial, make_key(0), sample=sample)


def plain_round(sim: Simulation) -> Callable[[int], None]:
    """A round of FedAvg as one would write it without this library."""
    federation, module = sim.federation, sim.model.make()
    start = {n: p.clone() for n, p in module.state_dict().items()}

    def go(round: int) -> None:
        total = {n: torch.zeros_like(p) for n, p in start.items() if p.is_floating_point()}
        for client in range(federation.clients):
            module.load_state_dict(start)
            optimiser = torch.optim.SGD(module.parameters(), lr=LR)
            rows = federation.train.client(client)
            for batch in torch.split(rows[torch.randperm(len(rows))], BATCH):
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(module(federation.x[batch]), federation.y[batch]).backward()
                optimiser.step()
            after = module.state_dict()
            for n, p in total.items():
                p += len(rows) * after[n]

    return go


def single(go: Callable[[int], None]) -> Callable[[int], None]:
    """The same with one thread."""

    def alone(round: int) -> None:
        with with_threads(1):
            go(round)

    return alone


def our_round(sim: Simulation, way: Way) -> Callable[[int], None]:
    """A round by one of our ways, on recordings of its own."""
    model = sim.model.with_conv_backend(way.convolution)  # type: ignore[arg-type]
    own = replace(sim, model=model, traces=TraceCache(patience=0))
    state, store = first_state(own), Store(own.federation.clients)
    cohort = torch.arange(own.federation.clients)

    def go(round: int) -> None:
        with with_onednn(way.onednn):
            train_round(own, find_engine(way.engine), state, store, cohort, round, 1)

    return go


def decide(sim: Simulation) -> EngineChoice:
    """What `auto` chooses."""
    return choose(Wish(), sim.model, sim.federation.x[:2], sim.initial, BATCH)


class Team:
    """Processes of one thread that share out the clients of a workload."""

    def __init__(self, name: str) -> None:
        context, port = multiprocessing.get_context("spawn"), _free_port()
        self.pipes, self.workers = [], []
        for rank in range(CORES):
            mine, theirs = context.Pipe()
            worker = context.Process(target=_serve, args=(name, rank, port, theirs))
            worker.start()
            self.pipes.append(mine)
            self.workers.append(worker)
        self.way, *_ = [pipe.recv() for pipe in self.pipes]

    def go(self, round: int) -> None:
        for pipe in self.pipes:
            pipe.send(round)
        for pipe in self.pipes:
            pipe.recv()

    def end(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)
        for worker in self.workers:
            worker.join()


def _serve(name: str, rank: int, port: int, pipe: Connection) -> None:
    """A worker: rounds as they are asked for."""
    torch.set_num_threads(1)
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": CORES, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({n: str(v) for n, v in own.items()})
    processes, _ = find_processes("cpu")
    sim = make_simulation(WORKLOADS[name])
    sim = replace(sim, processes=processes.dealt(sim.federation.train.counts, sim.federation.members))
    way = _way_of(decide(sim))
    go = our_round(sim, way)
    pipe.send(way)
    while (round := pipe.recv()) is not None:
        go(round)
        pipe.send(True)


def _way_of(choice: EngineChoice) -> Way:
    return Way(choice.engine.name, choice.model.conv_backend or "native", choice.onednn)


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Milliseconds a round (medians) of every way, and what `auto` chose."""
    load = WORKLOADS[name]
    sim = make_simulation(load)
    ways = {**EVERY, **(CONVOLVING if load.convolves else FLAT)}
    choice = decide(sim)
    team = Team(name)
    plain = plain_round(sim)
    go = {PLAIN: plain, SINGLE: single(plain), **{n: our_round(sim, way) for n, way in ways.items()}, SHARED: team.go}
    took: dict[str, list[float]] = {n: [] for n in go}
    for round in range(1, WARM + rounds + 1):
        for n, one in go.items():
            begun = time.perf_counter()
            one(round)
            took[n].append(time.perf_counter() - begun)
        if len(took[PLAIN]) >= WARM + FEWER and took[PLAIN][-1] > SLOW:
            break
    team.end()
    steps = int(((sim.federation.train.counts + BATCH - 1) // BATCH).sum())
    chosen = next(n for n, way in ways.items() if way == _way_of(choice))
    times = {n: 1000 * statistics.median(found[WARM:]) for n, found in took.items()}
    return {"times": times, "auto": chosen, "remark": choice.remark, "team": vars(team.way), "steps": steps,
            "load": os.getloadavg()[0]}  # fmt: skip


def show(name: str, found: dict[str, Any]) -> None:
    times = found["times"]
    print(f"\n{name}: {found['steps']} steps, plain {times[PLAIN]:.1f} ms a round; load {found['load']:.1f}")
    for way, took in times.items():
        mark = "  <- auto" if way == found["auto"] else ""
        print(f"  {way:>18} {took:>9.1f} ms  plain/it {times[PLAIN] / took:>6.2f}{mark}")
    team = found["team"]
    print(
        f"  each process: {team['engine']} {team['convolution']}{'' if team['onednn'] else ' without oneDNN'}",
        flush=True,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(WORKLOADS), help="workloads, comma separated")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that count, of which the median is taken")
    parser.add_argument("--json", help="also write the numbers to this file")
    options = parser.parse_args()
    torch.set_num_threads(CORES)
    print(f"torch {torch.__version__}, {platform.machine()}, {CORES} cores, seed 0, medians of {options.rounds} rounds")
    found = {}
    for name in options.only.split(","):
        found[name] = measure(name, options.rounds)
        show(name, found[name])
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    sys.exit(main())
