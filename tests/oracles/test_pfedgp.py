"""pFedGP: Pólya-Gamma moments, the Gaussian process against dense algebra and quadrature, the tree by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans

from posterity.core import fold, make_key, normal
from posterity.methods.pfedgp.node import (
    alone,
    branch_log_probabilities,
    gibbs,
    grow_tree,
    kernel,
    leaf_log_probabilities,
    mean_field,
    predictive,
    steadied,
    unit,
)
from posterity.methods.pfedgp.polya_gamma import TERMS, exponential, from_exponentials, mean_of, variance_of

DOUBLE = torch.float64
SCALE, LENGTH, JITTER = 8.0, 1.0, 1e-3
PAIR = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=DOUBLE)  # left, right
PRIOR = torch.tensor(8.001, dtype=DOUBLE)
SIDES = torch.tensor([0.5, -0.5], dtype=DOUBLE)


def gram(u, jitter=JITTER):
    return kernel(u, u, SCALE, LENGTH) + jitter * torch.eye(len(u), dtype=u.dtype)


def some_points(n, seed=0, width=3):
    return unit(torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE))


# --- Pólya-Gamma ------------------------------------------------------------------------------------------------------
def pg_variance(c: float) -> float:
    return 1 / 24 if c == 0 else (math.sinh(c) - c) / (4 * c**3 * math.cosh(c / 2) ** 2)


def test_mean_of_polya_gamma():
    found = mean_of(torch.tensor([0.0, 1.0, 2.0, -2.0], dtype=DOUBLE))
    assert found.tolist() == pytest.approx([0.25, 0.2310586, 0.1903985, 0.1903985], abs=5e-8)
    assert torch.isfinite(mean_of(torch.tensor([0.0, 1e-30, 1e30]))).all()


def test_variance_of_polya_gamma():
    assert float(variance_of(torch.zeros((), dtype=DOUBLE))) == pytest.approx(1 / 24, abs=1e-16)
    assert torch.isfinite(variance_of(torch.tensor([0.0, 1e-30, 1e8]))).all()
    for c in (0.01, 0.1, 0.299, 0.301, 1.0, 2.0, 30.0):  # 0.3 is where the formulas change
        known = math.fsum(1 / (2 * math.pi**2 * (k + 0.5) ** 2 + c**2 / 2) ** 2 for k in range(20_000))
        assert float(variance_of(torch.tensor(c, dtype=DOUBLE))) == pytest.approx(known, rel=2e-7)
        assert float(variance_of(torch.tensor(-c))) == pytest.approx(known, rel=1e-4)  # float32
        assert float(mean_of(torch.tensor(c, dtype=DOUBLE))) == pytest.approx(math.tanh(c / 2) / (2 * c), rel=1e-8)


@pytest.mark.parametrize("c", [0.0, 1.0, 2.0, 6.0])
def test_draws_of_polya_gamma_have_its_moments(c):
    """Within four standard errors of mean, variance and E exp(−3ω) = cosh(c/2) / cosh √((c²/2 + 3)/2)."""
    n = 60_000
    omega = from_exponentials(exponential(make_key(1), (n, TERMS), DOUBLE), torch.full((n,), c, dtype=DOUBLE))
    assert float(omega.min()) > 0
    mean, variance = float(mean_of(torch.tensor(c, dtype=DOUBLE))), pg_variance(c)
    assert float(omega.mean()) == pytest.approx(mean, abs=4 * math.sqrt(variance / n))
    square = (omega - mean) ** 2
    assert float(square.mean()) == pytest.approx(variance, abs=4 * float(square.std()) / math.sqrt(n))
    decay = torch.exp(-3 * omega)
    known = math.cosh(c / 2) / math.cosh(math.sqrt((c**2 / 2 + 3) / 2))
    assert float(decay.mean()) == pytest.approx(known, abs=4 * float(decay.std()) / math.sqrt(n))


@pytest.mark.parametrize("c", [0.0, 1.5, 12.0])
def test_a_draw_has_the_first_three_cumulants(c):
    """A draw is linear in its exponentials: Σ r, Σ r² and 2 Σ r³ are its cumulants, two of three exactly."""
    at, none = torch.tensor([c], dtype=DOUBLE), torch.zeros(1, TERMS, dtype=DOUBLE)
    rates = from_exponentials(torch.eye(TERMS, dtype=DOUBLE), at) - from_exponentials(none, at)
    assert float(from_exponentials(none + 1, at)) == pytest.approx(float(mean_of(at)), rel=1e-14)
    assert float((rates**2).sum()) == pytest.approx(float(variance_of(at)), rel=1e-12)
    third = math.fsum(2 / (2 * math.pi**2 * (k + 0.5) ** 2 + c**2 / 2) ** 3 for k in range(2000))
    assert float(2 * (rates**3).sum()) == pytest.approx(third, rel=1e-4 if c < 2 else 0.1)
    assert float(from_exponentials(none, at)) > 0  # the least that can be drawn


def test_exponentials_do_not_depend_on_how_many_are_drawn():
    few, many = (exponential(make_key(2), (rows, 3, 5), DOUBLE) for rows in (4, 9))
    assert torch.equal(few, many[:4])
    assert torch.isfinite(exponential(make_key(2), (100_000,))).all()


# --- one node ---------------------------------------------------------------------------------------------------------
def test_two_points():
    """The specification's numbers: ω = ¼, s = 8, ℓ = 1, jitter 1e-3."""
    targets = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=DOUBLE)
    omega = torch.full((2,), 0.25, dtype=DOUBLE)
    mean, variance = predictive(gram(PAIR), kernel(PAIR, targets, SCALE, LENGTH), PRIOR, SIDES, omega)
    assert mean.tolist() == pytest.approx([1.267103, 0.0], abs=5e-7)
    assert variance.tolist() == pytest.approx([2.657166, 6.676991], abs=5e-7)
    left, right = branch_log_probabilities(mean[None], variance[None]).exp()
    assert left.tolist() == pytest.approx([0.7044384, 0.5], abs=5e-7)
    assert right.tolist() == pytest.approx([1 - 0.7044384, 0.5], abs=5e-7)


