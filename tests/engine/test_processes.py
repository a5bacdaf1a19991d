"""The command line under `torchrun`: the same result as one process, also after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import posterity
from posterity.engine.processes import PeerLost, Processes
from posterity.experiment import run
from posterity.runs import files
from posterity.runs import folder as run_folder
from posterity.settings.config import Config

CONFIG = Config(method="fedper", dataset="digits", clients=5, newcomers="1", rounds=6, evaluate_every=3, subset="20%",
                participation="60%", dtype="float64", lr=0.05, set={"model.hidden": "8"})  # fmt: skip
FLAGS = ["--method", "fedper", "--dataset", "digits", "--clients", "5", "--newcomers", "1", "--evaluate-every", "3",
         "--subset", "20%", "--participation", "60%", "--dtype", "float64", "--lr", "0.05", "--set", "model.hidden=8",
         "--quiet"]  # fmt: skip
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def run_command(out: Path, rounds: int) -> list[str]:
    return [*TORCHRUN, "-m", "posterity", "run", *FLAGS, "--rounds", str(rounds), "--out", str(out)]


def finish(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, env=ENVIRONMENT)


def remains(out: Path):
    """State, records and scores of a finished run."""
    leaves, _ = run_folder.read_checkpoint(out)
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in files.read_lines(out / run_folder.METRICS)]
    return leaves, lines


def test_processes_end_where_one_process_ends(tmp_path):
    done = finish(run_command(tmp_path / "many", 6))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("FedPer reaches") == 1  # only the first process speaks
    run.start_run(CONFIG, tmp_path / "one")
    (many, lines), (one, others) = (remains(tmp_path / name) for name in ("many", "one"))
    assert many.keys() == one.keys()
    for name, leaf in one.items():
        assert torch.allclose(many[name].double(), leaf.double(), rtol=1e-9, atol=1e-11), name
    for mine, theirs in zip(lines, others, strict=True):
        if mine["kind"] == "score":
            values = [[v for v in line["metrics"]["nll"].values() if v is not None] for line in (mine, theirs)]
            assert values[0] == pytest.approx(values[1], rel=1e-9)
    facts = files.read_json(tmp_path / "many" / run_folder.RUN)
    assert (facts["processes"], facts["threads"], facts["engine"]) == (2, 1, "graph")


@pytest.mark.everything
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_killed_run_goes_on_in_as_many_processes(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert finish(run_command(whole, 60)).returncode == 0
    parent = subprocess.Popen(
        run_command(cut, 60), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT
    )
    wait_for(lambda: (cut / run_folder.METRICS).exists() and len(files.read_lines(cut / run_folder.METRICS)) > 4)
    for path in Path("/proc").glob("[0-9]*/cmdline"):  # torchrun gives each of them a session of its own
        if str(cut) in path.read_bytes().decode():
            os.kill(int(path.parent.name), signal.SIGKILL)
    parent.wait()
    wait_for(lambda: free(cut))
    alone = finish([sys.executable, "-m", "posterity", "resume", str(cut), "-q"])
    assert alone.returncode == 2, alone.stderr
    assert "torchrun --standalone --nproc-per-node 2 -m posterity resume" in alone.stderr
    done = finish([*TORCHRUN, "-m", "posterity", "resume", str(cut), "-q"])
    assert done.returncode == 0, done.stderr
    (left, lines), (right, others) = remains(cut), remains(whole)
    assert lines == others
    assert all(torch.equal(leaf, right[name]) for name, leaf in left.items())


def wait_for(condition) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, "nothing happened for two minutes"
        time.sleep(0.02)


def free(out: Path) -> bool:
    """Whether no process holds the run."""
    try:
        with files.locked(out):
            return True
    except ValueError:
        return False


def test_a_run_that_was_shared_out_goes_on_in_as_many_processes(tmp_path):
    result = posterity.run(method="fedavg", dataset="digits", clients=4, rounds=1, subset="10%", out=tmp_path / "run")
    path = tmp_path / "run" / run_folder.RUN
    facts = {name: value for name, value in files.read_json(path).items() if name != "status"}
    files.write_json(path, {**facts, "processes": 3})
    with pytest.raises(ValueError, match=r"among 3 processes, and here are 1: .*torchrun .*-per-node 3 -m posterity"):
        run.resume_run(result.folder)


def test_a_broken_exchange_is_a_sentence(monkeypatch):
    def broken(*given):
        raise RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer\nmore")

    monkeypatch.setattr(dist, "all_gather", broken)
    with pytest.raises(PeerLost, match=r"another of the processes .*posterity resume.*Connection closed by peer\)$"):
        Processes(0, 2).all_gather(1.0)
