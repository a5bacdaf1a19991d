"""Features in a plane, and the scatter ratio against its definition."""

from __future__ import annotations

import sys

import pytest
import torch

from posterity.papers.figures.features import arrange, scatter_ratio


@pytest.fixture(scope="module")
def blobs():
    """Ninety points of three classes in eight dimensions, and their classes."""
    draw = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(3, 8, generator=draw, dtype=torch.float64)
    y = torch.arange(90) % 3
    return centres[y] + torch.randn(90, 8, generator=draw, dtype=torch.float64), y


def test_neighbours_stay_neighbours_and_the_picture_is_always_the_same(blobs):
    x, y = blobs
    found, left = arrange(x)
    near = torch.cdist(found, found).fill_diagonal_(float("inf")).argmin(1)
    assert float(y[near].eq(y).double().mean()) > 0.95
    again, _ = arrange(x)
    assert torch.equal(found, again)
    assert 0 < left < 5


def test_what_is_missing_is_said(blobs, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.manifold", None)
    with pytest.raises(ValueError, match=r"posterity\[figures\]"):
        arrange(blobs[0])


def test_the_scatter_ratio():
    """Classes {0, 2} and {10, 12, 14}: within 2 + 8 = 10; means 1 and 12, centre 7.6, between 2 · 6.6² + 3 · 4.4²."""
    z, y = torch.tensor([[0.0], [2.0], [10.0], [12.0], [14.0]]), torch.tensor([4, 4, 7, 7, 7])
    assert scatter_ratio(z, y) == pytest.approx(10 / (2 * 6.6**2 + 3 * 4.4**2), rel=1e-12)
    assert scatter_ratio(1000 * z, y) == pytest.approx(scatter_ratio(z, y), rel=1e-12)
    assert scatter_ratio(torch.tensor([[0.0], [2.0], [0.0], [2.0]]), torch.tensor([0, 0, 1, 1])) == float("inf")
