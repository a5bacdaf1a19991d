"""SNIP: the choice by hand, zeros that stay, and the parent at sparsity 0."""

import pytest
import torch
from oracles.worlds import DOUBLE, ENGINES, Run, mlp, points, same_bits

from posterity.core.training import Training
from posterity.engine.round import personal_model
from posterity.methods.fedavg import FedAvg
from posterity.methods.maml import MAML
from posterity.methods.reptile import Reptile
from posterity.methods.wrappers.metavd import MetaVD
from posterity.methods.wrappers.snip import Snip, most_sensitive

each_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)
TRAINING = Training(lr=0.1, batch=4)
LEAF = "base.fc1.weight"


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
            carry, _ = personal_model(run.world, run.state, run.store, 0, run.played, point)
            assert not bool(carry.params[LEAF][~keep].any())
            assert bool(carry.params[LEAF][keep].all())
        run.rounds(1)


def test_the_choice_uses_the_first_update():
    federation = points((9, 5, 3))
    plain = Run(FedAvg(TRAINING), federation, mlp(federation)).rounds(1)
    run = Run(Snip(FedAvg(TRAINING)), federation, mlp(federation)).rounds(1)
    before = run.world.initial[LEAF]
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


def test_bytes():
    """The pattern costs a byte a weight down; sparse messages would save 33 numbers each way."""
    federation = points((5, 9))
    model = mlp(federation)
    runs = [Run(m, federation, model).rounds(1) for m in (Snip(FedAvg()), FedAvg())]
    assert runs[0].logs[0].bytes_down - runs[1].logs[0].bytes_down == 2 * 48
    assert runs[0].logs[0].bytes_up == runs[1].logs[0].bytes_up
    assert runs[0].logs[0].report["bytes_saved_each"] == 2 * 33 * 8


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match="sparsity must be at least 0 and at most 1"):
        Snip(FedAvg(), sparsity=-0.1)
