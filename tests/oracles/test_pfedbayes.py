"""pFedBayes: the specification's conjugate check (baselines, §6), and its formulas computed another way."""

import math

import pytest
import torch

from posterity.core.passes import Training
from posterity.core.random import make_key
from posterity.methods.pfedbayes import RHO, PFedBayes, State, divergence, drawn, joined, proximal_step

from .sims import DOUBLE, WEIGHT, Run, at, q2, scalar_model


def gaussian(mean, deviation):
    """One weight with this mean and deviation; ρ = log(e^σ − 1)."""
    rho = math.log(math.expm1(deviation))
    return joined(at(mean), {WEIGHT: torch.full((1, 1), rho, dtype=DOUBLE)})


@pytest.mark.parametrize(("solver", "lr"), [("proximal", 2 / 5), ("gradient", 2 / 7)])
def test_o01_the_conjugate_check(solver, lr):
    """ζ = 1 and a prior N(1.5, 1) that stays: means 0.75 and 2.7. Twenty steps leave (3/7)^20 = 4e-8 of the way.

    A proximal step leaves (1 − 2/5 · f″)/(1 + 2/5) of it, f″ = 1 and 4.
    """
    method = PFedBayes(Training(lr=lr, batch=10_000), zeta=1.0, inner=20, copy_lr=0.0, spread=0.0, solver=solver)
    run = Run(method, q2(), scalar_model(), initial=at(1.5))
    run.state = State(at(1.5), {WEIGHT: gaussian(1.5, 1.0)[RHO + WEIGHT]})
    ends = [float(o[0, 0]) for o in run.outputs("trained")]
    assert ends == pytest.approx([0.75, 2.7], abs=1e-6)


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


PAIRS = [((0.3, 0.7), (-1.1, 1.9)), ((0.3, 1.9), (0.2, 0.7)), ((1.0, 0.05), (1.01, 0.04)), ((2.0, 6.0), (2.0, 3.0))]


@pytest.mark.parametrize(("mine", "other"), PAIRS)
def test_o04_short_proximal_steps_go_down_the_gradient(mine, other):
    """(e) and (f) against PyTorch's gradient of the divergence: a step of a has the error a · curvature."""
    q, copy, rate = gaussian(*mine), gaussian(*other), 1e-8
    for given, step, of in (
        (q, proximal_step(q, copy, rate, False), lambda leaves: divergence(leaves, copy)),
        (copy, proximal_step(copy, q, rate, True), lambda leaves: divergence(q, leaves)),
    ):
        slopes = torch.func.grad(of)(given)
        for n, slope in slopes.items():
            assert float((given[n] - step[n]) / rate) == pytest.approx(float(slope), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(("mine", "other"), PAIRS)
@pytest.mark.parametrize("rate", [1e-3, 1.0, 1e6])
def test_o05_proximal_steps_never_run_away(mine, other, rate):
    """Both steps bring the Gaussians together, however long; means do not pass one another."""
    q, copy = gaussian(*mine), gaussian(*other)
    before, gap = float(divergence(q, copy)), float(q[WEIGHT] - copy[WEIGHT])
    for nearer_q, nearer_copy in ((proximal_step(q, copy, rate, False), copy), (q, proximal_step(copy, q, rate, True))):
        assert 0 <= float(divergence(nearer_q, nearer_copy)) < before
        assert 0 <= float(nearer_q[WEIGHT] - nearer_copy[WEIGHT]) * math.copysign(1, gap) <= abs(gap)