def test_branches_average_probabilities_over_chains():
    """Against a fine grid, to what 32 points of Gauss-Hermite can do; chains average probabilities, not logits."""
    mean = torch.tensor([[3.0], [-1.0]], dtype=DOUBLE)
    variance = torch.tensor([[0.5], [4.0]], dtype=DOUBLE)
    x = np.linspace(-10, 10, 20_001)
    weight = np.exp(-(x**2) / 2) / np.exp(-(x**2) / 2).sum()
    each = [float((weight / (1 + np.exp(-(m + math.sqrt(v) * x)))).sum()) for m, v in ((3.0, 0.5), (-1.0, 4.0))]
    left, right = branch_log_probabilities(mean, variance).exp()
    assert float(left) == pytest.approx(sum(each) / 2, abs=1e-7)
    assert float(left + right) == pytest.approx(1, abs=1e-12)


def test_without_information_the_prior_is_left():
    """ω → 0: the variance is the prior's, and the likelihood exp(κf) alone moves the mean, to k*ᵀκ."""
    targets = some_points(3, width=2)
    cross = kernel(PAIR, targets, SCALE, LENGTH)
    mean, variance = predictive(gram(PAIR), cross, PRIOR, SIDES, torch.full((2,), 1e-14).double())
    assert variance.tolist() == pytest.approx([8.001] * 3, abs=1e-9)
    assert mean.tolist() == pytest.approx((cross.T @ SIDES).tolist(), abs=1e-9)
    unobserved = predictive(gram(PAIR), cross, PRIOR, 0 * SIDES, torch.zeros(2).double())
    assert unobserved[0].tolist() == [0, 0, 0]


