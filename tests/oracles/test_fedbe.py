"""FedBE: where models are drawn from, against direct computation and known moments."""

import math

import pytest
import torch

from oracles.sims import DOUBLE, same_bits, worst
from posterity.core import make_key
from posterity.methods.fedbe import FedBE, dirichlet, gaussian_fit, log_gamma


def stack(*values, dtype=DOUBLE):
    return {"w": torch.tensor(values, dtype=dtype)}


def test_mean_and_variance_of_two_clients():
    """0 and 2, equally large: mean 1, variance 1; thrice as much of the second: 1.5 and 0.75."""
    mean, variance = gaussian_fit(stack([0.0], [2.0]), torch.tensor([1.0, 1.0], dtype=DOUBLE))
    assert (mean["w"].tolist(), variance["w"].tolist()) == ([1.0], [1.0])
    mean, variance = gaussian_fit(stack([0.0], [2.0]), torch.tensor([5.0, 15.0], dtype=DOUBLE))
    assert (mean["w"].tolist(), variance["w"].tolist()) == ([1.5], [0.75])


def test_mean_and_variance_by_the_direct_computation():
    generator = torch.Generator().manual_seed(0)
    each = torch.randn(5, 3, 2, generator=generator, dtype=DOUBLE)
    size = torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0], dtype=DOUBLE)
    rows = torch.cat([each[k].expand(int(size[k]), 3, 2) for k in range(5)])  # a model as often as it has samples
    mean, variance = gaussian_fit({"w": each}, size)
    assert worst(mean, {"w": rows.mean(0)}) < 1e-14
    assert worst(variance, {"w": rows.var(0, correction=0)}) < 1e-14


def test_draws_have_a_tenth_of_the_deviation():
    """20,000 entries N(1, (0.1·2)²): moments within four standard errors; leaves that are not trained stay."""
    count, method = 2000, FedBE(samples=10)
    mean = {"w": torch.ones(count, dtype=DOUBLE), "still": torch.ones(1, dtype=DOUBLE)}
    variance = {"w": torch.full((count,), 4.0, dtype=DOUBLE), "still": torch.full((1,), 4.0, dtype=DOUBLE)}
    drawn = method.draws(mean, variance, {}, torch.ones(2), ["w"], make_key(1))
    found = torch.stack([model["w"] for model in drawn])
    assert found.shape == (10, count)
    assert float(found.mean()) == pytest.approx(1, abs=4 * 0.2 / math.sqrt(10 * count))
    assert float(found.std()) == pytest.approx(0.2, rel=4 / math.sqrt(20 * count))
    assert all(torch.equal(model["still"], mean["still"]) for model in drawn)
    assert not torch.equal(found[0], found[1])
    cov = float(((found[0] - 1) * (found[1] - 1)).mean())  # models are drawn by themselves
    assert abs(cov) < 4 * 0.04 / math.sqrt(count)


def test_the_variance_has_a_floor():
    mean, none = {"w": torch.zeros(4000, dtype=DOUBLE)}, {"w": torch.zeros(4000, dtype=DOUBLE)}
    (drawn,) = FedBE(samples=1).draws(mean, none, {}, torch.ones(1), ["w"], make_key(0))
    assert float(drawn["w"].std()) == pytest.approx(1e-4, rel=0.05)
    (drawn,) = FedBE(samples=1, floor=0.0).draws(mean, none, {}, torch.ones(1), ["w"], make_key(0))
    assert same_bits(drawn, mean)


def test_gamma_draws():
    """Mean and variance of Gamma(a) are a, within four standard errors, below and above shape 1."""
    for a, n in ((0.3, 5_000), (1.0, 150_000), (40.0, 5_000)):  # unrefused candidates of shape 1: variance 1.041
        g = log_gamma(make_key(2), torch.full((n,), a, dtype=DOUBLE)).exp()
        assert float(g.mean()) == pytest.approx(a, abs=4 * math.sqrt(a / n))
        square = (g - a) ** 2
        assert float(square.mean()) == pytest.approx(a, abs=4 * float(square.std()) / math.sqrt(n))


def test_dirichlet_draws():
    """Means are the shares; α → ∞ is the mean model; draws are within the clients' hull."""
    share = torch.tensor([0.2, 0.3, 0.5], dtype=DOUBLE)
    gamma = dirichlet(make_key(3), 2 * share, 5_000)
    assert gamma.sum(1).tolist() == pytest.approx([1] * 5_000, abs=1e-12)
    spread = torch.sqrt(share * (1 - share) / 3)  # α₀ = 2
    assert bool(((gamma.mean(0) - share).abs() < 4 * spread / math.sqrt(5_000)).all())
    assert gamma.std(0).tolist() == pytest.approx(spread.tolist(), rel=0.05)
    each, size = stack([0.0], [2.0], [4.0]), torch.tensor([2.0, 3.0, 5.0], dtype=DOUBLE)
    mean, variance = gaussian_fit(each, size)
    for method, least, most in (
        (FedBE(sampling="dirichlet"), 0.2, 4),
        (FedBE(sampling="dirichlet", concentration=1e12), 0, 1e-4),
    ):
        drawn = torch.stack([m["w"] for m in method.draws(mean, variance, each, size, ["w"], make_key(0))])
        assert drawn.shape == (10, 1)
        assert least <= float((drawn - 2.6).abs().max()) <= most
        assert 0 <= float(drawn.min()) <= float(drawn.max()) <= 4
    gamma = dirichlet(make_key(0), size / 10, 10)  # shares, not sizes
    drawn = FedBE(sampling="dirichlet").draws(mean, variance, each, size, ["w"], make_key(0))
    assert [float(m["w"]) for m in drawn] == pytest.approx((gamma @ each["w"])[:, 0].tolist(), abs=1e-12)
    still = FedBE(sampling="dirichlet").draws(mean, variance, each, size, [], make_key(0))
    assert all(same_bits(model, mean) for model in still)
