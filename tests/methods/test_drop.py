"""Dropping by rate: which weights, what the server does with them, and the bytes that would be saved."""

from dataclasses import replace

import pytest
import torch
from oracles.worlds import ENGINES, Run, mlp, points, same_bits, worst

from posterity.core import dropout
from posterity.core.training import Training
from posterity.engine.round import personal_model
from posterity.methods.fedavg import FedAvg
from posterity.methods.maml import MAML
from posterity.methods.wrappers.drop import Drop
from posterity.methods.wrappers.metavd import RHO, MetaVD

each_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)
TRAINING = Training(lr=0.1, batch=4)
LEAF = "base.fc1.weight"


def hosted(**how):
    return MetaVD(FedAvg(TRAINING), family="ensemble", hyper_decay=0.0, **how)


def start(method, engine=ENGINES[1], sizes=(9, 5, 3)):
    """A run whose noise is e^-2 for the first half of the layer and the floor for the rest."""
    federation = points(sizes)
    run = Run(method, federation, mlp(federation), engine)
    table = torch.zeros_like(run.state.source.embedding)
    table[:, : table.shape[1] // 2] = 6.5
    run.state = replace(run.state, source=replace(run.state.source, embedding=table))
    return run


@each_engine
def test_dropped_weights_are_zero_and_stay_unmoved(engine):
    run = start(Drop(hosted(), threshold=0.8, after=0), engine)
    theta, rho = run.state.params[LEAF], run.state.source.embedding[0].reshape(8, 6) - 8.5
    gone = dropout.rate(rho, theta) > 0.8
    assert 0 < int(gone.sum()) < gone.numel()
    for point in ("received", "trained"):
        carry, _ = personal_model(run.world, run.state, run.store, 0, 0, point)
        assert not bool(carry.params[LEAF][gone].any())
        assert bool((carry.params[LEAF][~gone] != 0).all())
    after = run.rounds(1).state
    torch.testing.assert_close(after.params[LEAF][gone], theta[gone], rtol=1e-14, atol=0)
    assert bool((after.params[LEAF][~gone] != theta[~gone]).all())
    assert torch.equal(after.source.embedding[:, gone.flatten()], run.state.source.embedding[:, gone.flatten()])


def test_two_clients_by_hand_bytes_saved():
    """4 numbers (θ and ρ, down and up) of 8 bytes for each dropped weight, less a bit per weight of the pattern."""
    run = start(Drop(hosted(), threshold=0.8, after=0), sizes=(5, 4))
    gone = int((dropout.rate(run.state.source.embedding.reshape(2, 8, 6) - 8.5, run.state.params[LEAF]) > 0.8).sum())
    report = run.rounds(1).logs[0].report
    assert report["dropped"] == pytest.approx(gone / 96, abs=1e-12)
    assert report["bytes_saved"] == pytest.approx(gone * 4 * 8 - 96 / 8, abs=1e-9)


def test_nothing_is_dropped_before_its_round_or_at_threshold_one():
    plain = start(hosted()).rounds(2)
    for how in ({"after": 2, "threshold": 0.1}, {"after": 0, "threshold": 1.0}):
        run = start(Drop(hosted(), **how)).rounds(2)
        assert same_bits(plain.state, run.state)
        assert run.logs[1].report["bytes_saved"] == 0
    later = start(Drop(hosted(), after=1, threshold=0.5)).rounds(2)
    assert [log.report["dropped"] > 0 for log in later.logs] == [False, True]
    assert worst(plain.state, later.state) > 0


def test_it_brings_metavd_along():
    assert isinstance(Drop(MAML()).method, MetaVD)
    assert Drop(MAML()).label == "MAML+MetaVD+DP"
    assert RHO not in Drop(FedAvg()).method.method.__dict__


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match="threshold must be at least 0 and at most 1"):
        Drop(hosted(), threshold=1.5)
