"""The benchmark of faults: a little of each cheap kind; what breaks a promise is told, and fails it."""

from __future__ import annotations

import importlib
import math
import os
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from posterity.experiment import run
from posterity.experiment import run as run_state

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and looks into /proc")


@pytest.fixture
def injected(monkeypatch, tmp_path):
    """The modules of the benchmark by their names, and a bench."""
    for folder in ("benchmarks", "tests"):  # the benchmarks have an engine.py, too
        monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / folder))
    for name in ("PYTHONPATH", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # the benchmark sets them, and here they are put back
    monkeypatch.setattr(run, "WRITING", math.inf)  # as the benchmark does
    yield lambda name: importlib.import_module(f"injected.{name}")
    for name in [name for name in sys.modules if name.partition(".")[0] in ("injected", "faults")]:
        del sys.modules[name]


def test_killed_runs_end_alike(injected, tmp_path):
    bench, kills = injected("bench").Bench(tmp_path, 0, 8), injected("kills")
    outcome = kills.kill_runs(kills.CASES["disk"], bench, 4)
    assert outcome.broken == ()
    assert outcome.kills >= 4


def test_a_run_that_does_not_go_on_where_it_was_is_reported(injected, tmp_path, monkeypatch):
    """A resume that forgets the state: the benchmark must see it."""
    bench, kills = injected("bench").Bench(tmp_path, 0, 8), injected("kills")
    case, recover = kills.CASES["memory"], run_state.RunState._recover

    def forgetful(self, checkpoint):
        first = self.state
        recover(self, checkpoint)
        self.state = first

    monkeypatch.setattr(run_state.RunState, "_recover", forgetful)
    monkeypatch.setattr(
        kills, "kill_once", lambda case, out, *_: kills.forked(lambda: kills.dying(case, out, 60, "")) < 0
    )
    outcome = kills.kill_runs(case, bench, 1)
    assert len(outcome.broken) == 1
    assert "another end" in outcome.broken[0]


def test_what_is_not_noticed_is_reported(injected, tmp_path, monkeypatch):
    copies, bench = injected("copies"), injected("bench").Bench(tmp_path, 0, 8)
    monkeypatch.setattr(copies, "PLACES", 1)
    monkeypatch.setattr(copies, "STORES", ("memory",))
    monkeypatch.setattr(copies, "STATES", ("finished",))
    assert copies.flip_bits(bench).broken == ()
    monkeypatch.setattr(copies.damage, "flip", lambda path, place: None)
    broken = copies.flip_bits(bench).broken
    assert broken
    assert all("nobody noticed" in each for each in broken)


def test_copies_of_a_run_that_writes(injected, tmp_path, monkeypatch):
    copies, bench = injected("copies"), injected("bench").Bench(tmp_path, 0, 8)
    monkeypatch.setattr(copies, "COPIES", 3)
    assert copies.copy_lives(bench).broken == ()
    whole, later = {"a": b"1", "b": b"1"}, {"a": b"2", "b": b"2", "c": b"2"}
    found = [copies.live_copy([whole, later], random.Random(seed)) for seed in range(40)]
    assert any(len(set(each.values())) > 1 for each in found)  # files of two times


def test_a_second_writer_is_refused_and_would_be_reported(injected, tmp_path, monkeypatch):
    folders, bench = injected("folders"), injected("bench").Bench(tmp_path, 0, 8)
    monkeypatch.setattr(folders, "WRITERS", 1)
    monkeypatch.setattr(folders, "STORES", ("memory",))
    assert folders.write_twice(bench).broken == ()
    monkeypatch.setattr(folders, "BUSY", "another sentence")
    assert len(folders.write_twice(bench).broken) == 1


def test_the_table_says_what_is_broken_and_the_exit_code_too(injected, monkeypatch, capsys):
    bench = injected("bench")
    script = importlib.import_module("faults")
    fine = bench.Fault("fine", "nothing", "much", lambda b: bench.play([("one", lambda place: None)], b))
    wrong = bench.Fault("wrong", "much", "nothing", lambda b: bench.play([("two", lambda place: 1 / 0)], b))
    skip = replace(fine, name="skip", inject=lambda b: bench.play([("three", lambda place: pytest.skip("no disk"))], b))
    monkeypatch.setattr(script, "FAULTS", (fine, wrong, skip))
    assert script.main(["--only", "fine,skip"]) == 0
    assert script.main([]) == 1
    told = capsys.readouterr().out
    assert "1 tried, 0 as promised | **no**" in told
    assert "two: ZeroDivisionError" in told
    assert "not tried: no disk | not tried" in told
