"""FedMAP: its limits, a hand-worked round, its bytes. The specification's oracles are in tests/oracles."""

import math

import pytest
import torch
from oracles.worlds import ENGINES, Run, at, full_batch, mlp, points, quadratics, same_bits, scalar_model, worst

from posterity.core.training import Training
from posterity.core.tree import tree_rows
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedmap import FedMAP
from posterity.methods.local import Local

each_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)
TRAINING = Training(lr=0.1, batch=4, epochs=2)
FREE = math.inf


@each_engine
def test_two_clients_by_hand(engine):
    """σ² = 2, η = 0.1, two rounds of one step, uniform weights, from γ = θ_1 = θ_2 = 1.

    Round 1: as local training, θ = (1 + 0.1·(2 − 1), 1 + 0.1·2·(5 − 1)) = (1.1, 1.8), γ = 1.45.
    Round 2, each from its own θ: 1.1 − 0.1·((1.1 − 2) + (1.1 − 1.45)/2) = 1.2075,
    1.8 − 0.1·(2·(1.8 − 5) + (1.8 − 1.45)/2) = 2.4225, γ = 1.815.
    """
    method = FedMAP(full_batch(1), sigma2=2.0, weighting="uniform")
    run = Run(method, quadratics([1.0, 2.0], [2.0, 5.0], [1, 3]), scalar_model(), engine, at(1.0)).rounds(1)
    assert run.personal() == pytest.approx([1.1, 1.8], abs=1e-14)
    assert run.scalar() == pytest.approx(1.45, abs=1e-14)
    assert run.rounds(1).personal() == pytest.approx([1.2075, 2.4225], abs=1e-13)
    assert run.scalar() == pytest.approx(1.815, abs=1e-13)


@each_engine
@pytest.mark.parametrize("weighting", ["per_sample", "posterior"])
def test_a_flat_prior_is_local_training(engine, weighting):
    federation = points((9, 5, 1))
    free = Run(FedMAP(TRAINING, sigma2=FREE, weighting=weighting), federation, mlp(federation), engine).rounds(3)
    alone = Run(Local(TRAINING), federation, mlp(federation), engine).rounds(3)
    assert same_bits(free.store.rows, alone.store.rows)


@each_engine
def test_a_flat_prior_and_weights_by_size_are_fedavg_in_float32(engine):
    federation = points((9, 5, 1, 13))
    method = FedMAP(TRAINING, sigma2=FREE, weighting="num_examples", start_at="prior")
    runs = [
        Run(m, federation, mlp(federation), engine, dtype=torch.float32).rounds(3) for m in (method, FedAvg(TRAINING))
    ]
    assert same_bits(runs[0].state.params, runs[1].state.params)


def test_a_flat_prior_and_weights_by_size_are_fedavg_in_float64():
    federation = points((9, 5, 1, 13))
    method = FedMAP(TRAINING, sigma2=FREE, weighting="num_examples", start_at="prior")
    runs = [Run(m, federation, mlp(federation)).rounds(3) for m in (method, FedAvg(TRAINING))]
    assert worst(runs[0].state.params, runs[1].state.params) < 1e-12


def test_one_client_is_its_own_prior():
    """K = 1: γ is the client's estimate, whatever its weight."""
    federation = points((17,))
    run = Run(FedMAP(TRAINING, weighting="posterior"), federation, mlp(federation)).rounds(2)
    assert same_bits(run.state.params, tree_rows(run.store.rows, 0))


def test_identical_clients_are_left_alone():
    run = Run(FedMAP(full_batch(3)), quadratics([2.0] * 3, [1.0] * 3), scalar_model(), initial=at(0.0)).rounds(2)
    assert run.personal() == pytest.approx([run.scalar()] * 3, abs=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_are_fedavgs(dtype):
    """FedAvg's message has the weight; FedMAP's has the logarithm of a weight in its place, always in float64."""
    federation = points((5, 9, 3))
    model = mlp(federation)
    logs = [Run(m, federation, model, dtype=dtype).rounds(1).logs[0] for m in (FedMAP(), FedAvg())]
    assert logs[1].bytes_up == 3 * (model.size + 1) * dtype.itemsize
    assert logs[0].bytes_up == 3 * (model.size * dtype.itemsize + 8)
    assert logs[0].bytes_down == logs[1].bytes_down


def test_running_statistics_stay_with_their_client():
    """`start_at="prior"` takes γ's parameters, but the client's own statistics."""
    federation = points((8, 8))
    method = FedMAP(full_batch(1), start_at="prior")
    run = Run(method, federation, mlp(federation, norm=True)).rounds(1)
    name = next(iter(sorted(run.world.model.buffers)))
    rows = run.store.rows[name]
    assert not torch.equal(rows[0], rows[1])
    one = Run(method, federation, mlp(federation, norm=True)).rounds(1)
    one.store.rows[name][0] += 1.0
    shift = one.rounds(1).store.rows[name][0] - run.rounds(1).store.rows[name][0]
    assert torch.allclose(shift, torch.full_like(shift, 0.9), atol=1e-12)  # momentum 0.1 forgets a tenth


def test_effective_clients_are_reported():
    run = Run(FedMAP(full_batch(1), weighting="uniform"), quadratics([1.0] * 4, [0.0, 1.0, 2.0, 3.0]), scalar_model())
    assert run.rounds(1).logs[0].report["effective_clients"] == pytest.approx(4.0, abs=1e-12)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sigma2": 0.0}, "sigma2 is a variance"),
        ({"sigma2": -1.0}, "sigma2 is a variance"),
        ({"sigma2": math.nan}, "sigma2 is a variance"),
        ({"weighting": "per-sample"}, "did you mean 'per_sample'"),
        ({"prior_scale": "sum"}, "prior_scale = 'sum' is unknown"),
        ({"start_at": "zero"}, "start_at = 'zero' is unknown"),
    ],
)
def test_bad_hyper_parameters(given, message):
    with pytest.raises(ValueError, match=message):
        FedMAP(**given)
