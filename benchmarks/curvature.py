"""FedBPS's curvature squared layer by layer, and with a gradient for every row of every layer, in turns.

    python benchmarks/curvature.py [--device cuda] [--rows 32] [--repeats 7] [--threads 1]

One batch of one client; the least time of each way, and their ratio.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

import torch

from posterity import models
from posterity.core import Batch, Here, Network, Params
from posterity.core.random import make_key
from posterity.methods.fedbps import curvature, squares

NETWORKS: Mapping[str, tuple[int, ...]] = {"cnn": (3, 32, 32), "lenet5": (1, 28, 28), "lenet_wide": (3, 32, 32),
                                            "resnet20": (3, 32, 32)}  # fmt: skip


def seconds(way: Any, estimator: str, params: Params, batch: Batch, here: Here) -> float:
    """Of one call in which `way` says which layers are squared as such."""
    usual, squares.single_layers = squares.single_layers, way
    try:
        begun = time.perf_counter()
        curvature.diagonal(estimator, params, batch, here)
        if batch.x.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - begun
    finally:
        squares.single_layers = usual


def none(params: Params, x: torch.Tensor, model: Network) -> dict[str, Any]:
    return {}


def main() -> None:
    parser = argparse.ArgumentParser(description="FedBPS's curvature, two ways.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    draw = torch.Generator().manual_seed(0)
    print("| network | estimator | a gradient a row, ms | by layers, ms | ratio |\n|---|---|--:|--:|--:|")
    for name, shape in NETWORKS.items():
        model = models.build(name, shape, 10)
        params = {n: p.to(args.device) for n, p in model.init(0).items()}
        x, y = torch.randn(args.rows, *shape, generator=draw), torch.randint(10, (args.rows,), generator=draw)
        batch = Batch(x.to(args.device), y.to(args.device), torch.ones(args.rows, device=args.device))
        here: Any = type("Seen", (), {"model": model, "key": make_key(0, device=args.device)})
        for estimator in ("ggn", "mc_fisher", "empirical_fisher"):
            ways = (none, squares.single_layers)
            turns = [[seconds(way, estimator, params, batch, here) for way in ways] for _ in range(args.repeats)]
            apart, together = (1000 * min(each) for each in zip(*turns, strict=True))
            print(f"| {name} | {estimator} | {apart:.1f} | {together:.1f} | {together / apart:.2f} |")


if __name__ == "__main__":
    main()
