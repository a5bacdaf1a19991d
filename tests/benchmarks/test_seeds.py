"""The benchmark of seeds runs both ways; that they end alike is a law."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest


@pytest.fixture
def seeds(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    yield importlib.import_module("seeds")
    sys.modules.pop("seeds")


def test_both_ways_are_timed_and_worlds_differ(seeds):
    setting = seeds.Setting("mlp", (1, 4, 4), 60, 3, "native")
    sims = seeds.make_simulations(setting, "fedavg", 2, "cpu", 2**30)
    assert sims[0].federation.train.counts.tolist() != sims[1].federation.train.counts.tolist()
    assert not sims[0].initial["head.weight"].equal(sims[1].initial["head.weight"])
    apart, together = seeds.time_both(sims, "graph", 2, "cpu")
    assert apart > 0
    assert together > 0
