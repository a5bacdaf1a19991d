"""`--engine processes`: one process of one thread per core, the same result as one process, also after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from posterity.cli import launch
from posterity.experiment import run
from posterity.runs import files
from posterity.runs import folder as run_folder
from posterity.settings.config import Config

CONFIG = Config(method="fedper", dataset="digits", clients=5, newcomers="1", rounds=6, evaluate_every=3, subset="20%",
                participation="60%", dtype="float64", lr=0.05, set={"model.hidden": "8"})  # fmt: skip
FLAGS = ["--method", "fedper", "--dataset", "digits", "--clients", "5", "--newcomers", "1", "--evaluate-every", "3",
         "--subset", "20%", "--participation", "60%", "--dtype", "float64", "--lr", "0.05", "--set", "model.hidden=8",
         "--quiet"]  # fmt: skip
several = pytest.mark.skipif(launch.count_cores() < 2, reason="there is one core here, and processes need two")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "posterity", *words]


def run_command(out: Path, rounds: int, engine: str = "processes") -> list[str]:
    return command("run", *FLAGS, "--rounds", str(rounds), "--engine", engine, "--out", str(out))


def remains(out: Path):
    """State, records and scores of a finished run."""
    leaves, _ = run_folder.read_checkpoint(out)
    lines = [{k: v for k, v in line.items() if k != "seconds"} for line in files.read_lines(out / run_folder.METRICS)]
    return leaves, lines


@several
def test_processes_end_where_one_process_ends(tmp_path):
    done = subprocess.run(run_command(tmp_path / "many", 6), capture_output=True, text=True, timeout=300, check=False)
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
    assert facts["processes"] == launch.count_cores()
    assert facts["threads"] * facts["processes"] <= launch.count_cores()
    assert facts["engine"] == "graph"  # of each process
    assert 'engine = "processes"' in (tmp_path / "many" / run_folder.CONFIG).read_text()


@pytest.mark.everything
@several
def test_a_killed_run_goes_on_in_as_many_processes(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    subprocess.run(run_command(whole, 60), capture_output=True, timeout=300, check=True)
    parent = subprocess.Popen(run_command(cut, 60), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: (cut / run_folder.METRICS).exists() and len(files.read_lines(cut / run_folder.METRICS)) > 4)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_for(lambda: free(cut))  # its workers end too
    assert files.read_json(cut / run_folder.RUN)["status"] == "running"
    done = subprocess.run(command("resume", str(cut), "-q"), capture_output=True, text=True, timeout=300, check=False)
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


@pytest.mark.everything  # tests/cli/test_launch.py has the rule, with processes that import nothing
@several
def test_what_the_user_did_wrong_is_told_once(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / run_folder.CONFIG).write_text("rounds = 1\n")
    done = subprocess.run(run_command(tmp_path / "run", 2), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert done.stderr.count("already holds a run") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.everything
@several
def test_what_only_another_process_complains_about_is_shown(tmp_path):
    (tmp_path / "odd.py").write_text(
        "import os\nfrom dataclasses import dataclass\nfrom posterity.methods.fedavg import FedAvg\n\n"
        "@dataclass(frozen=True)\nclass Odd(FedAvg):\n"
        "    def init(self, model, params, facts):\n"
        "        if os.environ.get('RANK') == '1':\n"
        "            raise ValueError('the second process is odd')\n"
        "        return super().init(model, params, facts)\n"
    )
    words = ["run", "--method", "odd:Odd", "--dataset", "digits", "--rounds", "1", "--engine", "processes", "-q"]
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("the second process is odd") == 1


@pytest.fixture
def started(monkeypatch):
    """Workers are noted, not started."""
    noted: list[int] = []
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setattr(launch, "start_workers", lambda size: noted.append(size) or 0)
    return noted


@pytest.mark.parametrize(
    ("words", "cores", "message"),
    [
        (["run", "--store", "disk"], 4, "belong to one process"),
        (["run"], 1, "needs two cores or more"),
        (["run", "--device", "cuda"], 4, "use torchrun"),
        (["compare"], 4, "a run for each core"),
    ],
)
def test_where_processes_cannot_work_the_reason_is_told(call, started, monkeypatch, words, cores, message):
    monkeypatch.setattr(launch, "count_cores", lambda: cores)
    code, _, complaint = call(*words, "--engine", "processes", "--rounds", "1", "--quiet")
    assert (code, started) == (2, [])
    assert message in complaint


@pytest.mark.parametrize(
    ("engine", "status", "expected"),
    [
        ("processes", "running", 2),
        ("processes", "finished", 1),
        ("graph", "running", 1),  # the user may have shared it out, and may do so again
    ],
)
def test_resume_starts_as_many_as_there_are_cores(monkeypatch, tmp_path, engine, status, expected):
    monkeypatch.setattr(launch, "count_cores", lambda: 2)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    made(tmp_path, engine, status)
    assert launch.processes_before(tmp_path) == expected
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert launch.processes_before(tmp_path) == 1  # this is one of them


def made(path: Path, engine: str, status: str) -> Path:
    path.mkdir(exist_ok=True)
    (path / run_folder.CONFIG).write_text(f'engine = "{engine}"\n')
    files.write_json(path / run_folder.RUN, {"status": status})
    return path


def test_resume_says_what_to_do_where_it_cannot(call, monkeypatch, tmp_path):
    monkeypatch.setattr(launch, "count_cores", lambda: 2)
    made(tmp_path / "all", "auto", "running")
    (tmp_path / "all" / "one").mkdir()
    made(tmp_path / "all" / "one" / "deep", "processes", "running")
    code, _, complaint = call("resume", str(tmp_path / "all"))
    assert code == 2
    assert "go on with it first" in complaint


def test_cores_are_those_that_may_be_used():
    assert 1 <= launch.count_cores() <= (os.cpu_count() or 1)
