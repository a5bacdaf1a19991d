"""Runs with a frozen backbone under an adapter: they deliver, go on and are refused as others are."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from experiment.damage import every_round
from torch import nn

import posterity
from posterity.experiment import run

SETTING = {"dataset": "digits", "clients": 3, "subset": "20%", "rounds": 2, "evaluate_every": 1, "lr": 0.3}


def drawn_net():
    made = nn.Sequential(OrderedDict(flat=nn.Flatten(), backbone=nn.Linear(64, 16), act=nn.Tanh(),
                                     adapter=nn.Linear(16, 5), head=nn.Linear(5, 10)))  # fmt: skip
    made.backbone.requires_grad_(False)
    return made


def image_net(seed=0):
    torch.manual_seed(seed)
    return drawn_net()


@pytest.mark.parametrize("method", ["fedper", "fedmap"])
def test_delivered_predictions_are_those_that_were_scored_also_from_the_folder(method, tmp_path):
    result = posterity.run(method=method, model=image_net(), out=tmp_path / "run", **SETTING)
    federation = result.federation
    for found in (result, posterity.load(tmp_path / "run", model=image_net())):
        told = found.clients("last")["accuracy"]
        for client in range(federation.members):
            rows = federation.test.client(client)
            right = found.predict_proba(client, federation.x[rows], show="last").argmax(1) == federation.y[rows]
            assert right.double().mean().item() == pytest.approx(told[client])


def test_a_run_that_was_interrupted_goes_on_to_the_same_bits(tmp_path):
    whole = posterity.run(method="scaffold", model=image_net(), out=tmp_path / "whole", **SETTING)
    with every_round(stop_in=2):
        posterity.run(method="scaffold", model=image_net(), out=tmp_path / "cut", **SETTING)
    after = run.resume_run(tmp_path / "cut", model=image_net())
    assert after.round == 2
    assert all(torch.equal(p, whole.state.params[n]) for n, p in after.state.params.items())


def test_another_backbone_is_refused(tmp_path):
    """A function that makes the network draws what is trained from the seed, but brings another backbone."""
    made = image_net

    def other():
        return made(seed=1)

    other.__name__ = "image_net"
    posterity.run(method="fedavg", model=made, out=tmp_path / "made", **{**SETTING, "rounds": 1})
    with pytest.raises(ValueError, match=r"1,040 of them frozen; here it is one with other weights"):
        posterity.load(tmp_path / "made", model=other)


def test_seeds_at_once_are_as_each_alone():
    many = posterity.run_seeds([0, 1], method="fedper", model=drawn_net, **SETTING)
    for seed, found in enumerate(many):
        alone = posterity.run(method="fedper", model=drawn_net, seed=seed, **SETTING)
        assert found.metric("nll", show="last") == pytest.approx(alone.metric("nll", show="last"), rel=1e-4)
