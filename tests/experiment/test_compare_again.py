"""A comparison never takes a run for its own whose method was edited since: it is done again, and this is said."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest

from posterity.experiment import compare, fingerprint, run
from posterity.experiment.compare import compare_runs, resume_all
from posterity.experiment.resume import begin_again, find_changed
from posterity.report import load_runs
from posterity.runs import files
from posterity.runs import folder as run_folder
from posterity.settings.config import Config

BASE = Config(dataset="digits", clients=4, rounds=1, subset="15%", set={"model.hidden": "4"})
METHOD = """
from dataclasses import dataclass
from posterity.core import hyper
from posterity.methods.fedavg import FedAvg
@dataclass(frozen=True)
class Own(FedAvg):
    factor: float = hyper(1.0, "of nothing")
"""
NAME = "own_for_again:Own"


def quiet(title, rounds):
    return nullcontext(run.silent)


@pytest.fixture
def edit(tmp_path, monkeypatch):
    """Write the method's file, with something replaced."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(old: str = "", new: str = "") -> None:
        assert old in METHOD
        (tmp_path / "own_for_again.py").write_text(METHOD.replace(old, new) if old else METHOD)
        monkeypatch.delitem(sys.modules, "own_for_again", raising=False)
        fingerprint._parsed.cache_clear()

    write()
    return write


@pytest.fixture
def planned(monkeypatch):
    """What comparisons would run."""
    tasks = []
    monkeypatch.setattr(compare, "execute", lambda some, *_: tasks.extend(some))
    return tasks


def test_an_edited_default_is_run_again_and_this_is_said(edit, tmp_path):
    out, told = tmp_path / "out", []
    go = lambda: compare_runs(BASE, [NAME, "local"], [0], out, quiet, tell=told.append)  # noqa: E731
    go()
    place = out / "own_for_again-Own" / "seed-0"
    times = {path: path.stat().st_mtime_ns for path in out.glob("*/seed-0/checkpoint.safetensors")}
    edit("hyper(1.0", "hyper(  1.0")  # layout
    go()
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert told == []
    edit("hyper(1.0", "hyper(2.0")
    go()
    assert len(told) == 1
    assert "factor was 1.0 and is 2.0 now; the source of own_for_again was edited" in told[0]
    assert "seed-0.before-1" in told[0]
    fields = [files.read_json(path / run_folder.RUN)["method"]["fields"]["factor"]
              for path in (place.with_name("seed-0.before-1"), place)]  # fmt: skip
    assert fields == [1.0, 2.0]
    assert (out / "local" / "seed-0" / "checkpoint.safetensors").stat().st_mtime_ns in times.values()  # not touched
    assert [(r.label, r.seed, r.folder.name) for r in load_runs(out)] == [
        ("FedAvg", 0, "seed-0"),
        ("Local", 0, "seed-0"),
    ]
    assert len(load_runs(place.with_name("seed-0.before-1"))) == 1  # named itself, it can be read
    resume_all(out, quiet)  # and nobody goes on with what was moved aside


def test_an_edited_file_is_run_again_and_this_is_said(tmp_path):
    """Values alone: sizes and classes stay, so the clients look the same. A file that is gone is nobody's change."""
    file, out, told = tmp_path / "wards.csv", tmp_path / "out", []

    def write(shift):
        rows = [f"{(k * 7 + shift * (k % 3)) % 11},{k % 5},{k % 2},{'ns'[k % 4 // 2]}" for k in range(60)]
        file.write_text("\n".join(["a,b,ill,ward", *rows]) + "\n")

    own = replace(BASE, dataset=str(file), target="ill", client_column="ward", clients=None, partition=None)
    go = lambda *names: compare_runs(own, list(names), [0], out, quiet, tell=told.append)  # noqa: E731
    write(0)
    go("fedavg")
    go("fedavg")
    assert told == []
    write(1)
    go("fedavg", "local")
    assert f"fedavg: values of {file} were edited. What it had done (seed-0) is kept as" in told[0]
    prints = [run.federation.fingerprint for run in load_runs(out)]
    assert len(prints) == 2
    assert len(set(prints)) == 1
    file.unlink()
    go("fedavg", "local")
    assert len(told) == 1