def test_prediction_is_the_dense_formula_of_the_rows_at_the_node():
    """k*ᵀ(K + Ω⁻¹)⁻¹κ/ω and k** − k*ᵀ(K + Ω⁻¹)⁻¹k* of rows 0, 2, 3; the others have ω = κ = 0."""
    u, targets, rows = some_points(5), some_points(4, 1), [0, 2, 3]
    kappa, omega = torch.tensor([0.5, 0, -0.5, 0.5, 0]).double(), torch.tensor([0.1, 0, 0.2, 0.05, 0]).double()
    found = predictive(gram(u), kernel(u, targets, SCALE, LENGTH), PRIOR, kappa, omega)
    k, cross = gram(u)[rows][:, rows], kernel(u[rows], targets, SCALE, LENGTH)
    inverse = torch.linalg.inv(k + torch.diag(1 / omega[rows]))
    assert found[0].tolist() == pytest.approx((cross.T @ inverse @ (kappa / omega)[rows]).tolist(), abs=1e-12)
    assert found[1].tolist() == pytest.approx((8.001 - (cross * (inverse @ cross)).sum(0)).tolist(), abs=1e-12)


def posterior_probability(x: torch.Tensor) -> float:
    """E σ(f(x)) of the exact posterior of the two points, by summing over a grid of (f₁, f₂)."""
    k = gram(PAIR).numpy()
    axis = np.linspace(-14, 14, 200)
    a, b = np.meshgrid(axis, axis, indexing="ij")
    points = np.stack((a.ravel(), b.ravel()))
    log = (
        -0.5 * (points * np.linalg.solve(k, points)).sum(0) - np.log1p(np.exp(-points[0])) - np.log1p(np.exp(points[1]))
    )
    weight = np.exp(log - log.max())
    cross = kernel(PAIR, x[None], SCALE, LENGTH).numpy()[:, 0]
    gain = np.linalg.solve(k, cross)
    mean, variance = gain @ points, 8.001 - cross @ gain
    told = branch_log_probabilities(torch.tensor(mean)[None], torch.full((1, len(mean)), variance).double())
    return float((told[0].exp().numpy() * weight).sum() / weight.sum())


def test_chains_reach_the_posterior():
    """The mean over 3000 chains of 12 steps is the exact posterior's within four standard errors."""
    x = torch.tensor([0.8, 0.6], dtype=DOUBLE)
    k, count = gram(PAIR), 3000
    run = torch.func.vmap(lambda key: gibbs(k, torch.linalg.cholesky(k), SIDES, key, 12))
    omega = run(fold(make_key(3), torch.arange(count)))
    cross = kernel(PAIR, x[None], SCALE, LENGTH)
    mean, variance = torch.func.vmap(lambda each: predictive(k, cross, PRIOR, SIDES, each))(omega)
    each = torch.func.vmap(lambda m, v: branch_log_probabilities(m[None], v[None]))(mean, variance)[:, 0].exp()
    exact = posterior_probability(x)
    assert exact == pytest.approx(0.63, abs=0.1)  # not trivially a half
    assert float(each.mean()) == pytest.approx(exact, abs=4 * float(each.std()) / math.sqrt(count))
    assert 4 * float(each.std()) / math.sqrt(count) < 0.01


def test_a_chain_is_what_numpy_says():
    """One step of one chain, by inverses, from the same normals and exponentials."""
    u, key = some_points(4), make_key(5)
    k, kappa = gram(u).numpy(), np.array([0.5, -0.5, 0.5, -0.5])
    noise = normal(fold(key, 0), (4, 1, 2), DOUBLE).numpy()
    lots = exponential(fold(key, 1), (4, 2, TERMS), DOUBLE)
    omega = from_exponentials(lots[:, 0], torch.zeros(4).double()).numpy()
    prior = np.linalg.cholesky(k) @ noise[:, 0, 0]
    gap = kappa / omega - prior - noise[:, 0, 1] / np.sqrt(omega)
    f = prior + k @ np.linalg.inv(k + np.diag(1 / omega)) @ gap
    expected = from_exponentials(lots[:, 1], torch.tensor(f))
    found = gibbs(torch.tensor(k), torch.linalg.cholesky(torch.tensor(k)), torch.tensor(kappa), key, 1)
    assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-11)


