"""FedPA: its limits, its server, its bytes. The specification's oracles are in tests/oracles."""

import math

import pytest
import torch
from oracles.sims import ENGINES, Run, at, each_engine, full_batch, leaves, mlp, points, q2, scalar_model, worst

from posterity.core.passes import Training
from posterity.laws import check
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedpa import FedPA

TRAINING = Training(lr=0.1, batch=4, epochs=2)
PLAIN = {"server_lr": 1.0, "server_momentum": 0.0}


@each_engine
@pytest.mark.parametrize("norm", [False, True])
def test_burn_in_rounds_are_fedavg(engine, norm):
    federation = points((9, 5, 1, 13))
    methods = FedPA(TRAINING, burn_rounds=3, rho=0.5, **PLAIN), FedAvg(TRAINING)
    runs = [Run(m, federation, mlp(federation, norm=norm), engine).rounds(3) for m in methods]
    assert worst(runs[0].state.params, runs[1].state.params) < 1e-12
    ends = [run.rounds(1).state.params for run in runs]
    assert worst(*ends) > 1e-4  # and the fourth is not


@each_engine
def test_one_step_is_fedavg(engine):
    """One step is one sample without mixing, θ_last itself, whatever ρ."""
    federation = points((9, 5, 2))
    methods = FedPA(full_batch(1), burn=0, burn_rounds=0, rho=3.0, **PLAIN), FedAvg(full_batch(1))
    runs = [Run(m, federation, mlp(federation), engine).rounds(3) for m in methods]
    assert worst(runs[0].state.params, runs[1].state.params) < 1e-12


@each_engine
def test_server_momentum_by_hand(engine):
    """FedAvg's deltas of one step on Q2 from 0: (0 + 1.2)/2 = 0.6; v = 0.6, w = 0.5 · 0.6 = 0.3.

    From 0.3: Δ = (−0.03 + 1.08)/2 = 0.525; v = 0.9 · 0.6 + 0.525 = 1.065, w = 0.3 + 0.5325 = 0.8325.
    """
    run = Run(FedPA(full_batch(1)), q2(), scalar_model(), engine, at(0.0)).rounds(1)
    assert run.scalar() == pytest.approx(0.3, abs=1e-14)
    assert run.rounds(1).scalar() == pytest.approx(0.8325, abs=1e-14)


def test_a_rho_of_zero_sends_the_mean_of_the_samples():
    """Q2 from 1, two steps without mixing: x̄ = ((0.9 + 0.81)/2, 3 − (1.2 + 0.72)/2) = (0.855, 2.04)."""
    method = FedPA(full_batch(2), rho=0.0, samples=2, burn=0, burn_rounds=0, **PLAIN)
    run = Run(method, q2(), scalar_model(), initial=at(1.0)).rounds(1)
    assert run.scalar() == pytest.approx((0.855 + 2.04) / 2, abs=1e-14)


def test_engines_agree_with_empty_stretches():
    federation = points()
    runs = [Run(FedPA(TRAINING, burn_rounds=1, rho=0.2), federation, mlp(federation), e).rounds(3) for e in ENGINES]
    assert worst(runs[0].state, runs[1].state) < 1e-12
    assert all(bool(v.isfinite().all()) for v in leaves(runs[0].state).values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_are_fedavgs(dtype):
    """Momentum stays at the server."""
    federation = points((5, 9, 2))
    logs = [Run(m, federation, mlp(federation), dtype=dtype).rounds(1).logs[0] for m in (FedPA(), FedAvg())]
    assert (logs[0].bytes_up, logs[0].bytes_down) == (logs[1].bytes_up, logs[1].bytes_down)


@pytest.mark.parametrize("model", ["mlp", pytest.param("mlp_bn", marks=pytest.mark.everything)])
def test_laws_hold_after_the_burn_in(model):
    """The roster's FedPA burns in throughout; this one samples from the second round."""
    broken = [v.detail for v in check(FedPA(Training(lr=0.05, batch=4), burn_rounds=1, rho=0.1), model) if not v.held]
    assert broken == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rho": -0.1}, "rho must be at least 0"),
        ({"rho": math.nan}, "rho must be a finite number; nan"),
        ({"samples": 0}, "samples must be at least 1"),
        ({"burn": -1}, "burn must be at least 0"),
        ({"burn_rounds": 1.5}, "burn_rounds takes a whole number"),
        ({"server_lr": "fast"}, "server_lr takes a number"),
        ({"server_momentum": 1.0}, "server_momentum must be at least 0 and below 1"),
    ],
)
def test_bad_hyper_parameters(given, message):
    with pytest.raises(ValueError, match=message):
        FedPA(**given)
