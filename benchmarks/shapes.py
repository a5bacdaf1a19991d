"""How many shapes the blocks of random cohorts have where a batch is all of a client's data (pFedGP, MetaVD's Table 8).

    POSTERITY_DATA=data python benchmarks/shapes.py        # 1,000 rounds of three seeds, at both α̂

A recording of a GPU is bound to a shape: the rows to which a block is padded, and the number of its clients. Counted
with blocks padded to their own largest client, and to the largest of its class of sizes in the federation, with numbers
of clients rounded up as recordings are; beside it by how much padding makes the cubic work larger.
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import chain

import torch

from posterity.core import make_key
from posterity.engine.batches import bucket, count_widths, size_classes, width_for
from posterity.engine.participation import Participation
from posterity.experiment.setup import load_federation
from posterity.fast._cuda_graphs import COARSE
from posterity.settings.config import Config

SEEDS, MEMBERS = range(3), 100


def sizes_of(alpha: str, seed: int) -> list[int]:
    """Training rows of the members, and behind them of the newcomers."""
    config = Config(dataset="cifar10", partition=f"dirichlet:{alpha}:1", clients=130, newcomers="30",
                    test_partition="independent", seed=seed)  # fmt: skip
    sizes: list[int] = load_federation(config).train.sizes.tolist()
    return sizes


def count(alpha: str, rounds: int) -> str:
    sizes = [sizes_of(alpha, seed) for seed in SEEDS]
    known, draw = count_widths([*chain.from_iterable(sizes)]), Participation.parse("10")
    own, classes, work = set[tuple[int, int]](), set[tuple[int, int]](), [0, 0]
    for number in range(1, rounds + 1):
        cohorts = [draw.draw(torch.arange(MEMBERS), make_key(seed), number) for seed in SEEDS]
        cohort = [mine[k] for mine, some in zip(sizes, cohorts, strict=True) for k in some.tolist()]
        alone = size_classes(cohort)
        for width, clients in Counter(width_for(size, alone) for size in cohort).items():
            own.add((width, clients))
            work[0] += clients * width**3
        for width, clients in Counter(width_for(size, known) for size in cohort).items():
            recorded = bucket(clients, known[width], COARSE)
            classes.add((width, recorded))
            work[1] += recorded * width**3
    return (f"α̂ = {alpha}, {rounds} rounds: {len(own):,} shapes by the blocks' own largest clients, {len(classes):,} "
            f"by {len(known)} classes; cubic work times {work[1] / work[0]:.2f}")  # fmt: skip


if __name__ == "__main__":
    for alpha in ("0.1", "0.5"):
        print(count(alpha, int(sys.argv[1]) if sys.argv[1:] else 1000), flush=True)
