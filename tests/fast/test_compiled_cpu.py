"""`compiled` on a CPU rounds otherwise than plain calls: when it begins must not depend on what a process has done."""

from __future__ import annotations

import torch
from experiment.damage import every_round

import posterity
from posterity.experiment import run

SETTING = {"dataset": "digits", "subset": "20%", "clients": 3, "partition": "iid", "batch_size": 4, "local_epochs": 10,
           "rounds": 7, "evaluate_every": 7, "lr": 0.1, "engine": "compiled"}  # fmt: skip


def test_a_resumed_run_has_the_same_bits(tmp_path):
    """Some 240 steps a round: they are compiled from round 5 on, also in a process that begins with round 7."""
    whole = posterity.run(method="fedavg", out=tmp_path / "whole", **SETTING)
    plain = posterity.run(method="fedavg", out=tmp_path / "plain", **{**SETTING, "engine": "graph"})
    with every_round(stop_in=7):
        posterity.run(method="fedavg", out=tmp_path / "cut", **SETTING)
    after = run.resume_run(tmp_path / "cut")
    assert after.round == 7
    assert all(torch.equal(p, whole.state.params[n]) for n, p in after.state.params.items())
    assert not all(torch.equal(p, whole.state.params[n]) for n, p in plain.state.params.items())
