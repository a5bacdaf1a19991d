"""What a run ends with, as hashes: a redesign must not move a bit.

Two rounds on digits with half of the clients, for every method, with the loop, the stack and its replay, in two
precisions and with two networks. A hash covers the names, types, shapes and bytes of everything in the checkpoint (the
server's state, the personal records, who has one) and all scores of the run; times are left out. Bits depend on the
machine's kernels, so the hashes are those of one processor and one PyTorch, named in the file.

    python tests/golden/checkpoints.py                       compare with the recorded hashes
    python tests/golden/checkpoints.py --only fedavg         some of them
    python tests/golden/checkpoints.py --record              record, at the commit that is to be compared with
    python tests/golden/checkpoints.py --against COMMIT      on a machine without hashes: run that commit, too

A change that is meant to move numbers records them anew, in a commit that says which and why.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from posterity.engine.cache import PATIENCE
from posterity.runs.lines import as_dict

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
HASHES = FOLDER / "hashes.json"
METHODS = (
    *("fedavg", "fedbn", "fedbps", "fedmap", "fednp", "fedpa", "fedper", "fedprox", "local", "maml", "perfedavg"),
    *("pfedvmp", "reptile", "scaffold"),
)
WRAPPED = ("fedavg+ft", "fedavg+calibrated", "reptile+metavd", "fedavg+drop", "fedavg+snip", "pfedvmp@paper")
RECORDED = {"reptile+metavd": "reptile+metavd", "fedavg+drop": "fedavg+metavd+drop"}  # with β = 10
CALLS = 3  # before a recording, so that two short rounds replay something


def cases() -> Iterator[str]:
    """Names of all runs: method, engine, precision, network."""
    for method in METHODS:
        for engine in ("loop", "stacked", "graph"):
            for dtype in ("float64", "float32"):
                for model in ("mlp", "cnn"):
                    yield f"{method} {engine} {dtype} {model}"
    for method in WRAPPED:
        yield f"{method} stacked float32 mlp"
    yield "pfedvmp graph float32 mlp seeds"


def identity() -> str:
    """What bits depend on: the processor, whose kernels differ, PyTorch, and the BLAS that it was built with."""
    known, path = {}, Path("/proc/cpuinfo")
    for line in path.read_text().splitlines() if path.exists() else ():
        name, _, value = line.partition(":")
        known.setdefault(name.strip(), value.strip())
    model = [known[name] for name in ("model name", "CPU implementer", "CPU variant", "CPU part") if name in known]
    blas = re.search(r"BLAS_INFO=(\w+)", torch.__config__.show())
    built = f"torch {torch.__version__.partition('+')[0]}, BLAS {blas[1] if blas else 'unknown'}"
    return f"{platform.machine()} {' '.join(model)}, {built}, one thread"


@contextmanager
def impatient() -> Iterator[None]:
    """Have steps recorded after a few calls."""
    before = dict(PATIENCE)
    PATIENCE.update(dict.fromkeys(before, CALLS))
    try:
        yield
    finally:
        PATIENCE.update(before)


def hash_of(case: str) -> str:
    """The hash of one run."""
    import posterity

    method, engine, dtype, model, *more = case.split()
    settings: dict[str, Any] = {"dataset": "digits", "partition": "dirichlet:0.5", "clients": 10, "newcomers": "2"}
    settings |= {"participation": "50%", "rounds": 2, "evaluate_every": 2, "batch_size": 10, "subset": "40%"}
    settings |= {"engine": engine, "dtype": dtype, "model": model, "onednn": "off", "convolution": "native"}
    settings |= {"method": RECORDED.get(method, method), "set": {"beta": 10} if method in RECORDED else {}}
    with tempfile.TemporaryDirectory() as folder:
        if more:
            results = posterity.run_seeds([0, 1], **settings)
        else:
            results = [posterity.run(**settings)]
        digest = hashlib.sha256()
        for number, result in enumerate(results):
            path = result.save(Path(folder) / str(number))
            digest.update(contents(path / "checkpoint.safetensors"))
            digest.update(json.dumps([timeless(line) for line in map(as_dict, result.lines)], sort_keys=True).encode())
    return digest.hexdigest()


def contents(path: Path) -> bytes:
    """Everything in a checkpoint but its facts."""
    digest = hashlib.sha256()
    with safe_open(path, framework="pt") as file:
        for name in sorted(file.keys()):
            leaf = file.get_tensor(name)
            digest.update(f"{name} {leaf.dtype} {tuple(leaf.shape)}".encode())
            digest.update(leaf.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if leaf.numel() else b"")
    return digest.digest()


def timeless(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in ("seconds", "flat")}


def hashes(names: list[str]) -> dict[str, str]:
    torch.set_num_threads(1)
    found = {}
    with impatient():
        for name in names:
            found[name] = hash_of(name)
            print(f"{found[name][:16]}  {name}", file=sys.stderr, flush=True)
    return found


def recorded() -> dict[str, str] | None:
    """The hashes for this machine; None if there are none."""
    table: dict[str, dict[str, str]] = json.loads(HASHES.read_text()) if HASHES.exists() else {}
    return table.get(identity())


def of_commit(commit: str, only: str) -> dict[str, str]:
    """The hashes that another commit gives on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "--detach", folder, commit], check=True)
        try:
            command = [sys.executable, str(FOLDER / "checkpoints.py"), "--print", "--only", only]
            told = subprocess.run(command, env={**os.environ, "PYTHONPATH": folder}, check=True, stdout=subprocess.PIPE)
        finally:
            subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", folder], check=True)
    found: dict[str, str] = json.loads(told.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="text in the names of the runs")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--print", action="store_true", help="print all hashes as JSON")
    parser.add_argument("--against", metavar="COMMIT")
    asked = parser.parse_args()
    before = None
    if not (asked.record or asked.print):
        before = of_commit(asked.against, asked.only) if asked.against else recorded()
        if before is None:
            print(f"no hashes for {identity()} in {HASHES}: give --against COMMIT")
            return 2
    now = hashes([name for name in cases() if asked.only in name])
    if asked.print:
        print(json.dumps(now))
    elif asked.record:
        table = json.loads(HASHES.read_text()) if HASHES.exists() else {}
        table[identity()] = {**table.get(identity(), {}), **now}
        HASHES.write_text(json.dumps(table, indent=1) + "\n")
    else:
        moved = [name for name, value in now.items() if before and before.get(name) != value]
        print("\n".join([f"{len(now) - len(moved)} of {len(now)} runs end with the same bits", *moved]))
        return 1 if moved else 0
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
