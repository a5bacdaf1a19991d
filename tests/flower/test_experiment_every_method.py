"""Every method and wrapper, as sites and a server that exchange bytes alone, ends 0.0 apart from the simulator.

Every message is encoded and decoded, has the length that the simulator counts, and every record is read from disk.
"""

from __future__ import annotations

import pytest
from kinds import of_each_kind

from posterity import methods
from posterity.flower.server import Server
from posterity.methods.wrappers.dp import Private

from .in_process import assert_same_end, configuration, deploy, simulate

SPECS = [*sorted(methods.available()), *(f"fedavg+{name}" for name in methods.suffixes()), "pfedvmp@paper"]
MORE = ["reptile+metavd", "feddyn+snip", "pfedvmp+snip", "fedprox+clip", "scaffold+calibrated", "lgfedavg+ft",
        "qlsd+ft", "ditto+calibrated", "maml+metavd", "fedper+clip", "perfedavg+drop"]  # fmt: skip


def check(spec, tmp_path, monkeypatch, **changes):
    monkeypatch.setattr(Server, "due", lambda self, round: False)  # scores: test_scores.py
    monkeypatch.setattr(Private, "announce", lambda self, plan: ())  # it refuses so few clients
    config = configuration(spec, **changes)
    lines: list = []
    server, expected = deploy(config, tmp_path, lines.append), simulate(config)
    rounds = [line for line in lines if line["kind"] == "round"]
    for line, log in zip(rounds, expected[2], strict=True):
        assert line["refused"] == []
        assert (line["accepted"], line["bytes_up"], line["bytes_down"]) == (log.accepted, log.bytes_up, log.bytes_down)
        assert line["loss"] == pytest.approx(log.loss, rel=1e-6, nan_ok=True) or line["loss"] is None
        assert line["report"] == pytest.approx(log.report)
    assert_same_end(server, tmp_path, expected)


@pytest.mark.parametrize("spec", of_each_kind(SPECS))
def test_it_ends_where_the_simulator_ends(spec, tmp_path, monkeypatch):
    check(spec, tmp_path, monkeypatch)


@pytest.mark.parametrize("spec", [pytest.param(spec, marks=pytest.mark.everything) for spec in MORE])
def test_wrappers_around_other_methods(spec, tmp_path, monkeypatch):
    check(spec, tmp_path, monkeypatch)


@pytest.mark.everything
@pytest.mark.parametrize("model", ["mlp_bn", "cnn"])
@pytest.mark.parametrize("spec", SPECS)
def test_other_networks(spec, model, tmp_path, monkeypatch):
    check(spec, tmp_path, monkeypatch, model=model, convolution="native", onednn="on")


def test_some_take_part_and_numbers_have_64_bits(tmp_path, monkeypatch):
    check("fedper", tmp_path, monkeypatch, clients=5, participation="2", rounds=4, dtype="float64")
