"""A run that is killed resumes and ends with the same bits as one that was not."""

from __future__ import annotations

import functools
import math
import random
import signal
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from kinds import fewer, needs, of_each_kind

import posterity
from posterity import methods
from posterity.experiment import run
from posterity.experiment.compare import compare_runs
from posterity.runs import files
from posterity.runs import folder as run_folder
from posterity.settings.config import Config

from .kills import GAP, MOMENTS, arm, go, launch, remains

SMALL = {"dataset": "digits", "clients": 6, "rounds": 5, "evaluate_every": 2, "participation": "50%", "subset": "15%"}
KINDS = {"fedavg": "memory", "pfedvmp": "memory", "fedmap": "disk"}  # one method of each kind is really killed
SUFFIXES = sorted(methods.suffixes().keys() - {"dp"})  # which refuses so few clients
EVERY = [*sorted(methods.available()), *(f"fedavg+{name}" for name in SUFFIXES)]


def config(method: str, store: str = "memory") -> Config:
    return Config(method=method, store=store, set={"model.hidden": "8", **fewer(method)}, **SMALL, **needs(method))


@functools.cache
def reference(method: str, store: str, base: Path) -> dict[str, object]:
    out = base / f"{method}-{store}"
    assert launch(config(method, store), out) == 0
    return remains(out)


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    return tmp_path_factory.mktemp("whole")


@pytest.mark.parametrize(("method", "store"), KINDS.items())
def test_a_real_kill_in_the_middle_of_a_write(method, store, base, tmp_path):
    moments = [m for m in (*MOMENTS, GAP) if store == "disk" or m not in ("journal", "row")]
    out = tmp_path / "run"
    for count, moment in enumerate(moments, start=1):  # one run, killed once at each kind of write, later each time
        assert launch(config(method, store), out, moment, 1 + count % 2) == -signal.SIGKILL, moment
    assert launch(config(method, store), out) == 0
    assert remains(out) == reference(method, store, base)


@pytest.mark.everything
@pytest.mark.parametrize(("method", "store"), [("pfedvmp", "memory"), ("fedmap", "disk")])
def test_twenty_kills_at_random_instants(method, store, base, tmp_path):
    """Ten by the clock and ten in the middle of a write, in a random order, each run ending bit-identical."""
    whole, chance = reference(method, store, base), random.Random(7)
    begun = time.perf_counter()
    launch(config(method, store), tmp_path / "timed")
    length = time.perf_counter() - begun
    moments = [m for m in (*MOMENTS, GAP) if store == "disk" or m not in ("journal", "row")]
    plans = [(None, chance.uniform(0.02, length)) for _ in range(10)] + [
        (chance.choice(moments), None) for _ in range(10)
    ]
    chance.shuffle(plans)
    for number, (moment, seconds) in enumerate(plans):
        out = tmp_path / str(number)
        code = launch(config(method, store), out, moment, chance.randint(1, 3), seconds)
        assert code == -signal.SIGKILL or (moment is None and code == 0)  # the clock may come too late
        assert launch(config(method, store), out) == 0
        assert remains(out) == whole, (number, moment, seconds)


class Interrupted(Exception):
    pass


def interrupt() -> None:
    raise Interrupted


@pytest.mark.parametrize("method", of_each_kind(EVERY))
def test_an_exception_at_the_same_point_for_every_method(method, tmp_path, monkeypatch):
    setting = replace(config(method), engine="stacked", subset="10%", rounds=3, evaluate_every=3)
    monkeypatch.setattr(run, "WRITING", math.inf)
    run.start_run(setting, tmp_path / "whole")
    for moment in ("line", "checkpoint"):
        with monkeypatch.context() as patch:
            patch.setattr(files, "append_lines", files.append_lines)  # `arm` replaces it; the context puts it back
            patch.setattr(files, "write_atomic", files.write_atomic)
            arm(moment, 2, interrupt)
            with pytest.raises(Interrupted):
                go(setting, str(tmp_path / "cut"), None, 0)
    run.resume_run(tmp_path / "cut")
    assert remains(tmp_path / "cut") == remains(tmp_path / "whole")


