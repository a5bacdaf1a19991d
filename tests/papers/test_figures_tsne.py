"""t-SNE against its definition, autograd and scikit-learn; the scatter ratio against the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from posterity.papers.figures import features as tsne
from posterity.papers.figures.features import scatter_ratio


@pytest.fixture(scope="module")
def blobs():
    """Ninety points of three classes in eight dimensions, and their classes."""
    draw = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(3, 8, generator=draw, dtype=torch.float64)
    y = torch.arange(90) % 3
    return centres[y] + torch.randn(90, 8, generator=draw, dtype=torch.float64), y


@pytest.mark.parametrize(("perplexity", "scale"), [(5.0, 1.0), (20.0, 1e-6), (20.0, 1e5)])
def test_every_row_has_the_perplexity_asked_for(blobs, perplexity, scale):
    p = tsne.conditional(tsne.squared_distances(blobs[0] * scale), perplexity)
    entropy = -torch.special.xlogy(p, p).sum(1)
    torch.testing.assert_close(entropy.exp(), torch.full_like(entropy, perplexity), rtol=1e-9, atol=0)
    torch.testing.assert_close(p.sum(1), torch.ones_like(entropy))
    assert p.diagonal().eq(0).all()


def test_the_joint_distribution_is_that_of_scikit_learn(blobs):
    manifold = pytest.importorskip("sklearn.manifold._t_sne")
    from scipy.spatial.distance import squareform

    distances = tsne.squared_distances(blobs[0])
    theirs = squareform(manifold._joint_probabilities(distances.numpy().astype(np.float32), 15.0, 0))
    np.testing.assert_allclose(tsne.joint(blobs[0], 15.0).numpy(), theirs, rtol=2e-3, atol=1e-8)


def test_divergence_and_gradient_are_those_of_scikit_learn_and_autograd(blobs):
    manifold = pytest.importorskip("sklearn.manifold._t_sne")
    from scipy.spatial.distance import squareform

    p = tsne.joint(blobs[0], 15.0)
    y = torch.randn(90, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    value = tsne.divergence(p, y)
    (slope,) = torch.autograd.grad(value, y)
    torch.testing.assert_close(tsne.gradient(p, y.detach()), slope, rtol=1e-9, atol=1e-12)
    flat = y.detach().numpy().ravel()
    theirs, grad = manifold._kl_divergence(flat, squareform(p.numpy(), checks=False), 1.0, 90, 2)
    assert float(value.detach()) == pytest.approx(theirs, rel=1e-6)
    np.testing.assert_allclose(slope.numpy().ravel(), grad, rtol=1e-5, atol=1e-9)


def test_the_divergence_falls_and_ends_where_scikit_learn_ends(blobs):
    manifold = pytest.importorskip("sklearn.manifold")
    p, begin = tsne.joint(blobs[0], 15.0), tsne.first_components(blobs[0])
    found, left = tsne.arrange(blobs[0], 15.0)
    assert left == pytest.approx(float(tsne.divergence(p, found)), rel=1e-12)
    assert left < 0.5 * float(tsne.divergence(p, begin))
    theirs = manifold.TSNE(perplexity=15.0, init="pca", method="exact", random_state=0).fit_transform(blobs[0].numpy())
    there = float(tsne.divergence(p, torch.from_numpy(theirs).double()))  # by the same p
    assert left < 1.1 * there


def test_neighbours_stay_neighbours_and_the_picture_is_always_the_same(blobs):
    x, y = blobs
    found, _ = tsne.arrange(x, 15.0, steps=300)
    near = tsne.squared_distances(found).fill_diagonal_(float("inf")).argmin(1)
    assert float(y[near].eq(y).double().mean()) > 0.95
    again, _ = tsne.arrange(x, 15.0, steps=300)
    assert torch.equal(found, again)


def test_what_cannot_be_arranged_is_said(blobs):
    with pytest.raises(ValueError, match="perplexity of 90"):
        tsne.joint(blobs[0], 90.0)


def test_points_that_are_all_the_same_are_no_error():
    found, _ = tsne.arrange(torch.ones(12, 3), steps=10)
    assert found.isfinite().all()


def test_the_scatter_ratio():
    """Classes {0, 2} and {10, 12, 14}: within 2 + 8 = 10; means 1 and 12, centre 7.6, between 2 · 6.6² + 3 · 4.4²."""
    z, y = torch.tensor([[0.0], [2.0], [10.0], [12.0], [14.0]]), torch.tensor([4, 4, 7, 7, 7])
    assert scatter_ratio(z, y) == pytest.approx(10 / (2 * 6.6**2 + 3 * 4.4**2), rel=1e-12)
    assert scatter_ratio(1000 * z, y) == pytest.approx(scatter_ratio(z, y), rel=1e-12)
    assert scatter_ratio(torch.tensor([[0.0], [2.0], [0.0], [2.0]]), torch.tensor([0, 0, 1, 1])) == float("inf")
