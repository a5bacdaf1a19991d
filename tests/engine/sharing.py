"""What `test_processes_distributed.py` starts in several processes: runs whose end the first process writes down."""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

import posterity
from posterity.core.tree import tree_named
from posterity.engine.processes import started_first
from posterity.runs.lines import rounds_of, scores_of

KINDS = ("pfedvmp", "fedmap", "scaffold")  # matrices, log-weights, sums beside means: what a tree of totals adds up
OTHERS = ("fedavg", "fedbps", "fedavg+metavd")  # for `make test-all`
SMALL = {"dataset": "digits", "clients": 7, "newcomers": "1", "rounds": 2, "subset": "30%", "participation": "60%",
         "evaluate_every": 2, "dtype": "float64", "lr": 0.05, "set": {"model.hidden": 8}}  # fmt: skip


def end_of(method: str) -> dict:
    """State, records and scores of a run, by name."""
    result = posterity.run(method=method, **SMALL)
    if not started_first():
        return {}
    found = {f"state/{n}": t for n, t in tree_named(result.state)}
    found |= {f"rows/{n}": t for n, t in tree_named(result.store.rows)} if result.store.rows != () else {}
    scores = [v for line in scores_of(result.lines) for v in line.metrics["nll"].values()]
    bytes_up = [line.bytes_up for line in rounds_of(result.lines)]
    numbers = torch.tensor([v for v in scores + bytes_up if v is not None], dtype=torch.float64)
    return {n: t.contiguous().clone() for n, t in found.items()} | {"scores": numbers}


if __name__ == "__main__":
    for name in sys.argv[2:]:
        end = end_of(name)
        if started_first():
            save_file(end, Path(sys.argv[1]) / f"{name}.safetensors")
