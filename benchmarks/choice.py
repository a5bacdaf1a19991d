"""What `--engine auto` chooses on a busy machine: by the clock, as it once did, and by the thread's own time, in turn.

    python benchmarks/choice.py [--starts 16] [--busy 5]

A run of MetaVD's network on digits is set up again and again on one thread, while `--busy` processes multiply matrices
for random moments of up to a second. Bits are the same for the same choice only, so all of them should be one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import time
from collections import Counter
from contextlib import nullcontext
from unittest.mock import patch

import torch

from posterity.engine import choose as trials
from posterity.engine.process_settings import with_threads
from posterity.experiment.setup import load_federation, set_up
from posterity.settings.config import Config

CONFIG = Config(method="reptile", dataset="digits", clients=40, partition="dirichlet:5:1", participation="5",
                model="metavd_cnn", batch_size=16, set={"model.width": 16, "model.hidden": "64,32"})  # fmt: skip
LONGEST = 1.0  # seconds of a busy moment, and of a pause


def toil() -> None:
    torch.set_num_threads(1)
    matrix = torch.ones(300, 300)
    while True:
        end = time.perf_counter() + random.uniform(0, LONGEST)
        while time.perf_counter() < end:
            matrix @ matrix
        time.sleep(random.uniform(0, LONGEST))


def count_choices(starts: int) -> dict[str, Counter[str]]:
    """How often each way was chosen, by clock."""
    federation = load_federation(CONFIG)
    found: dict[str, Counter[str]] = {"the clock": Counter(), "own time": Counter()}
    for _ in range(starts):
        for name, counter in found.items():
            wall = patch.object(trials, "clock_of", lambda device: time.perf_counter)
            with wall if name == "the clock" else nullcontext():
                made = set_up(CONFIG, federation, threads=1)
            onednn = "" if made.choice.onednn else " without oneDNN"
            counter[f"{made.engine.name}, {made.sim.model.conv_backend}{onednn}"] += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=16)
    parser.add_argument("--busy", type=int, default=5)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=toil, daemon=True) for _ in range(options.busy)]
    for other in others:
        other.start()
    with with_threads(1):
        for name, counter in count_choices(options.starts).items():
            shown = "; ".join(f"{count} {way}" for way, count in counter.most_common())
            print(f"{name}: {shown} ({max(counter.values()) / options.starts:.0%} alike)")
    for other in others:
        other.terminate()


if __name__ == "__main__":
    main()
