"""SNIP: the choice by hand, zeros that stay, and the parent at sparsity 0."""

from dataclasses import replace

import pytest
import torch
from oracles.sims import DOUBLE, Run, each_engine, mlp, points, same_bits

from posterity.core.passes import Training
from posterity.engine.round import personal_model
from posterity.methods.fedavg import FedAvg
from posterity.methods.local import Local
from posterity.methods.maml import MAML
from posterity.methods.perfedavg import PerFedAvg
from posterity.methods.reptile import Reptile
from posterity.methods.wrappers.drop import Drop
from posterity.methods.wrappers.metavd import MetaVD
from posterity.methods.wrappers.snip import Pruned, Snip, most_sensitive

TRAINING = Training(lr=0.1, batch=4)
LEAF = "base.fc1.weight"
INSIDE = [FedAvg(replace(TRAINING, clip=0.1)), MAML(TRAINING, fast=0.5), PerFedAvg(TRAINING, fast=0.5)]


def test_the_choice_by_hand():
    """Scores 0.1, 0.04, 0.2, 0.03: half of them is the first and the third."""
    weight = torch.tensor([1, -2, 0.5, 0.1], dtype=DOUBLE)
    slope = torch.tensor([0.1, 0.02, -0.4, 0.3], dtype=DOUBLE)
    assert most_sensitive(weight, slope, 0.5).tolist() == [True, False, True, False]
    assert most_sensitive(weight, slope, 0.0).all()
    assert not most_sensitive(weight, slope, 1.0).any()
    assert int(most_sensitive(torch.zeros(10), torch.zeros(10), 0.7).sum()) == 3  # ties: exactly so many


@each_engine
@pytest.mark.parametrize("host", [FedAvg(TRAINING), Reptile(TRAINING), MAML(TRAINING)], ids=lambda h: h.label)
def test_removed_weights_stay_zero_for_everybody(engine, host):
    federation = points((9, 5, 3))
    run = Run(Snip(host), federation, mlp(federation), engine).rounds(1)
    keep = run.state.keep.clone()
    assert int((~keep).sum()) == 33  # 48 weights, of which ⌈0.3·48⌉ = 15 stay
    for _ in range(2):
        assert torch.equal(run.state.keep, keep)
        assert not bool(run.state.params[LEAF][~keep].any())
        for point in ("received", "adapted", "trained"):
            carry, _ = personal_model(run.sim, run.state, run.store, 0, run.played, point)
            assert not bool(carry.params[LEAF][~keep].any())
            assert bool(carry.params[LEAF][keep].all())
        run.rounds(1)


@each_engine
@pytest.mark.parametrize("host", INSIDE, ids=lambda h: h.label)
def test_it_is_its_host_on_a_network_without_the_removed_weights(engine, host):
    """Inside of a meta-step, and in the length of a gradient, too."""
    federation = points((9, 5, 13))
    model = mlp(federation)
    run = Run(Snip(host), federation, model, engine).rounds(1)
    small = Run(host, federation, Pruned(model, LEAF, run.state.keep.clone()), engine).rounds(1)
    small.state = replace(run.state.host, params=run.state.params)
    for each in (run, small):
        each.rounds(2)
    for name, leaf in run.state.params.items():
        other = small.state.params[name]
        other = torch.where(run.state.keep, other, 0) if name == LEAF else other  # the server's momentum may move them
        torch.testing.assert_close(leaf, other, rtol=1e-12, atol=1e-13)


def test_the_choice_uses_the_first_update():
    federation = points((9, 5, 3))
    plain = Run(FedAvg(TRAINING), federation, mlp(federation)).rounds(1)
    run = Run(Snip(FedAvg(TRAINING)), federation, mlp(federation)).rounds(1)
    before = run.sim.initial[LEAF]
    score = (before * (before - plain.state.params[LEAF])).abs()
    assert float(score[run.state.keep].min()) > float(score[~run.state.keep].max())
    assert same_bits(plain.state.params, run.state.host.params)


def test_nothing_removed_is_the_parent():
    federation = points((9, 5, 3))
    plain = Run(FedAvg(TRAINING), federation, mlp(federation)).rounds(3)
    run = Run(Snip(FedAvg(TRAINING), sparsity=0.0), federation, mlp(federation)).rounds(3)
    assert same_bits(plain.state.params, run.state.params)
    assert run.logs[-1].report["bytes_saved_each"] == 0


def test_it_goes_around_metavd():
    federation = points((9, 5, 3))
    run = Run(Snip(MetaVD(FedAvg(TRAINING), width=5)), federation, mlp(federation)).rounds(2)
    assert not bool(run.state.params[LEAF][~run.state.keep].any())
    assert set(run.logs[0].report) == {"kl", "dropout_rate", "removed", "bytes_saved_each"}


@each_engine
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_bytes(engine, dtype):
    """In the first round nothing is known; then 33 numbers less each way, and a bit a weight (6 bytes) down."""
    federation = points((5, 9))
    model = mlp(federation)
    thin, dense = (Run(m, federation, model, engine, dtype=dtype).rounds(2).logs for m in (Snip(FedAvg()), FedAvg()))
    size = dtype.itemsize
    assert (thin[0].bytes_up, thin[0].bytes_down) == (dense[0].bytes_up, dense[0].bytes_down)
    assert dense[1].bytes_up - thin[1].bytes_up == 2 * 33 * size
    assert dense[1].bytes_down - thin[1].bytes_down == 2 * (33 * size - 6)
    assert thin[0].report["bytes_saved_each"] == 2 * 33 * size - 6


@each_engine
def test_what_is_removed_is_not_used(engine):
    """The inner method keeps other numbers at the removed places; clients do not see them."""
    federation = points((9, 5, 3))
    run = Run(Snip(Reptile(TRAINING)), federation, mlp(federation), engine).rounds(2)
    before = run.outputs("adapted")
    inner = dict(run.state.host.params)
    inner[LEAF] = torch.where(run.state.keep, inner[LEAF], 7.0)
    run.state = replace(run.state, host=replace(run.state.host, params=inner))
    assert all(torch.equal(a, b) for a, b in zip(before, run.outputs("adapted"), strict=True))


def test_a_method_that_sends_no_model():
    federation = points((9, 5, 3))
    assert Run(Snip(Local(TRAINING)), federation, mlp(federation)).rounds(1).logs[0].bytes_up == 0


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match="sparsity must be at least 0 and at most 1"):
        Snip(FedAvg(), sparsity=-0.1)
    with pytest.raises(ValueError, match=r"\+snip and \+drop both prune"):
        Snip(Drop(FedAvg()))
