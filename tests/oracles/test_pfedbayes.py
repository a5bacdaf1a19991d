"""pFedBayes: the specification's conjugate check (baselines, §6), and its formulas computed another way."""

import math

import pytest
import torch

from posterity.core.random import make_key
from posterity.core.training import Training
from posterity.methods.pfedbayes import RHO, PFedBayes, State, divergence, drawn, joined

from .sims import DOUBLE, WEIGHT, Run, at, q2, scalar_model


def gaussian(mean, deviation):
    """One weight with this mean and deviation; ρ = log(e^σ − 1)."""
    rho = math.log(math.expm1(deviation))
    return joined(at(mean), {WEIGHT: torch.full((1, 1), rho, dtype=DOUBLE)})


def test_o01_the_conjugate_check():
    """ζ = 1 and a prior N(1.5, 1) that stays: means 0.75 and 2.7. Twenty steps leave (3/7)^20 = 4e-8 of the way."""
    method = PFedBayes(Training(lr=2 / 7, batch=10_000), zeta=1.0, inner=20, copy_lr=0.0, spread=0.0)
    run = Run(method, q2(), scalar_model(), initial=at(1.5))
    rho = gaussian(1.5, 1.0)[RHO + WEIGHT]
    run.state = State(at(1.5), {WEIGHT: rho})
    ends = [float(o[0, 0]) for o in run.outputs("trained")]
    assert ends == pytest.approx([0.75, 2.7], abs=1e-5)


def test_o02_the_divergence_is_pytorchs():
    q, p = gaussian(0.3, 0.7), gaussian(-1.1, 1.9)
    exact = torch.distributions.kl_divergence(
        torch.distributions.Normal(0.3, 0.7), torch.distributions.Normal(-1.1, 1.9)
    )
    assert float(divergence(q, p)) == pytest.approx(float(exact), abs=1e-6)
    assert float(divergence(q, q)) == pytest.approx(0.0, abs=1e-15)


def test_o03_draws_have_the_mean_and_the_deviation():
    """20,000 numbers: four standard errors. The released code's ε is a thousandth of it."""
    count = 20_000
    wide = {"w": torch.full((count,), 2.0, dtype=DOUBLE), RHO + "w": torch.full((count,), -3.0, dtype=DOUBLE)}
    sigma = math.log1p(math.exp(-3.0))
    for spread in (1.0, 0.001):
        found = drawn(wide, make_key(3), spread)["w"]
        assert float(found.mean()) == pytest.approx(2.0, abs=4 * sigma * spread / count**0.5)
        assert float(found.std()) == pytest.approx(sigma * spread, rel=4 / (2 * count) ** 0.5)
