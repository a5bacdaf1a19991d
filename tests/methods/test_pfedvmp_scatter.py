"""Inverses of the scatter of each class: against dense ones, in any company, and where the rank is not full."""

import pytest
import torch
from torch.func import vmap

from posterity.core.likelihood import one_hot
from posterity.methods.pfedvmp.precision import ridged_inverses, scatter_roots

DOUBLE, CUT = torch.float64, 1e-5


def drawn(n, d, classes=3, seed=0):
    """Features with a different scale in every direction, and labels."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, d, generator=generator, dtype=DOUBLE) * torch.logspace(0, -2, d, dtype=DOUBLE) + 3
    y = torch.randint(0, classes, (n,), generator=generator)
    return z, one_hot(y, classes, torch.ones(n, dtype=DOUBLE))


def scatter(z, hot, k):
    rows = z[hot[:, k] > 0]
    return (rows - rows.mean(0)).T @ (rows - rows.mean(0))


@pytest.mark.parametrize(("n", "d"), [(30, 8), (12, 20), (7, 2), (60, 20)])
def test_roots_and_inverses_are_the_dense_ones(n, d):
    z, hot = drawn(n, d)
    ridge = torch.tensor([0.5, 2.0, 1e-3], dtype=DOUBLE)
    roots, inverses = scatter_roots(z, hot, CUT), ridged_inverses(z, hot, ridge)
    assert roots.shape == (3, min(n, d), d)
    for k in range(3):
        dense = torch.linalg.pinv(scatter(z, hot, k), hermitian=True, rtol=CUT**2)
        assert float((roots[k].T @ roots[k] - dense).norm()) <= 1e-9 * float(dense.norm())  # no spread: both are 0
        full = torch.linalg.inv(scatter(z, hot, k) + ridge[k] * torch.eye(d, dtype=DOUBLE))
        assert float((inverses[k] - full).norm() / full.norm()) < 1e-10


def test_a_stack_of_clients_gives_what_each_gives_alone():
    clients = [drawn(25, 6, seed=s) for s in range(4)]
    z, hot = (torch.stack(parts) for parts in zip(*clients, strict=True))
    ridge = torch.ones(3, dtype=DOUBLE)
    together = vmap(lambda z, hot: scatter_roots(z, hot, CUT))(z, hot)
    inverses = vmap(lambda z, hot: ridged_inverses(z, hot, ridge))(z, hot)
    for i in range(4):
        assert torch.equal(together[i], scatter_roots(z[i], hot[i], CUT))
        assert torch.equal(inverses[i], ridged_inverses(z[i], hot[i], ridge))


def test_directions_below_the_cut_are_left_out():
    """Twice the same sample, a unit that never fires, and a direction of 1e-7 of the largest: all of them are noise."""
    z, _ = drawn(9, 5, seed=3)
    z[1], z[:, 4] = z[0], 0.0
    z[:, 3] = 3 + 1e-7 * torch.randn(9, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    hot = torch.ones(9, 1, dtype=DOUBLE)
    roots = scatter_roots(z, hot, CUT)[0]
    assert int(roots.any(-1).sum()) == 3
    dense = torch.linalg.pinv(scatter(z[:, :3], hot, 0), hermitian=True)
    assert torch.allclose((roots.T @ roots)[:3, :3], dense, rtol=1e-6)
    assert float(roots[:, 3:].abs().max()) < 1e-4


def test_classes_without_spread():
    """None, one, or equal samples: no direction, and the inverse of the ridge alone."""
    z = torch.ones(4, 3, dtype=DOUBLE)
    hot = one_hot(torch.tensor([0, 1, 1, 1]), 3, torch.ones(4, dtype=DOUBLE))
    assert not scatter_roots(z, hot, CUT).any()
    inverses = ridged_inverses(z, hot, torch.full((3,), 4.0, dtype=DOUBLE))
    assert torch.allclose(inverses, torch.eye(3, dtype=DOUBLE).expand(3, 3, 3) / 4)


def test_a_feature_that_is_not_finite_spoils_its_own_class_and_ends_nothing():
    z, hot = drawn(20, 4, seed=5)
    z[int(hot[:, 1].argmax())] = torch.nan
    roots, inverses = scatter_roots(z, hot, CUT), ridged_inverses(z, hot, torch.ones(3, dtype=DOUBLE))
    for found in (roots, inverses):
        assert bool(found[1].isnan().any())
        assert bool(found[[0, 2]].isfinite().all())
