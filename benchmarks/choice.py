"""How far `--engine auto` is from the best on a CPU: the rule's choice against every other way, timed in turns.

    python benchmarks/choice.py [--quick] [--only lenet-10,cnn-10] [--threads 2] [--json FILE]

The workloads of `cpu.py` and two of the size of MetaVD's network; for each, milliseconds of a round in every way that a
run could begin with at once (`compiled` first compiles for a minute), what the rule of `engine/choose.py` takes, the
best, and their ratio; in the end the geometric mean and the worst of the ratios. `--quick`: without the slow ones,
in about two minutes. Everything is seeded; what varies is the machine.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from typing import Any

import torch
from cpu import BATCH, CONVOLVING, CORES, EVERY, WARM, WORKLOADS, Way, Workload, decide, make_simulation, our_round

LOADS = {
    **WORKLOADS,
    "metavd-20": Workload("metavd_cnn", (1, 8, 8), 20, {"width": 16, "hidden": (64, 32)}),
    "lenet-100": Workload("lenet5", (1, 28, 28), 100),
}
SLOW = ("cnn-100", "resnet20-10", "lenet-100")


def time_ways(name: str, rounds: int) -> dict[str, Any]:
    """Milliseconds of a round in each way (the least of several: others may be at work), and the rule's way."""
    load = LOADS[name]
    sim = make_simulation(load)
    ways = {**EVERY, **(CONVOLVING if load.convolves else {})}
    go = {n: our_round(sim, way) for n, way in ways.items()}
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter  # what others do counts less so
    took: dict[str, list[float]] = {n: [] for n in go}
    for round in range(1, WARM + rounds + 1):
        for n, one in go.items():
            begun = clock()
            one(round)
            took[n].append(1000 * (clock() - begun))
    choice = decide(sim)
    rule = Way(choice.engine.name, choice.model.conv_backend or "native", choice.onednn)
    times = {n: min(found[WARM:]) for n, found in took.items()}
    return {"times": times, "rule": next(n for n, way in ways.items() if way == rule), "remark": choice.remark}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", help="workloads, comma separated")
    parser.add_argument("--threads", type=int, default=CORES)
    parser.add_argument("--json", help="also write the numbers to this file")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {platform.machine()}, {options.threads} threads, batch {BATCH}, seed 0")
    names = options.only.split(",") if options.only else [n for n in LOADS if not (options.quick and n in SLOW)]
    found = {}
    for name in names:
        found[name] = one = time_ways(name, 3 if options.quick else 7)
        best = min(one["times"], key=lambda n: one["times"][n])
        one["ratio"] = one["times"][one["rule"]] / one["times"][best]
        shown = ", ".join(f"{n} {ms:.1f}" for n, ms in one["times"].items())
        print(f"{name}: rule {one['rule']}, best {best}, ratio {one['ratio']:.2f}   ({shown})", flush=True)
    ratios = [one["ratio"] for one in found.values()]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"geometric mean {mean:.2f}, worst {max(ratios):.2f}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
