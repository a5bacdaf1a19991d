"""FedBE: where models are drawn from, against direct computation and known moments."""

import math

import pytest
import torch

from oracles.sims import DOUBLE, same_bits, worst
from posterity.core import make_key
from posterity.methods.fedbe import FedBE, gaussian_fit


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
    drawn = method.draws(mean, variance, ["w"], make_key(1))
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
    (drawn,) = FedBE(samples=1).draws(mean, none, ["w"], make_key(0))
    assert float(drawn["w"].std()) == pytest.approx(1e-4, rel=0.05)
    (drawn,) = FedBE(samples=1, floor=0.0).draws(mean, none, ["w"], make_key(0))
    assert same_bits(drawn, mean)
