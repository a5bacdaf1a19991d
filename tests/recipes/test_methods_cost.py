"""The benchmark of every method's cost: it runs, its arithmetic is right, and its counts are those of a real round."""

from __future__ import annotations

import functools
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.utils.flop_counter import FlopCounterMode

from posterity import methods
from posterity.engine.server import RoundLog
from posterity.methods.fedbps.curvature import ESTIMATORS
from posterity.methods.pfedvmp import MODES

FOLDER = Path(__file__).parents[2] / "benchmarks"
ONLY = ("fedprox", "fedmap", "fedavg+snip")


@pytest.fixture
def bench(monkeypatch):
    """The benchmark as a module, its folder in front of the path, as Python does for a script."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("costs")


@pytest.fixture
def plan(bench):
    return bench.BatchPlan("cpu", "loop", "patches", rounds=3, warm=1, limit=60.0, profile=False)


def endless() -> Iterator[RoundLog]:
    while True:
        yield RoundLog(0, 1, 1)


def tick(bench, monkeypatch, *seconds: float) -> None:
    """A clock that shows these times, one after another."""
    monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=iter(seconds).__next__))


@pytest.mark.everything
def test_the_quick_form(tmp_path):
    """Three methods between two measurements of FedAvg; every ratio follows from the milliseconds beside it."""
    file = tmp_path / "cost.json"
    flags = ["--quick", "--device", "cpu", "--convolution", "native", "--only", ",".join(ONLY), "--json", str(file)]
    command = [sys.executable, str(FOLDER / "costs.py"), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())["rows"]
    assert [row["case"]["name"] for row in rows] == ["fedavg", *ONLY, "fedavg:again"]
    unit = rows[0]["timing"]["ms"]
    assert unit > 0
    for row in rows:
        assert row["error"] == ""
        assert row["timing"]["refused"] == 0
        assert row["ratio"] == pytest.approx(row["timing"]["ms"] / unit)
        assert row["against"] == pytest.approx(row["ratio"] / row["case"]["expected"])
        assert row["good"] == (row["against"] <= 1.5)
    printed = [line.split()[0] for line in done.stdout.splitlines()[2:]]
    assert printed == ["fedavg", *ONLY, "fedavg:again"]


def test_no_method_is_forgotten(bench):
    """All methods, pFedVMP's modes, FedBPS's estimators, MetaVD on all of its hosts, and both that prune."""
    names = {case.name for case in bench.choose("")}
    assert set(methods.available()) <= {case.spec for case in bench.choose("")}
    assert {f"pfedvmp:{mode}" for mode in MODES} <= names
    assert {f"fedbps:{estimator}" for estimator in ESTIMATORS if estimator != "exact"} <= names
    assert {f"{host}+metavd" for host in ("fedavg", "reptile", "maml", "perfedavg")} <= names
    assert {"fedavg+drop", "fedavg+snip"} <= names


def test_every_case_can_be_built_as_it_is_called(bench):
    for case in bench.choose(""):
        made = methods.build(case.spec, case.settings)
        assert all(str(getattr(made, name)) == value for name, value in case.settings.items())
        mark = case.name.partition(":")[2]
        assert mark in ("", "again", *case.settings.values())


@functools.cache  # FedAvg's are asked for every time
def products(bench, name, plan) -> int:
    """Of one round, as PyTorch counts them."""
    case = next(c for c in (bench.FEDAVG, *bench.CASES) if c.name == name)
    sim = bench.gpu.make_simulation(federation_of(bench), case.spec, "patches", "cpu", case.settings)
    with FlopCounterMode(display=False) as found:
        next(bench.rounds_of(sim, plan))
    return found.get_total_flops()


@functools.cache
def federation_of(bench):
    return bench.gpu.make_federation("cpu", 60, 2)


@pytest.mark.parametrize(
    "name", ["local", "scaffold:I", "fedmap", "pfedvmp:isotropic", "perfedavg", "maml", "fedbps:empirical_fisher"]
)
def test_expected_is_what_a_round_multiplies(bench, plan, name):
    """Products of a real round, counted by PyTorch, over FedAvg's. The first layer has no gradient by its input, so a
    forward pass is 0.36 of a round and not 1/3: a tenth is allowed."""
    (case,) = (c for c in bench.CASES if c.name == name)
    ratio = products(bench, name, plan) / products(bench, bench.FEDAVG.name, plan)
    assert ratio == pytest.approx(case.expected, rel=0.1)


def test_the_median_of_the_rounds_that_count(bench, plan, monkeypatch):
    """Rounds of 10, 3, 1 and 2 seconds, the first of them to warm up."""
    tick(bench, monkeypatch, 0.0, 10.0, 13.0, 14.0, 16.0)
    assert bench.clock(endless(), plan) == bench.Timing(pytest.approx(2000), 3, pytest.approx(10), 0)


def test_a_method_is_given_up_between_rounds(bench, plan, monkeypatch):
    """70 of 60 seconds are gone after the first round: its time is shown, and no verdict."""
    tick(bench, monkeypatch, 0.0, 70.0)
    timing = bench.clock(endless(), plan)
    assert timing == bench.Timing(70_000.0, 0, 70.0, 0)
    row = bench.judge(bench.CASES[0], timing, bench.Timing(100.0, 3, 1.0, 0))
    assert row.good is None
    assert row.ratio == pytest.approx(700)
    assert "given up before it was warm" in bench.show(row)


def test_what_is_too_slow_is_said_to_be(bench):
    """fedmap may take 4/3: 2 rounds of FedAvg are 1.5 times that, and good; a little more is not."""
    (case,) = (c for c in bench.CASES if c.name == "fedmap")
    unit = bench.Timing(100.0, 3, 1.0, 0)
    good, bad = (bench.judge(case, bench.Timing(ms, 3, 1.0, 0), unit) for ms in (199.9, 200.1))
    assert (good.good, bad.good) == (True, False)
    assert " NO " in bench.show(bad)


def test_a_failure_shows_its_last_line_and_ends_nothing(bench, plan, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("first words\nlast words")

    monkeypatch.setattr(bench.gpu, "make_simulation", fail)
    row = bench.measure(bench.CASES[0], None, plan, None)
    assert row.error == "last words"
    assert bench.show(row).endswith("failed: last words")


def test_a_profile_names_what_takes_longer(bench, plan):
    """Operators of a real round by time, and the difference to FedAvg's, largest first."""
    federation = bench.gpu.make_federation("cpu", 20, 2)
    found = bench.profile(
        bench.rounds_of(bench.gpu.make_simulation(federation, "fedavg", "native", "cpu"), plan), "cpu"
    )
    assert any("convolution" in name for name in found)
    assert all(ms > 0 for ms in found.values())
    unit, timing = bench.Timing(100.0, 3, 1.0, 0), bench.Timing(250.0, 3, 1.0, 0)
    base = bench.Row(bench.FEDAVG, unit, kernels={"a": 50.0, "b": 30.0})
    slow = bench.Row(bench.CASES[0], timing, kernels={"a": 60.0, "b": 30.0, "c": 100.0})
    lines = bench.describe(slow, base).splitlines()
    assert lines[0].endswith("local 190.0 of 250.0 ms, fedavg 80.0 of 100.0 ms")
    assert [line.split()[0] for line in lines[1:]] == ["+100.00", "+10.00", "+0.00"]


def test_names_that_are_wrong(bench):
    with pytest.raises(SystemExit, match="fedmop"):
        bench.choose("fedavg,fedmop")
