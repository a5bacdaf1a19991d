"""QLSD: the specification's numbers (baselines, §4.3 and Q2), on the functions that the engine runs."""

import pytest
import torch
from torch.func import vmap

from posterity.core.messages import Mean, fold_stack
from posterity.core.passes import Training
from posterity.core.protocol import Now
from posterity.core.random import fold, make_key
from posterity.methods.fedavg import FedAvg
from posterity.methods.qlsd import QLSD, State, quantised

from .sims import DOUBLE, WEIGHT, Run, at, full_batch, mlp, points, q2, quadratics, scalar_model, worst

V = torch.tensor([3.0, 4.0], dtype=DOUBLE)
PLAIN = {"levels": 0, "prior": 0.0, "temperature": 0.0}


def draws(v, levels, count):
    return vmap(lambda key: quantised(v, levels, key)[0])(fold(make_key(1), torch.arange(count)))


@pytest.mark.parametrize(("levels", "variance"), [(1, 10.0), (2, 2.5), (4, 0.625)])
def test_o01_the_quantiser_has_the_mean_and_the_variance(levels, variance):
    """Each of 4000 draws is Bernoulli between two levels 5/s apart: four standard errors of mean and variance."""
    found = draws(V, levels, 4000)
    probability = [levels * v / 5 % 1 for v in (3.0, 4.0)]
    each = [(5 / levels) ** 2 * p * (1 - p) for p in probability]
    assert sum(each) == pytest.approx(variance, abs=1e-12)  # the specification's figure
    for i in (0, 1):
        assert float(found[:, i].mean()) == pytest.approx(float(V[i]), abs=4 * (each[i] / 4000) ** 0.5)
    spread = found.var(0).sum().item()
    assert spread == pytest.approx(variance, abs=4 * variance / 4000**0.5)  # a Bernoulli's kurtosis is below 2 here
    assert set((found[:, 0] * levels / 5).round(decimals=9).tolist()) == {levels * 3 // 5, levels * 3 // 5 + 1}


def test_o02_whole_levels_are_exact():
    """One-hot with s = 1, zeros, and ±(3, 4) with s = 5, where r is 3 and 4: no draw decides anything."""
    one = torch.tensor([0.0, 0.0, -7.0], dtype=DOUBLE)
    assert torch.equal(draws(one, 1, 50), one.expand(50, 3))
    assert torch.equal(draws(torch.zeros(4, dtype=DOUBLE), 3, 5), torch.zeros(5, 4, dtype=DOUBLE))
    assert torch.equal(draws(-V, 5, 50), -V.expand(50, 2))


def test_o03_many_levels_are_the_vector():
    v = torch.randn(40, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    assert worst({"v": quantised(v, 2**20, make_key(3))[0]}, {"v": v}) < float(v.norm()) / 2**20


def test_o04_without_noise_it_is_gradient_descent():
    """Q2 with γ = 0.1: θ ← θ − 0.1 (1·θ + 4(θ − 3)), so 1.2, 1.8, 2.1 on the way to 2.4."""
    run = Run(QLSD(full_batch(1), step=0.1, **PLAIN), q2(), scalar_model(), initial=at(0.0))
    assert [run.rounds(1).scalar() for _ in range(3)] == pytest.approx([1.2, 1.8, 2.1], abs=1e-14)
    assert run.rounds(22).scalar() == pytest.approx(2.4, abs=1e-7)


def test_o05_full_gradients_without_noise_are_fedsgd():
    """γ = η/N on summed losses is one step of η on the mean loss of all: FedAvg with one full batch."""
    federation = points((9, 5, 2))
    model = mlp(federation)
    runs = [Run(m, federation, model).rounds(2)
            for m in (QLSD(full_batch(1, 0.3), **PLAIN), FedAvg(full_batch(1, 0.3)))]  # fmt: skip
    assert worst(runs[0].state.params, runs[1].state.params) < 1e-14


@pytest.mark.parametrize(("gamma", "variance", "rounds"), [(0.01, 0.2051282, 50), (0.1, 0.2666667, 15)])
def test_o06_the_stationary_variance_on_q2(gamma, variance, rounds):
    """60,000 chains side by side, from 2.4: after t rounds V (1 − (1 − 5γ)^2t); √(2/60,000) is an error of 0.6 %."""
    count = 60_000
    method, params = QLSD(step=gamma, prior=0.0), {WEIGHT: torch.full((count,), 2.4, dtype=DOUBLE)}
    state, centre = State(params, {}, 2, 2), torch.tensor([[0.0], [3.0]], dtype=DOUBLE)
    curvature, key = torch.tensor([[1.0], [4.0]], dtype=DOUBLE), make_key(5)
    for r in range(1, rounds + 1):
        slope = {WEIGHT: curvature * (state.params[WEIGHT] - centre)}
        total = fold_stack({"slope": Mean(torch.ones(2, dtype=DOUBLE), slope)})
        state = method.combine(state, total, Now(r, rounds, fold(key, r), 2))
    end = state.params[WEIGHT]
    expected = variance * (1 - (1 - 5 * gamma) ** (2 * rounds))
    assert expected == pytest.approx(variance, rel=0.01)
    assert float(end.var()) == pytest.approx(expected, rel=3 * (2 / count) ** 0.5)
    assert float(end.mean()) == pytest.approx(2.4, abs=4 * (variance / count) ** 0.5)


def test_o07_some_of_the_clients_stand_for_all():
    """Client 2 of Q2 alone counts twice: from 1, g = (2/1)·4·(1 − 3) = −16, and a prior of precision 3 adds 3·1."""
    method = QLSD(full_batch(1), step=0.01, levels=0, prior=3.0, temperature=0.0)
    run = Run(method, q2(), scalar_model(), initial=at(1.0)).rounds(1, cohort=[1])
    assert run.scalar() == pytest.approx(1 + 0.16 - 0.03, abs=1e-14)


def test_o08_a_batch_stands_for_all_samples():
    """Five equal samples, batches of two: H = 5 · slope from any batch, and from all three (2, 2 and 1) together."""
    for full in (False, True):
        method = QLSD(Training(batch=2), step=0.01, full=full, **PLAIN)
        run = Run(method, quadratics([4.0], [3.0], [5]), scalar_model(), initial=at(1.0))
        assert run.rounds(1).scalar() == pytest.approx(1 + 0.01 * 5 * 8, abs=1e-13)
