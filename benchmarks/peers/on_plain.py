"""FedAvg as one would write it in PyTorch: one module, one client after another."""

from __future__ import annotations

import time

import torch
from workload import Outcome, Workload, main, make_data, make_network, train_client


def simulate(work: Workload) -> Outcome:
    x, y = make_data(work)
    module = make_network(work)
    start, begun, seconds = {n: p.clone() for n, p in module.state_dict().items()}, time.time(), []
    for _ in range(work.rounds):
        since = time.perf_counter()
        total = {n: torch.zeros_like(p) for n, p in start.items()}
        for images, labels in zip(x, y, strict=True):
            module.load_state_dict(start)
            train_client(module, images, labels, work)
            for n, p in module.state_dict().items():
                total[n] += p / work.clients  # all have as many images
        start = total
        seconds.append(time.perf_counter() - since)
    module.load_state_dict(start)
    return Outcome(begun, seconds, module)


if __name__ == "__main__":
    main("plain", simulate)
