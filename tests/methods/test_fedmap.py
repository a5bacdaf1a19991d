"""FedMAP: its limits, a hand-worked round, its bytes. The specification's oracles are in tests/oracles."""

import math
from types import SimpleNamespace

import pytest
import torch
from oracles.sims import (
    Run,
    at,
    each_engine,
    full_batch,
    mlp,
    points,
    quadratics,
    same_bits,
    scalar_model,
    worst,
)

from posterity.core.passes import Training
from posterity.core.tree import tree_rows
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedmap import WEIGHTINGS, FedMAP
from posterity.methods.local import Local

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
@pytest.mark.parametrize(("scale", "second"), [("per_batch", 2.4225), ("bayes", 1.8 + 0.1 * (6.4 - 0.35 / 6))])
def test_the_two_scales_of_the_prior_by_hand(engine, scale, second):
    """As above: `bayes` divides the pull by N = (1, 3), so client 1 moves as before and client 2 is held less."""
    method = FedMAP(full_batch(1), sigma2=2.0, weighting="uniform", prior_scale=scale)
    run = Run(method, quadratics([1.0, 2.0], [2.0, 5.0], [1, 3]), scalar_model(), engine, at(1.0)).rounds(2)
    assert run.personal() == pytest.approx([1.2075, second], abs=1e-13)


C = 0.5 * math.log(2 * math.pi)  # of the density of one sample
LOG_WEIGHTS = {
    "per_sample": (-0.4075 - C, -30.88 / 3 - C),
    "posterior": (-0.4075 - C, -30.88 - 3 * C),
    "likelihood": (-0.405 - C, -30.72 - 3 * C),
    "num_examples": (math.log(1), math.log(3)),
    "uniform": (0.0, 0.0),
}


@each_engine
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_five_weightings_by_hand(engine, weighting):
    """One step of 0.1 from γ = 1 gives θ = (1.1, 1.8) and, with σ² = 2 and N = (1, 3),

    L = (−½ (1.1 − 2)², −3 · ½ · 2 (1.8 − 5)²) − N/2 log 2π = (−0.405, −30.72) − N/2 log 2π,
    R = (0.1²/4, 0.8²/4) = (0.0025, 0.16).
    """
    run = Run(FedMAP(full_batch(1), sigma2=2.0, weighting=weighting), quadratics([1.0, 2.0], [2.0, 5.0], [1, 3]),
              scalar_model(), engine, at(1.0)).rounds(1)  # fmt: skip
    weights = [math.exp(w) for w in LOG_WEIGHTS[weighting]]
    mean = (weights[0] * 1.1 + weights[1] * 1.8) / sum(weights)
    assert run.scalar() == pytest.approx(mean, abs=1e-12)
    effective = sum(weights) ** 2 / sum(w**2 for w in weights)
    assert run.logs[0].report["effective_clients"] == pytest.approx(effective, abs=1e-12)
    assert all("effective_clients" in log.report for log in run.rounds(2).logs)  # every round


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
    name = next(iter(sorted(run.sim.model.buffers)))
    rows = run.store.rows[name]
    assert not torch.equal(rows[0], rows[1])
    one = Run(method, federation, mlp(federation, norm=True)).rounds(1)
    one.store.rows[name][0] += 1.0
    shift = one.rounds(1).store.rows[name][0] - run.rounds(1).store.rows[name][0]
    assert torch.allclose(shift, torch.full_like(shift, 0.9), atol=1e-12)  # momentum 0.1 forgets a tenth


@each_engine
@pytest.mark.parametrize("scale", ["per_batch", "bayes"])
def test_batch_norm_trains_under_every_weighting(engine, scale):
    """The prior pulls weights and biases of norm layers, never running statistics; γ averages all of them."""
    federation = points((8, 6, 5))
    for weighting in WEIGHTINGS:
        method = FedMAP(TRAINING, sigma2=3.0, weighting=weighting, prior_scale=scale)
        run = Run(method, federation, mlp(federation, norm=True), engine).rounds(2)
        assert [log.accepted for log in run.logs] == [3, 3]
        assert all(torch.isfinite(leaf).all() for leaf in run.state.params.values())


def test_the_prior_leaves_running_statistics_alone():
    federation = points((8,))
    model = mlp(federation, norm=True)
    gamma, theta = model.init(0, torch.float64), model.init(1, torch.float64)
    here = SimpleNamespace(shared=SimpleNamespace(params=gamma), model=model)
    square = sum(float(((theta[n] - gamma[n]) ** 2).sum()) for n in theta if n not in model.buffers)
    assert float(FedMAP(sigma2=2.0).log_prior(theta, here)) == pytest.approx(-square / 4, rel=1e-12)
    moved = {n: p + 100 if n in model.buffers else p for n, p in theta.items()}
    assert torch.equal(FedMAP().log_prior(moved, here), FedMAP().log_prior(theta, here))


def test_effective_clients_are_reported():
    run = Run(FedMAP(full_batch(1), weighting="uniform"), quadratics([1.0] * 4, [0.0, 1.0, 2.0, 3.0]), scalar_model())
    assert run.rounds(1).logs[0].report["effective_clients"] == pytest.approx(4.0, abs=1e-12)


def test_effective_clients_of_log_weights():
    """One step of 0.1 from 1: θ = (1.1, 1.4), L = (−.405, −2.56), R = (.005, .08), so log ω = (−.41, −2.64)."""
    method = FedMAP(full_batch(1), sigma2=1.0, weighting="posterior")
    run = Run(method, quadratics([1.0, 2.0], [2.0, 3.0]), scalar_model(), initial=at(1.0)).rounds(1)
    ratio = math.exp(-2.64 + 0.41)
    assert run.scalar() == pytest.approx((1.1 + ratio * 1.4) / (1 + ratio), abs=1e-12)
    assert run.logs[0].report["effective_clients"] == pytest.approx((1 + ratio) ** 2 / (1 + ratio**2), abs=1e-12)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sigma2": 0.0}, "sigma2 must be above 0"),
        ({"sigma2": -1.0}, "sigma2 must be above 0"),
        ({"sigma2": math.nan}, "sigma2 must be a finite number; nan"),
        ({"weighting": "per-sample"}, "did you mean 'per_sample'"),
        ({"prior_scale": "sum"}, "prior_scale = 'sum' is unknown"),
        ({"start_at": "zero"}, "start_at = 'zero' is unknown"),
    ],
)
def test_bad_hyper_parameters(given, message):
    with pytest.raises(ValueError, match=message):
        FedMAP(**given)
