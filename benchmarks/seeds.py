"""Several seeds of one experiment at once, against one after the other, in one run.

    python benchmarks/seeds.py [--network mlp|cnn] [--device cpu|cuda] [--method fedavg] [--seeds 2,5,10] [--rounds 10]

`mlp`: 20 clients by Dirichlet(0.3) of 1,797 images 1x8x8, batch 10, MLP 64-64-10. `cnn`: pFedVMP's network and setting
as in `gpu.py` (50 clients, 12,000 images 3x32x32). Every seed has its own partition, first network and draws; the
images are random (time does not depend on pixels) and the same for all. A round of all seeds is timed, after a warm-up
of three, both ways in turns. The factor is what a user gains.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch

from posterity import methods, models
from posterity.core.random import make_key
from posterity.data.federation import Federation, Part
from posterity.data.partition import dirichlet
from posterity.engine.blocks import able
from posterity.engine.engines import find_engine
from posterity.engine.process_settings import ProcessSettings
from posterity.engine.round import first_state
from posterity.engine.seeds import MultiSeed, train_rounds
from posterity.engine.simulation import Simulation
from posterity.engine.store import Store

CLASSES, WARM = 10, 3


@dataclass(frozen=True)
class Setting:
    network: str
    shape: tuple[int, ...]
    images: int
    clients: int
    way: Any  # of convolutions, on a GPU


SETTINGS = {
    "mlp": Setting("mlp", (1, 8, 8), 1_797, 20, "native"),
    "cnn": Setting("cnn", (3, 32, 32), 12_000, 50, "triton"),
}


def make_simulations(setting: Setting, method: str, seeds: int, device: str, memory: int) -> list[Simulation]:
    """A simulation for each seed."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(setting.images, *setting.shape, generator=generator).to(device)
    y = torch.randint(0, CLASSES, (setting.images,), generator=generator)
    model = models.build(setting.network, setting.shape, CLASSES)
    model = model.with_conv_backend(setting.way) if device.startswith("cuda") and setting.way != "native" else model
    made = methods.build(method, {}, {"lr": 0.01, "batch": 10, "epochs": 1})
    names, sims = tuple(str(k) for k in range(setting.clients)), []
    for seed in range(seeds):
        part = Part.of(dirichlet(y, setting.clients, 0.3, numpy.random.default_rng(seed)))
        nothing = Part(torch.zeros(0, dtype=torch.long), part.offsets * 0)
        data = Federation("synthetic", "classification", x, y, CLASSES, part, nothing, nothing, len(names), names)
        initial = {n: p.to(device) for n, p in model.init(seed).items()}
        sims.append(Simulation(made, model, data.to(device), initial, make_key(seed, device), memory))
    return sims


def make_round(sims: list[Simulation], engine: str, device: str) -> Callable[[int], None]:
    """A round of all these worlds at once."""
    multi = MultiSeed.of(sims)
    states = [first_state(sim) for sim in sims]
    stores = [Store(sim.federation.clients, device) for sim in sims]
    cohorts = [able(sim) for sim in sims]

    def go(number: int) -> None:
        ends = train_rounds(multi, find_engine(engine), states, stores, cohorts, number, 1)
        states[:] = [state for state, _ in ends]
        if device.startswith("cuda"):
            torch.cuda.synchronize()

    return go


def time_both(sims: list[Simulation], engine: str, rounds: int, device: str) -> tuple[float, float]:
    """Median milliseconds of a round of all worlds, one after the other and at once."""
    alone = [make_round([sim], engine, device) for sim in sims]

    def one_by_one(number: int) -> None:
        for go in alone:
            go(number)

    ways = (one_by_one, make_round(sims, engine, device))
    times: list[list[float]] = [[], []]
    for number in range(1, rounds + WARM + 1):
        for way, found in zip(ways, times, strict=True):
            begun = time.perf_counter()
            way(number)
            found.append(1000 * (time.perf_counter() - begun))
    one, all_at_once = (statistics.median(found[WARM:]) for found in times)
    return one, all_at_once


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--network", default="mlp", choices=sorted(SETTINGS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--engine", default="graph")
    parser.add_argument("--precision", default="ieee")
    parser.add_argument("--seeds", default="2,5,10")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--memory", type=int, default=2**36)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {platform.machine()}, {options.device}, {torch.get_num_threads()} threads, "
          f"{options.network}, {options.method}, {options.engine}, {options.precision}")  # fmt: skip
    found = {}
    for seeds in map(int, options.seeds.split(",")):
        setting = SETTINGS[options.network]
        sims = make_simulations(setting, options.method, seeds, options.device, options.memory)
        with ProcessSettings(tf32=options.precision == "tf32").applied():
            apart, together = time_both(sims, options.engine, options.rounds, options.device)
        found[seeds] = {"apart": apart, "together": together}
        print(f"{seeds:3} seeds: one after the other {apart:8.1f} ms, at once {together:8.1f} ms "
              f"({together / seeds:.1f} a seed), factor {apart / together:.2f}", flush=True)  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
