"""One round of pFedVMP's setting on a GPU, every way of running it, in one run.

    python benchmarks/gpu.py [--device cuda] [--rounds 20] [--json FILE] [--ways plain,stacked,...]

Its network, 50 clients by Dirichlet(0.3), 12,000 images 3x32x32 (synthetic: time does not depend on pixels), batch 10,
one epoch, SGD 0.01, full participation. `plain` is eager PyTorch, one client after another, data on the device, nothing
waits for the host inside a client. Times are medians over rounds, after a warm-up. `first` is the time until the first
round is done, with all captures and compilations; `apart` is how differently the first round moves the parameters than
in the first way of the method and precision, relative to how far it moves them: what rounding does,
maxima that flip included.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch

from posterity import methods, models
from posterity.core.protocol import Params
from posterity.core.random import make_key
from posterity.data.federation import Federation, Part
from posterity.data.partition import dirichlet
from posterity.engine.blocks import able
from posterity.engine.engines import find_engine
from posterity.engine.process_settings import ProcessSettings
from posterity.engine.round import first_state, train_round
from posterity.engine.simulation import Simulation
from posterity.engine.store import Store

IMAGES, CLIENTS, CLASSES = 12_000, 50, 10
PUBLIC = 512  # rows that a server may distil on: for time it does not matter whose they are
METHODS = {"fedavg": ("fedavg", {}), "isotropic": ("pfedvmp", {"mode": "isotropic"}),
           "shrinkage": ("pfedvmp", {}), "printed": ("pfedvmp", {"mode": "printed"})}  # fmt: skip


def make_federation(device: str, images: int = IMAGES, clients: int = CLIENTS) -> Federation:
    """Random images, divided by Dirichlet(0.3)."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(images, 3, 32, 32, generator=generator)
    y = torch.randint(0, CLASSES, (images,), generator=generator)
    part = Part.of(dirichlet(y, clients, 0.3, numpy.random.default_rng(0)))
    nothing = Part(torch.zeros(0, dtype=torch.long), part.offsets * 0)
    names = tuple(str(k) for k in range(clients))
    made = Federation("synthetic", "classification", x, y, CLASSES, part, nothing, nothing, clients, names,
                      public=torch.arange(min(images, PUBLIC)))  # fmt: skip
    return made.to(device, torch.float32)


def make_simulation(
    federation: Federation,
    method: str,
    way: str,
    device: str,
    settings: dict[str, str] | None = None,
    precision: str = "ieee",
) -> Simulation:
    """The simulation of a short name of `METHODS` or of any method's spec; `settings` are added."""
    name, chosen = METHODS.get(method, (method, {}))
    model = models.build("cnn", (3, 32, 32), CLASSES).with_conv_backend(way)
    model = model.with_compute_dtype(torch.bfloat16) if precision == "bf16" else model
    initial = {n: p.to(device) for n, p in model.init(0).items()}
    made = methods.build(name, {**chosen, **(settings or {})}, {"lr": 0.01, "batch": 10, "epochs": 1})
    return Simulation(made, model, federation, initial, make_key(0, device), 2**36)


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


@dataclass(frozen=True)
class Timing:
    ms: float  # median of a round, after a warm-up of three
    first: float  # seconds until the first round was done
    warm: float  # seconds of the warm-up
    moved: Params  # by the first round


def time_rounds(sim: Simulation, engine: str, rounds: int, device: str) -> Timing:
    """Rounds, each finished on the device."""
    state, store, times = first_state(sim), Store(sim.federation.clients, device), []
    everyone, moved = able(sim), Params()
    for number in range(1, rounds + 4):
        start = time.perf_counter()
        state, _ = train_round(sim, find_engine(engine), state, store, everyone, number, rounds)
        wait(device)
        times.append(time.perf_counter() - start)
        moved = moved or {n: state.params[n] - p for n, p in sim.initial.items() if n in state.params}
    return Timing(1000 * statistics.median(times[3:]), times[0], sum(times[:3]), moved)


def apart(one: Params, other: Params) -> float:
    """How much two movements differ, relative to the first."""
    pairs = [(one[n].double(), other[n].double()) for n in one]
    return float((sum(((a - b) ** 2).sum() for a, b in pairs) / sum((a**2).sum() for a, _ in pairs)) ** 0.5)


def time_plain(federation: Federation, rounds: int, device: str) -> float:
    """The baseline: FedAvg as one would write it."""
    module = models.build("cnn", (3, 32, 32), CLASSES).module.to(device)
    start = {n: p.clone() for n, p in module.state_dict().items()}
    owned = [federation.train.client(k) for k in range(federation.clients)]
    times = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        total = {n: torch.zeros_like(p) for n, p in start.items()}
        for rows in owned:
            module.load_state_dict(start)
            optimiser = torch.optim.SGD(module.parameters(), lr=0.01)
            for batch in torch.split(rows[torch.randperm(len(rows), device=device)], 10):
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(module(federation.x[batch]), federation.y[batch]).backward()
                optimiser.step()
            for n, p in module.state_dict().items():
                total[n] += len(rows) / IMAGES * p
        wait(device)
        times.append(1000 * (time.perf_counter() - begun))
    return statistics.median(times[1:])


def profile(sim: Simulation, engine: str, device: str, lines: int = 25) -> str:
    """Where the device's time of one round goes."""
    state, store = first_state(sim), Store(sim.federation.clients, device)
    for number in range(1, 5):
        train_round(sim, find_engine(engine), state, store, able(sim), number, 5)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as found:
        train_round(sim, find_engine(engine), state, store, able(sim), 5, 5)
        wait(device)
    table = found.key_averages()
    host = table.table(sort_by="self_cpu_time_total", row_limit=12, max_name_column_width=60)
    return str(table.table(sort_by="self_cuda_time_total", row_limit=lines, max_name_column_width=90)) + str(host)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--methods", default="fedavg,isotropic,printed")
    parser.add_argument("--ways", default="stacked:native,graph:native,graph:patches,graph:triton,compiled:triton")
    parser.add_argument("--precisions", default="ieee,tf32,bf16")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--profile", help="only show where a round's time goes, in the first precision: method:engine:way"
    )
    options = parser.parse_args()
    federation = make_federation(options.device)
    steps = -(-federation.train.counts // 10)
    print(f"torch {torch.__version__}, {platform.machine()}, {options.device}, longest client {int(steps.max())} steps,"
          f" mean active {float(steps.sum() / steps.max()):.1f}")  # fmt: skip
    if options.profile:
        method, engine, way = options.profile.split(":")
        with ProcessSettings(tf32=options.precisions.split(",")[0] == "tf32").applied():
            print(profile(make_simulation(federation, method, way, options.device), engine, options.device))
        return
    plain = time_plain(federation, min(3, options.rounds), options.device)
    found = {"plain": plain}
    print(f"{'plain':40} {plain:9.1f} ms")
    for precision in options.precisions.split(","):
        for method in options.methods.split(","):
            moved = Params()
            for pair in options.ways.split(","):
                engine, way = pair.split(":")
                sim = make_simulation(federation, method, way, options.device, precision=precision)
                with ProcessSettings(tf32=precision == "tf32").applied():
                    took = time_rounds(sim, engine, options.rounds, options.device)
                label, moved = f"{method} {engine} {way} {precision}", moved or took.moved
                found[label] = took.ms
                print(f"{label:40} {took.ms:9.1f} ms {plain / took.ms:7.1f}x   first {took.first:5.1f} s, warm-up "
                      f"{took.warm:5.1f} s, apart {apart(moved, took.moved):.1e}", flush=True)  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