def test_an_unfinished_run_whose_method_was_edited_does_not_go_on(edit, tmp_path, planned):
    out = tmp_path / "out"
    path = out / "own_for_again-Own" / "seed-0"
    run.start_run(replace(BASE, method=NAME), path)
    files.write_json(path / run_folder.RUN, {**files.read_json(path / run_folder.RUN), "status": "running"})
    compare_runs(BASE, [NAME], [0], out, quiet)
    assert [task.path for task in planned] == [path]
    edit("class Own(FedAvg):", "class Own(FedAvg):\n    other = 1")
    with pytest.raises(
        ValueError, match=r"the source of own_for_again was edited. Put back .*begin again: 'posterity run"
    ):
        run.resume_run(path)
    with pytest.raises(ValueError, match=r"cannot go on as it began.*posterity compare"):
        resume_all(out, quiet)
    with pytest.raises(ValueError, match="the source of own_for_again was edited"):
        run.run_seeds([replace(BASE, method=NAME)], [path])
    assert not (path.parent / "seed-0.before-1").exists()
    edit()
    assert run.resume_run(path).round == 1  # what was there was put back


def test_what_an_earlier_comparison_began_goes_on_too(tmp_path, planned):
    """The plan is the newest comparison's; the folder's table has the runs of both."""
    compare_runs(BASE, ["fedavg", NAME, "local"], [0, 1], tmp_path, quiet)  # stopped before any of them began
    paths = [tmp_path / name / "seed-0" for name in ("fedavg", "own_for_again-Own", "local")]
    for path, method in zip(paths, ("fedavg", NAME, "local"), strict=True):
        run.start_run(replace(BASE, method=method), path)
    for path in paths[:2]:
        files.write_json(path / run_folder.RUN, {**files.read_json(path / run_folder.RUN), "status": "running"})
    compare_runs(BASE, ["fedper"], [0], tmp_path, quiet)
    go = lambda: (planned.clear(), resume_all(tmp_path, quiet), [task.path for task in planned])[-1]  # noqa: E731
    assert go() == [tmp_path / "fedper" / "seed-0", *paths[:2]]


def test_what_was_begun_keeps_its_plan(tmp_path):
    """A diverging method, say, ends a comparison in the middle: it is gone on with once that is mended."""

    def stop(round, rounds, lines):
        raise ValueError("a mistake of the second round")

    with pytest.raises(ValueError, match="second round"):
        compare_runs(BASE, ["fedavg"], [0, 1], tmp_path / "out", lambda title, rounds: nullcontext(stop))
    assert (tmp_path / "out" / "fedavg" / "seed-0" / "config.toml").exists()
    assert (tmp_path / "out" / "comparison.json").exists()


def test_a_finished_run_of_an_edited_method_is_still_read(edit, tmp_path):
    run.start_run(replace(BASE, method=NAME), tmp_path / "run")
    edit("class Own(FedAvg):", "class Own(FedAvg):\n    other = 1")
    assert run.resume_run(tmp_path / "run").round == 1


def test_all_seeds_of_an_edited_method_leave_the_table(tmp_path, planned):
    for seed in (0, 3):
        path = tmp_path / "fedavg" / f"seed-{seed}"
        path.mkdir(parents=True)
        files.write_json(path / run_folder.RUN, {
            "status": "finished", "sources": {}, "together": [0, 3], "method": {"fields": {}},
            "federation": {"partition": None, "fingerprint": ""}})  # fmt: skip
        (path / run_folder.CONFIG).write_text(run.to_toml(replace(BASE, method="fedavg", seed=seed)))
    told = []
    compare_runs(BASE, ["fedavg"], [0], tmp_path, quiet, tell=told.append)
    assert {path.name for path in (tmp_path / "fedavg").iterdir()} == {"seed-0.before-1", "seed-3.before-1"}
    assert "seed-0, seed-3" in told[0]
    assert [task.title for task in planned] == ["fedavg seed 0"]


def test_what_is_being_written_is_not_moved(tmp_path):
    path = tmp_path / "seed-0"
    path.mkdir()
    with files.locked(path), pytest.raises(ValueError, match="written by another process"):
        begin_again("fedavg", {path: ("it was edited",)}, print)
    assert path.exists()


def test_places_are_not_used_twice(tmp_path):
    told = []
    for _ in range(2):
        (tmp_path / "seed-0").mkdir()
        files.write_json(tmp_path / "seed-0" / run_folder.RUN, {})
        begin_again("fedavg", {tmp_path / "seed-0": ("mu was 1 and is 2 now",)}, told.append)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seed-0.before-1", "seed-0.before-2"]
    assert find_changed(tmp_path, {}) == {}


def test_settings_that_differ_are_named(tmp_path, planned):
    run.start_run(replace(BASE, method="fedprox", set={**BASE.set, "mu": "2"}), tmp_path / "fedprox" / "seed-0")
    told = r"\(rounds: there 1, now 2, mu: there 2, now not set, local.lr: there not set, now 1\)"
    with pytest.raises(ValueError, match=told):
        compare_runs(replace(BASE, rounds=2, set={**BASE.set, "local.lr": "1"}), ["fedprox"], [0], tmp_path, quiet)
