"""pFedVMP's centroids where precisions differ by many orders, for all that is sent: against rational arithmetic."""

import math

import numpy as np
import pytest
import torch

from posterity import models
from posterity.core.centroids import FORMS, on_the_wire
from posterity.core.monoid import fold_stack
from posterity.core.tree import tree_rows, tree_stack
from posterity.methods.pfedvmp import PFedVMP

from . import exact
from .test_pfedvmp import messages, read, whole
from .worlds import DOUBLE, ENGINES, Run, federate, full_batch

COUNTS = (4, 9, 3, 20, 1)


def clouds(orders, dtype, collapsed=(0,), d=6, seed=0):
    """Features of five clients around means of their own; of those `collapsed`, variances are 10^-orders smaller."""
    generator, found = np.random.default_rng(seed), []
    for i, count in enumerate(COUNTS):
        turned = np.linalg.qr(generator.standard_normal((d, d)))[0]
        deviation = np.logspace(0, -0.5, d) * (10 ** (-orders / 2) if i in collapsed else 1.0)
        noise = generator.standard_normal((count, d)) * deviation
        found.append(torch.tensor(generator.standard_normal(d) + noise @ turned.T).to(dtype))
    return found


def gap(clients, dtype, upload, alpha=1.0):
    """Error of the centroid, as a share of how far the clients' means lie apart."""
    parts = [{"classes": on_the_wire(m["classes"], dtype)} for m in messages(clients, upload=upload)]
    found = read(fold_stack(tree_stack(parts)), alpha)[0].numpy()
    means = np.stack([z.double().mean(0).numpy() for z in clients])
    return float(np.abs(found - exact.centroid(clients, alpha)).max() / np.abs(means - means.mean(0)).max())


@pytest.mark.parametrize("upload", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("orders", [0, 2, 4, 6, 8, 9, 10])
def test_precisions_up_to_1e11(orders, dtype, upload):
    """One client's precisions are up to 1e11 and the others' 1 to 100; a ridge of 1 still counts."""
    assert gap(clouds(orders, dtype), dtype, upload) < 3e-6


@pytest.mark.parametrize("upload", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("alpha", [1e-3, 1.0, 1e4])
def test_precisions_of_all_clients(alpha, dtype, upload):
    """All collapse together, to 1e-6 of the features' mean square."""
    assert gap(clouds(6, dtype, range(5)), dtype, upload, alpha) < 3e-6


@pytest.mark.parametrize("upload", FORMS)
@pytest.mark.parametrize("orders", [12, 16, 20, 24])
def test_one_client_that_collapses_absurdly(orders, upload):
    """Precisions of 1e13 to 1e25 are sent as 1e12 of the features' scale, which changes nothing that can be seen."""
    assert gap(clouds(orders, DOUBLE), DOUBLE, upload) < 3e-5


@pytest.mark.parametrize("upload", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("orders", [12, 16, 20, 24])
def test_all_clients_collapse_absurdly(orders, dtype, upload):
    """Nothing is raised; the centroid is a mean with positive weights: as long as the clients' means at most."""
    clients = clouds(orders, dtype, range(5))
    parts = [{"classes": on_the_wire(m["classes"], dtype)} for m in messages(clients, upload=upload)]
    found = read(fold_stack(tree_stack(parts)))[0]
    means = torch.stack([z.double().mean(0) for z in clients])
    assert float((found - means.mean(0)).norm()) <= 2 * float((means - means.mean(0)).norm(dim=1).max())


def test_equal_rows_have_no_direction():
    """Three, five and eleven equal rows, whose mean is rounded: Σ† is 0 as for one, and not 1e60."""
    for count in (3, 5, 11):
        z = torch.tensor([[0.1, -7.3, 1e5 / 3]], dtype=DOUBLE).repeat(count, 1)
        assert torch.equal(whole(messages([z])[0]).precision[0], torch.eye(3, dtype=DOUBLE))


def collapsed(dtype):
    """Two clients, two classes: points 30 away from 0 with deviations of 1e-4, in three of eight directions."""
    generator = torch.Generator().manual_seed(0)

    def draw(k):
        y = torch.tensor([0] * 4 + [1] * 4)
        spread = 1e-4 * torch.randn(8, 8, generator=generator, dtype=DOUBLE)
        return (30 + 5 * y[:, None] + k + spread).to(dtype), y

    return federate([draw(0), draw(1)], classes=2)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)
@pytest.mark.parametrize("upload", FORMS)
def test_a_round_with_collapsed_features_ends(engine, upload):
    """Float32 clients whose features are their inputs: one round as the paper has it gives the exact centroids."""
    federation = collapsed(torch.float32)
    method = PFedVMP(full_batch(1, lr=0.01), mode="printed", upload=upload)
    run = Run(method, federation, models.build("linear", (8,), 2), engine, dtype=torch.float32).rounds(2)
    assert run.state.centroids.dtype == torch.float32
    assert math.isfinite(run.logs[-1].loss)
    rows = [federation.train.client(c) for c in (0, 1)]
    for k in (0, 1):
        wanted = exact.centroid([tree_rows(federation.x[r], federation.y[r] == k) for r in rows])
        assert np.abs(run.state.centroids[k].numpy() - wanted).max() < 1e-5