def test_mean_field_is_its_fixed_point():
    """ω = tanh(c/2)/2c with c² = mean² + variance of q(f); near the exact posterior."""
    k = gram(PAIR).numpy()
    omega = mean_field(gram(PAIR), SIDES, 60).numpy()
    cov = np.linalg.inv(np.linalg.inv(k) + np.diag(omega))
    c = np.sqrt((cov @ SIDES.numpy()) ** 2 + np.diag(cov))
    assert omega == pytest.approx(np.tanh(c / 2) / (2 * c), abs=1e-12)
    x = torch.tensor([[0.8, 0.6]], dtype=DOUBLE)
    told = predictive(gram(PAIR), kernel(PAIR, x, SCALE, LENGTH), PRIOR, SIDES, torch.tensor(omega))
    left = branch_log_probabilities(told[0][None], told[1][None])[0].exp()
    assert float(left) == pytest.approx(posterior_probability(x[0]), abs=0.02)


def test_padding_and_other_nodes_rows_leave_no_trace():
    """Rows behind the real ones, whatever they hold, and rows of other classes change no ω of the node."""
    u, key = some_points(6), make_key(4)
    kappa = torch.tensor([0.5, -0.5, 0, 0.5, -0.5, 0], dtype=DOUBLE)
    delta, root = steadied(kernel(u, u, SCALE, LENGTH), JITTER)
    found = gibbs(gram(u), root, kappa, key, 3)
    mask = torch.cat((torch.ones(6), torch.zeros(4))).double()
    longer = torch.cat((u, u[:1], 100 * some_points(3, 7)))
    k = alone(kernel(longer, longer, SCALE, LENGTH), mask)
    delta_padded, root_padded = steadied(k, JITTER)
    padded = gibbs(k + JITTER * torch.eye(10, dtype=DOUBLE), root_padded, torch.cat((kappa, torch.zeros(4))), key, 3)
    assert float(delta) == float(delta_padded) == JITTER
    inside = kappa != 0
    assert found[inside].tolist() == pytest.approx(padded[:6][inside].tolist(), abs=1e-12)
    moved = torch.cat((u[:5], some_points(1, 9)))  # row 5 is not at the node
    other = gibbs(gram(moved), steadied(kernel(moved, moved, SCALE, LENGTH), JITTER)[1], kappa, key, 3)
    assert found[inside].tolist() == pytest.approx(other[inside].tolist(), abs=1e-12)


def test_jitter_grows_until_there_is_a_factor():
    same = torch.full((200, 200), 8.0)  # float32, rank one
    delta, root = steadied(same, JITTER)
    assert torch.isfinite(root).all()
    assert float((root @ root.T - same).abs().max()) < 0.11
    for least, chosen in ((0.0, 1e-3), (-5e-3, 1e-2), (-5e-2, 1e-1)):
        matrix = torch.diag(torch.tensor([1.0, 1.0, least], dtype=DOUBLE))
        delta, root = steadied(matrix, JITTER)
        assert float(delta) == pytest.approx(chosen, abs=1e-15)
        assert float((root @ root.T - matrix - chosen * torch.eye(3, dtype=DOUBLE)).abs().max()) < 1e-15
    assert torch.isnan(steadied(torch.diag(torch.tensor([1.0, -1.0])), JITTER)[1]).all()


def test_padding_cannot_ask_for_more_jitter():
    """A padded row that would spoil the factor, here by an absurd value, is a row of its own."""
    k = torch.tensor([[8.0, 1.0, 9e9], [1.0, 8.0, 0.0], [9e9, 0.0, 8.0]], dtype=DOUBLE)
    found = alone(k, torch.tensor([1.0, 1.0, 0.0], dtype=DOUBLE))
    assert found.tolist() == [[8, 1, 0], [1, 8, 0], [0, 0, 1]]
    assert float(steadied(found, JITTER)[0]) == JITTER
    assert torch.isnan(steadied(k, JITTER)[1]).all()


def test_unit_rows():
    u = unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    assert u.tolist() == [pytest.approx([0.6, 0.8]), [0.0, 0.0]]
    slope = torch.func.grad(lambda z: unit(z).sum())(torch.tensor([[0.0, 0.0]]))
    assert torch.isfinite(slope).all()


