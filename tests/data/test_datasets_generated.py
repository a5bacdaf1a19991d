"""The two generated datasets against the papers' formulae."""

import numpy as np
import pytest
import torch

from posterity.data import load
from posterity.data.datasets import polynomial, synthetic


def test_intrinsic_laws_of_fedmap_o12() -> None:
    rng = np.random.default_rng(0)
    basis = synthetic.rotation(rng)
    assert np.allclose(basis.T @ basis, np.eye(30), atol=1e-12)
    y = np.repeat([0, 1], 100_000)
    x = synthetic.draw(y, rng, nuisance_var=9.0) @ basis.T
    projected = x @ basis[:, :4]  # Bᵀx
    radius = np.linalg.norm(projected, axis=1)
    assert abs(radius[y == 1].mean() - 8) < 0.03
    assert abs(radius[y == 1].var() - 2) < 0.03
    assert abs((radius[y == 0] ** 2).mean() - 8) < 0.03  # four times the variance 2
    assert np.abs(projected[y == 1].mean(0)).max() < 0.06  # no direction is preferred
    rest = x - projected @ basis[:, :4].T
    assert abs((rest**2).sum(1).mean() / 26 - 9) < 0.03


@pytest.mark.parametrize(
    ("skew", "sizes", "zeros"),
    [
        ("feature", [2000] * 10, [0.5] * 10),
        ("quantity", [2000] * 5 + [500] * 5, [0.5] * 10),
        ("label", [2000] * 10, [0.5] * 5 + [0.85] * 5),
    ],
)
def test_the_three_scenarios(skew: str, sizes: list[int], zeros: list[float]) -> None:
    pool = synthetic.load(None, 0, skew=skew)
    assert pool.owner is not None
    assert torch.bincount(pool.owner).tolist() == sizes
    share = [float((pool.y[pool.owner == k] == 0).double().mean()) for k in range(10)]
    assert share == zeros


def test_clients_see_different_maps_of_one_problem() -> None:
    pool = synthetic.load(None, 0)
    means = torch.stack([pool.x[pool.owner == k].mean(0) for k in range(10)])
    assert means[9].norm() > 2 * means[0].norm()  # b grows with the client's index
    assert not torch.equal(pool.x, synthetic.load(None, 0, preset="code").x)


def test_standardisation_looks_at_training_rows_only() -> None:
    f, raw = load("synthetic", split="70/30"), synthetic.load(None, 0)
    assert f.train.counts.tolist() == [1400] * 10
    for k in (0, 9):
        mine = f.x[f.train.client(k)].double()
        assert mine.mean(0).abs().max() < 1e-4
        assert (mine.std(0, correction=0) - 1).abs().max() < 1e-4
        held = f.x[f.test.client(k)]
        assert held.double().mean(0).abs().max() > 0.01  # it would be 0 had the test rows been looked at
        seen = raw.x[f.train.client(k)].double()
        rows = raw.x[f.test.client(k)].double()
        assert torch.allclose(held.double(), (rows - seen.mean(0)) / seen.std(0, correction=0), atol=1e-4)


def test_as_many_clients_as_asked_for() -> None:
    assert load("synthetic", clients=4, options={"samples": "100"}).train.counts.tolist() == [80] * 4


def test_the_parabola_of_fednp() -> None:
    f = load("polynomial", split="100/0")
    assert (f.task, f.classes, f.shape, f.y.dtype) == ("regression", 0, (1,), torch.float32)
    assert f.train.counts.tolist() == [30, 20, 50]
    assert f.common is not None
    assert f.common.tolist() == list(range(100))
    for k, (low, high, _) in enumerate(polynomial.PIECES):
        x = f.x[f.train.client(k)]
        assert low <= x.min() <= x.max() <= high


@pytest.mark.parametrize(("noise", "variance"), [("variance", 5.0), ("sd", 25.0)])
def test_both_readings_of_the_noise(noise: str, variance: float) -> None:
    pools = [polynomial.load(None, seed, noise=noise) for seed in range(40)]
    x, y = torch.cat([p.x[:, 0] for p in pools]), torch.cat([p.y for p in pools])
    error = y - (-(x**2) + 2 * x + 5)
    assert abs(error.var().item() / variance - 1) < 0.1
    assert abs(error.mean().item()) < 0.3
