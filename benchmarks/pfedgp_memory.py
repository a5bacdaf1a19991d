"""How much memory pFedGP takes for clients of many samples, beside what it declares.

    python benchmarks/pfedgp_memory.py train 600 2 256    # samples a client, clients, MiB allowed
    python benchmarks/pfedgp_memory.py score 600 2 256
    python benchmarks/pfedgp_memory.py train 2400 1 2048 vb    # a mean field, all nodes at once

The highest resident memory of the process, after a run with one client of 4 samples and after the real one.
"""

from __future__ import annotations

import resource
import sys
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from oracles.sims import Run, federate

from posterity import models
from posterity.methods.pfedgp import PFedGP

INPUTS, CLASSES, HELD = 64, 10, 100


def go(what: str, samples: int, clients: int, memory: int, method: PFedGP) -> None:
    """One round of training, or the predictions of all clients."""
    draw = torch.Generator().manual_seed(0)
    train, test = (
        [(torch.randn(size, INPUTS, generator=draw), torch.arange(size) % CLASSES) for _ in range(clients)]
        for size in (samples, HELD)
    )
    network = models.build("mlp", (INPUTS,), CLASSES)
    run = Run(method, federate(train, CLASSES, test=test), network, dtype=torch.float32)
    run.sim = replace(run.sim, memory=memory)
    if what == "train":
        run.rounds(1)
    else:
        run.outputs("received")


def highest() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    what, (samples, clients, allowed), rest = sys.argv[1], map(int, sys.argv[2:5]), sys.argv[5:]
    method = PFedGP(inference=rest[0]) if rest else PFedGP()
    torch.set_num_threads(1)
    go(what, 4, 1, 2**30, method)
    before = highest()
    go(what, samples, clients, allowed * 2**20, method)
    scratch = (method.passes() if what == "train" else method.prepare())[-1].scratch
    assert scratch is not None
    declared = scratch(samples, models.build("mlp", (INPUTS,), CLASSES)) * 4 / 2**20
    print(f"{what}: {before:.0f} MiB before, {highest():.0f} MiB at most; declared {declared:.0f} MiB a client")


if __name__ == "__main__":
    main()