# --- the tree ---------------------------------------------------------------------------------------------------------
def ways(sides: torch.Tensor) -> list[tuple[float, ...]]:
    return [tuple(column) for column in sides.T.tolist()]


def test_a_tree_by_hand():
    """0 and 1 lie together, 2 and 4 far away; class 3 has no samples: {0, 1 | 2, 4}, then {0 | 1} and {2 | 4}."""
    means = torch.tensor([[0.0, 0.0], [1.0, 0.0], [10.0, 0.0], [11.0, 0.0], [10.0, 5.0]], dtype=DOUBLE)
    sides = grow_tree(means, torch.tensor([3.0, 1.0, 2.0, 0.0, 9.0]))
    assert sides.tolist() == [[1, 1, -1, 0, -1], [1, -1, 0, 0, 0], [0, 0, 1, 0, -1], [0, 0, 0, 0, 0]]
    assert torch.equal(sides, grow_tree(means, torch.tensor([3.0, 1.0, 2.0, 0.0, 9.0])))


@pytest.mark.parametrize("seed", range(6))
def test_a_tree_has_a_leaf_for_every_class(seed):
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(7, 4, generator=generator, dtype=DOUBLE)
    count = torch.randint(0, 3, (7,), generator=generator)
    sides = grow_tree(means, count)
    present = (count > 0).tolist()
    found = ways(sides)
    assert all(any(way) == (here and sum(present) > 1) for way, here in zip(found, present, strict=True))
    assert len({way for way, here in zip(found, present, strict=True) if here}) == sum(present)
    used = (sides != 0).any(1)
    assert int(used.sum()) == max(sum(present) - 1, 0)
    assert all((row > 0).any() and (row < 0).any() for row in sides[used])
    # whatever the branches say, the leaves' probabilities sum to 1 without normalising them
    left = torch.rand(6, 5, generator=generator, dtype=DOUBLE)
    log = (left.log().T @ (sides > 0).double() + (1 - left).log().T @ (sides < 0).double()).exp()
    if sum(present):
        assert log[:, count > 0].sum(1).tolist() == pytest.approx([1] * 5, abs=1e-12)
    told = leaf_log_probabilities(torch.stack((left.log(), (1 - left).log())), sides, count).exp()
    assert told.sum(1).tolist() == pytest.approx([1] * 5, abs=1e-12)
    if sum(present):
        assert float((told - log * (count > 0)).abs().max()) < 1e-12


def test_the_first_split_is_that_of_two_means():
    """Eight class means in two clouds: as scikit-learn's best of 50 starts."""
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        side = torch.randint(0, 2, (8,), generator=generator)
        means = torch.randn(8, 3, generator=generator, dtype=DOUBLE) + 4 * side[:, None]
        known = KMeans(2, n_init=50, random_state=0).fit(means.numpy()).labels_
        ours = (grow_tree(means, torch.ones(8))[0] > 0).numpy()
        assert (ours == known.astype(bool)).all() or (ours != known.astype(bool)).all()


def test_equal_means_are_separated_one_by_one():
    sides = grow_tree(torch.zeros(4, 2, dtype=DOUBLE), torch.ones(4))
    assert len(set(ways(sides))) == 4


def test_two_classes_need_one_node():
    sides = grow_tree(torch.tensor([[0.0], [1.0], [9.0]], dtype=DOUBLE), torch.tensor([1, 1, 0]))
    assert sides.tolist() == [[1, -1, 0], [0, 0, 0]]


def test_unseen_classes_have_no_probability():
    branches = torch.log(torch.tensor([[[0.3]], [[0.7]]], dtype=DOUBLE)).expand(2, 2, 1)
    sides = torch.tensor([[1.0, 0.0, -1.0], [0.0, 0.0, 0.0]], dtype=DOUBLE)
    told = leaf_log_probabilities(branches, sides, torch.tensor([2, 0, 1])).exp()[0]
    assert told.tolist() == pytest.approx([0.3, 0, 0.7], abs=1e-12)