def test_disk_and_memory_give_the_same_run(base):
    kept, mapped = (reference("fedmap", store, base) for store in ("memory", "disk"))
    assert kept["lines"] == mapped["lines"]
    state = [name for name in mapped["leaves"] if name.startswith("state/")]
    assert state
    assert all(kept["leaves"][name] == mapped["leaves"][name] for name in state)


def test_checkpoints_are_rare_when_writing_is_dear(tmp_path, monkeypatch):
    """With a share of 0 the only checkpoints are the first and the last; the result is the same."""
    counts, save = [], run_folder.save_checkpoint

    def counted(folder, trees, facts, name=run_folder.CHECKPOINT):
        if name == run_folder.CHECKPOINT:  # other files are written in the same way
            counts.append(facts["round"])
        save(folder, trees, facts, name)

    monkeypatch.setattr(run_folder, "save_checkpoint", counted)
    monkeypatch.setattr(run, "WRITING", 0.0)
    run.start_run(config("fedavg"), tmp_path / "rare")
    assert counts == [1, 5]


def test_a_second_process_is_refused(tmp_path):
    with files.locked(tmp_path), pytest.raises(ValueError, match="being written by another process"):
        posterity.experiment.run.resume_run(made(tmp_path))


def made(path: Path) -> Path:
    run_folder.write_run(path, {"threads": 1, "engine": "loop"}, "rounds = 1\n")
    return path


def test_a_finished_run_is_only_read(tmp_path):
    first = run.start_run(config("fedavg"), tmp_path / "run")
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    again = posterity.load(tmp_path / "run")
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before
    assert again.metric("nll") == first.metric("nll")


def of_version_1(path: Path, status: str) -> None:
    """A folder that goes on, of a time when the partition had another version."""
    facts = files.read_json(path / run_folder.RUN)
    facts["federation"]["partition"]["version"] = 1
    files.write_json(path / run_folder.RUN, {**facts, "status": status})


def test_the_partition_and_its_version_are_written_down(tmp_path):
    run.start_run(config("fedavg"), tmp_path / "run")
    told = files.read_json(tmp_path / "run" / run_folder.RUN)["federation"]["partition"]
    assert told == {"rule": "dirichlet", "version": 2, "alpha": 0.3}


def test_other_clients_than_before_are_refused(tmp_path):
    run.start_run(config("fedavg"), tmp_path / "run")
    of_version_1(tmp_path / "run", "running")
    with pytest.raises(ValueError, match=r"begun with version 1 of the partition 'dirichlet'.* version 2.*begin again"):
        posterity.load(tmp_path / "run")


def test_a_comparison_does_not_mix_versions(tmp_path, capsys):
    base = Config(dataset="digits", subset="15%", clients=4, rounds=1, partition="dirichlet:1")
    compare_runs(base, ["fedavg"], [0], tmp_path, nothing)
    of_version_1(tmp_path / "fedavg" / "seed-0", "finished")
    compare_runs(base, ["fedavg"], [0], tmp_path, nothing)
    assert "the partition 'dirichlet' had version 1 and has 2 now" in capsys.readouterr().err
    places = [tmp_path / "fedavg" / name / run_folder.RUN for name in ("seed-0.before-1", "seed-0")]
    assert [files.read_json(path)["federation"]["partition"]["version"] for path in places] == [1, 2]


@contextmanager
def nothing(title: str, rounds: int):
    yield run.silent


def test_errors_say_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="holds no run"):
        run.resume_run(tmp_path)
    run.start_run(config("fedavg"), tmp_path / "run")
    with pytest.raises(ValueError, match="already holds a run: go on with 'posterity resume"):
        run.start_run(config("fedavg"), tmp_path / "run")
    text = (tmp_path / "run" / run_folder.CONFIG).read_text()
    (tmp_path / "run" / run_folder.CONFIG).write_text(text.replace('"model.hidden" = "8"', '"model.hidden" = "9"'))
    with pytest.raises(ValueError, match="was changed since the run began"):
        run.resume_run(tmp_path / "run")
