"""pFedVMP: the specification's oracles O1 to O14 and the numbers of its errata, on the functions the engine runs."""

import math
from dataclasses import replace
from functools import reduce
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.func import grad

from posterity import models
from posterity.core.common import sum_classes
from posterity.core.gaussian import Gaussian
from posterity.core.messages import Mean, fold_stack, merge
from posterity.core.passes import Training
from posterity.core.protocol import Batch, Carry, Facts, Here
from posterity.core.tree import tree_leaves, tree_map, tree_rows, tree_stack
from posterity.methods.fedper import FedPer
from posterity.methods.pfedvmp import PFedVMP, Shared, class_message, describe, summarise
from posterity.methods.pfedvmp.class_statistics import (
    common_variance,
    describe_classes,
    read_sums,
    variance_message,
)
from posterity.methods.pfedvmp.factors import FORMS, on_the_wire, pack, read_centroids, unpack
from posterity.methods.pfedvmp.precision import SCALED, low_rank, pseudo_inverses, scale_of, scaled_precision

from . import exact
from .sims import DOUBLE, Run, each_engine, federate, full_batch, images, mlp, points, same_bits

# The specification's two clients in the plane; variances (0.625, 0) and (0, 0.625), means (1, 0) and (5, 5).
A = torch.tensor([[0, 0], [2, 0], [0.5, 0], [1.5, 0]], dtype=DOUBLE)
B = torch.tensor([[5, 4], [5, 6], [5, 4.5], [5, 5.5]], dtype=DOUBLE)


def messages(clients, mode="printed", nu0=10.0, classes=1, labels=None, spread=0.0, upload="dense"):
    """What clients given by their features say about the classes."""
    labels = [torch.zeros(len(z), dtype=torch.int64) for z in clients] if labels is None else labels
    return [said(z, y, torch.ones(len(z)), classes, mode, nu0, spread, upload)
            for z, y in zip(clients, labels, strict=True)]  # fmt: skip


def said(z, y, mask, classes, mode, nu0=10.0, spread=0.0, upload="dense"):
    """One client's factors and counts, if the server has told it `spread`."""
    found = describe(summarise(z, y, mask, classes, mode), classes, mode)
    zero = torch.zeros(classes, z.shape[1], dtype=DOUBLE)
    shared = Shared({}, zero, zero[:, 0], torch.tensor(spread, dtype=DOUBLE))
    message = {"classes": class_message(found, mode, nu0, shared, upload)}
    return {**message, "spread": variance_message(found, nu0)} if mode in SCALED else message


def pooled(parts):
    """Their total, by the engine's fold."""
    return fold_stack(tree_stack(parts))


def unit(total, alpha=1.0):
    """What `plain` factors are multiplied by: α where no variances are sent, else 1 / variance within classes."""
    return 1 / common_variance(total["spread"], torch.ones(())) if "spread" in total else alpha


def whole(total, alpha=1.0):
    """Both parts of the factors in one."""
    own, plain, _ = unpack(total["classes"])
    return plain * unit(total, alpha) + own if own is not None else plain


def read(total, alpha=1.0, previous=None, prior=False):
    centre = torch.zeros_like(unpack(total["classes"])[1].shift) if previous is None else previous
    return read_centroids(total["classes"], unit(total, alpha), centre, prior)


def centroid(clients, mode="printed", alpha=1.0, **how):
    return read(pooled(messages(clients, mode, **how)), alpha)[0]


def factors(mean, precision, count):
    """A message with such a factor for its only class."""
    none = torch.zeros(1, dtype=DOUBLE)
    return {"classes": pack(Gaussian.of(mean[None], precision[None]), Gaussian.of(mean[None], none), none + count)}


def draws(seed, counts, d, scales=None):
    """Features of clients around a common centroid 0: anisotropic, each client with its own covariance and scale."""
    generator = torch.Generator().manual_seed(seed)
    scales = [1.0] * len(counts) if scales is None else scales
    segment = [torch.rand(d, generator=generator, dtype=DOUBLE) + 0.5 for _ in counts]
    return [
        s * w * torch.randn(n, d, generator=generator, dtype=DOUBLE)
        for n, s, w in zip(counts, scales, segment, strict=True)
    ]


@each_engine
@pytest.mark.parametrize("network", ["cnn", "mlp"])
def test_o01_without_pull_the_trajectory_is_fedpers(engine, network):
    """ξ₁ = 0: base, heads and losses are FedPer's bit for bit after every round."""
    federation = images() if network == "cnn" else points((9, 5, 1, 6))
    model = models.build("cnn", (1, 8, 8), 3, feature_dim=8) if network == "cnn" else mlp(federation)
    training = Training(lr=0.05, batch=4, epochs=1 if network == "cnn" else 2)
    for mode in ("shrinkage",) if network == "cnn" else ("shrinkage", "printed"):
        ours = Run(PFedVMP(training, xi=0.0, mode=mode), federation, model, engine)
        theirs = Run(FedPer(training), federation, model, engine)
        for _ in range(3):
            ours.rounds(1)
            theirs.rounds(1)
            assert same_bits(ours.state.params, theirs.state.params)
            assert same_bits(ours.store.rows, theirs.store.rows)
            assert ours.logs[-1].loss == theirs.logs[-1].loss


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_o02_the_base_is_the_mean_by_size(dtype):
    """Precisions (S_n/S) I make (10) and (12) the mean Σ S_n θ_n / S; through the fold and `combine`."""
    generator = torch.Generator().manual_seed(0)
    federation = points((5, 9))
    model = mlp(federation)
    method, sizes = PFedVMP(mode="count"), torch.tensor([3.0, 50.0, 7.0, 1.0], dtype=dtype)
    base = {n: torch.randn(4, *p.shape, generator=generator, dtype=dtype) for n, p in model.init(0).items()
            if n in model.base_names}  # fmt: skip
    silent = pack(None, Gaussian(torch.zeros(4, 3, dtype=dtype), torch.zeros(4, 3, 8, dtype=dtype)),
                  torch.zeros(4, 3, dtype=dtype))  # fmt: skip
    total = fold_stack({"params": Mean(sizes, base), "classes": silent})
    state = method.combine(method.init(model, model.init(0, dtype), Facts(4, 61, 3)), total, None)
    for name, leaf in base.items():
        expected = (sizes.double().reshape(-1, *[1] * (leaf.dim() - 1)) * leaf.double()).sum(0) / 61
        assert torch.allclose(state.params[name].double(), expected, rtol=1e-7, atol=1e-12)


def test_o03_two_clients_printed():
    """Precisions diag(1/0.625 + 1, 1) = diag(2.6, 1) and diag(1, 2.6): (2.6 + 5)/3.6 = 19/9, 13/3.6 = 65/18."""
    first, second = (whole(m) for m in messages([A, B]))
    assert torch.allclose(first.precision[0], torch.diag(torch.tensor([2.6, 1.0], dtype=DOUBLE)), atol=1e-12)
    assert torch.allclose(second.precision[0], torch.diag(torch.tensor([1.0, 2.6], dtype=DOUBLE)), atol=1e-12)
    assert centroid([A, B]).tolist() == pytest.approx([19 / 9, 65 / 18], abs=1e-12)


def test_o04_two_clients_with_the_continuous_precision():
    """(Σ + I)⁻¹ is no mode of the method: its factors go through the same sum and the same read-out."""
    parts = []
    for z in (A, B):
        spread = torch.cov(z.T, correction=0) + torch.eye(2, dtype=DOUBLE)
        parts.append(factors(z.mean(0), torch.linalg.inv(spread), 4.0))
    found = read(pooled(parts))[0]
    assert found.tolist() == pytest.approx([3.476190476, 1.904761905], abs=1e-9)


@pytest.mark.parametrize(("n", "d"), [(24, 40), (60, 16), (3, 5)])
def test_o05_the_low_rank_factors_equal_the_dense_pseudo_inverse(n, d):
    """αI + Vᵀ diag(s⁻²) V from the SVD of the centred features = pinv(Σ) + αI, with at most min(d, Z − 1) factors."""
    z = torch.randn(n, d, generator=torch.Generator().manual_seed(n), dtype=DOUBLE)
    found = describe_classes(z, torch.zeros(n, dtype=torch.int64), torch.ones(n), 1)
    assert int((low_rank(found)[1] > 0).sum()) == min(d, n - 1)
    centred = (z - z.mean(0)) / n**0.5
    dense = torch.linalg.pinv(centred.T @ centred, hermitian=True, rtol=1e-10) + 0.7 * torch.eye(d, dtype=DOUBLE)
    ridge = 0.7 * torch.eye(d, dtype=DOUBLE)
    assert float((pseudo_inverses(found)[0] + ridge - dense).norm() / dense.norm()) < 1e-10
    assert torch.allclose(whole(messages([z])[0], 0.7).precision[0], dense, rtol=1e-9, atol=1e-9)


def shuffled(uploaded, order):
    """The total of a stack of messages in another order, and in two stacks."""
    stack = tree_stack([uploaded[i] for i in order])
    parts = [fold_stack(tree_rows(stack, rows)) for rows in (slice(0, 2), slice(2, None))]
    return fold_stack(stack), merge(*parts)


def test_o05_triangles_add_up_to_the_dense_total():
    """Clients of 24, 60, 3, 1 and 9 samples in 16 dimensions, three classes, one of them rare; any order, any cut."""
    labels = [torch.arange(n) % 2 for n in (24, 60, 3, 1, 9)]
    labels[1][:2] = 2
    clients = draws(20, [len(y) for y in labels], 16)
    dense = pooled(messages(clients, classes=3, labels=labels))
    sent = messages(clients, classes=3, labels=labels, upload="symmetric")
    for order in ([0, 1, 2, 3, 4], [3, 1, 4, 0, 2]):
        for total in shuffled(sent, order):
            assert torch.equal(unpack(total["classes"])[2], unpack(dense["classes"])[2])
            for got, expected in zip(tree_leaves(whole(total, 0.7)), tree_leaves(whole(dense, 0.7)), strict=True):
                assert float((got - expected).norm() / expected.norm()) < 1e-10


@each_engine
def test_o05_runs_end_with_the_same_centroids(engine):
    """Four rounds of training with cohorts that differ; stacks of all clients, and stacks cut into blocks."""
    federation, training = points((9, 23, 1, 6, 12)), Training(lr=0.05, batch=4)
    ends = []
    for sent, memory in (("dense", 2**30), ("symmetric", 2**30), ("symmetric", 1)):
        run = Run(PFedVMP(training, mode="printed", upload=sent), federation, mlp(federation), engine)
        run.sim = replace(run.sim, memory=memory)
        for cohort in (range(5), (3, 1, 0), (2, 4), (4, 3, 2, 1, 0)):
            run.rounds(1, list(cohort))
        ends.append(run.state)
    for end in ends[1:]:
        assert float((end.centroids - ends[0].centroids).norm() / ends[0].centroids.norm()) < 1e-10
        assert all(torch.allclose(end.params[n], p, rtol=1e-10, atol=1e-12) for n, p in ends[0].params.items())


def test_o06_one_sample_and_no_sample():
    """Z = 1: Λ = αI exactly. Absent class: exactly the zero element, and the total of the others is unchanged."""
    z = torch.tensor([[1.5, -2.0]], dtype=DOUBLE)
    one = whole(messages([z], classes=2)[0], 3.0)
    assert torch.equal(one.precision[0], 3.0 * torch.eye(2, dtype=DOUBLE))
    for mode in ("printed", "shrinkage", "isotropic", "count"):
        absent = messages([z], mode, classes=2)[0]
        assert not any(leaf[1].any() for leaf in tree_leaves(absent["classes"]))
        rest = messages([A, B], mode, classes=2, labels=[torch.ones(4, dtype=torch.int64)] * 2)
        with_absent, without = pooled([*rest, absent]), pooled(rest)
        for left, right in zip(tree_leaves(with_absent["classes"]), tree_leaves(without["classes"]), strict=True):
            assert torch.equal(left[1], right[1])


def test_o07_equal_covariances():
    """Shifted copies have equal Σ: `printed` forgets the counts (unweighted mean), `count` gives the pooled mean.

    Client 3 is client 1 with every sample doubled, so its covariance is the same and its count twice.
    """
    z = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    shift = torch.tensor([4.0, -1.0, 2.0], dtype=DOUBLE)
    clients = [z, (z + shift).repeat(2, 1)]
    assert torch.allclose(centroid(clients), z.mean(0) + shift / 2, atol=1e-10)
    assert torch.allclose(centroid(clients, "count"), z.mean(0) + shift * 12 / 18, atol=1e-10)


def test_o08_known_covariances_give_generalised_least_squares():
    """Message Z Σ_n⁻¹: the estimate solves (1⊗I)ᵀ V⁻¹ (1⊗I) c = (1⊗I)ᵀ V⁻¹ z̄ with V = blockdiag(Σ_n / Z_n)."""
    generator = torch.Generator().manual_seed(2)
    d, counts = 4, (3, 11, 7)
    roots = [torch.randn(d, d, generator=generator, dtype=DOUBLE) for _ in counts]
    spreads = [r @ r.T + 0.1 * torch.eye(d, dtype=DOUBLE) for r in roots]
    means = [torch.randn(d, generator=generator, dtype=DOUBLE) for _ in counts]
    parts = [factors(m, n * torch.linalg.inv(s), n) for m, n, s in zip(means, counts, spreads, strict=True)]
    found = read(pooled(parts))[0]
    v = torch.block_diag(*[s / n for s, n in zip(spreads, counts, strict=True)])
    design = torch.eye(d, dtype=DOUBLE).repeat(3, 1)
    weighted = torch.linalg.solve(v, design)
    expected = torch.linalg.solve(design.T @ weighted, weighted.T @ torch.cat(means))
    assert torch.allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("mode", ["printed", "shrinkage", "isotropic", "count"])
def test_o09_order_and_association(mode):
    clients = draws(3, (5, 9, 2, 1, 14), 6)
    parts = messages(clients, mode)
    expected = centroid(clients, mode)
    for order in ([4, 2, 0, 1, 3], [1, 0, 3, 2, 4]):
        shuffled = [parts[i] for i in order]
        left = reduce(merge, shuffled)
        tree = merge(merge(shuffled[0], shuffled[1]), merge(shuffled[2], merge(shuffled[3], shuffled[4])))
        for total in (left, tree):
            assert torch.allclose(read(total)[0], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", ["printed", "isotropic"])
def test_o10_cavity_times_factor_is_the_whole(mode):
    parts = messages(draws(4, (5, 9, 4), 3), mode)
    total, scale = whole(pooled(parts)), unit(pooled(parts))
    for part in parts:
        own, plain, _ = unpack(part["classes"])
        again = (total - (plain * scale + own)) + (plain * scale + own)
        assert torch.allclose(again.precision, total.precision, rtol=1e-12, atol=1e-12)
        assert torch.allclose(again.shift, total.shift, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("alpha", [1e-3, 1.0, 1e6])
def test_o11_one_client_is_its_own_mean(alpha):
    z = draws(5, (9,), 4)[0] + 3
    assert torch.allclose(centroid([z], alpha=alpha), z.mean(0), atol=1e-12)


def test_o12_a_huge_ridge_gives_the_uniform_mean():
    clients = [z + k for k, z in enumerate(draws(6, (9, 30, 4), 3))]
    uniform = torch.stack([z.mean(0) for z in clients]).mean(0)
    assert torch.allclose(centroid(clients, alpha=1e9), uniform, atol=1e-6)
    assert not torch.allclose(centroid(clients, alpha=1.0), uniform, atol=1e-2)


@pytest.mark.parametrize("factor", [1e-3, 7.0])
def test_o13_scaling_the_features(factor):
    """Equivariant: `isotropic`, `shrinkage` (and `count`). Not `printed`: α has units."""
    clients = [z + k for k, z in enumerate(draws(7, (9, 30, 4, 1), 5))]
    scaled = [factor * z for z in clients]
    for mode in ("isotropic", "shrinkage", "count"):
        ratio = centroid(scaled, mode) / centroid(clients, mode)
        assert torch.allclose(ratio, torch.full_like(ratio, factor), rtol=1e-10, atol=0), mode
    ratio = centroid(scaled) / centroid(clients)
    assert float((ratio / factor - 1).abs().max()) > 1e-3


def penalty_setting(xi, b=5, d=6, reduction="mean"):
    """A linear network, whose features are its inputs; all centroids known."""
    generator = torch.Generator().manual_seed(8)
    model = models.build("linear", (d,), 3)
    method = PFedVMP(xi=xi, reduction=reduction)
    batch = Batch(
        torch.randn(b, d, generator=generator, dtype=DOUBLE), torch.tensor([0, 2, 1, 1, 0]), torch.ones(b).double()
    )
    centres = torch.randn(3, d, generator=generator, dtype=DOUBLE)
    here = SimpleNamespace(
        model=model, key=None, shared=SimpleNamespace(centroids=centres, known=torch.ones(3).double())
    )
    return method, model.init(0, DOUBLE), batch, here, centres


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_o14_gradient_of_the_pull(reduction):
    """The loss with ξ₁ less the loss without has the gradient 2ξ₁(z − µ)/(d b) in z (no 1/d for `sum`)."""

    def slope(xi):
        method, params, batch, here, _ = penalty_setting(xi, reduction=reduction)
        return grad(lambda x: method.loss(params, Batch(x, batch.y, batch.mask), here)[0])(batch.x)

    _, _, batch, _, centres = penalty_setting(0.0)
    expected = 2 * 50.0 * (batch.x - centres[batch.y]) / (5 * (6 if reduction == "mean" else 1))
    assert torch.allclose(slope(50.0) - slope(0.0), expected, atol=1e-6)


def test_o14_centroids_are_constants():
    """The pass differentiates by the network's leaves: local training neither moves nor sends the centroids it got."""
    federation = points((9, 6))
    federation.y[:] %= 2  # nobody has class 2
    run = Run(PFedVMP(Training(lr=0.05, batch=4), xi=5.0, warmup="zero"), federation, mlp(federation)).rounds(1)
    run.state.centroids[2] = 7.5  # a class that nobody reports keeps its centroid, though it was broadcast
    before = run.state.centroids.clone()
    run.rounds(1)
    assert torch.equal(run.state.centroids[2], before[2])
    assert not torch.equal(run.state.centroids[0], before[0])
    method, params, batch, here, centres = penalty_setting(50.0)
    here = Here(here.shared, (), (), {}, *[torch.tensor(v) for v in (0, 5.0, 1, 0, 0)], None, params, here.model)
    step = method.passes()[0]
    carry = step.step(step.open(Carry(params, {}, ()), here), batch, here)
    assert set(carry.params) == set(here.model.leaves)
    assert torch.equal(here.shared.centroids, centres)


def test_e2_scalar_eigenvalues():
    """Eigenvalue → printed precision with α = 1; the rank cut sees one direction, so only an exact 0 is cut."""
    for value, expected in ((0.0, 1.0), (1e-14, 1e14), (1e-6, 1_000_001.0), (1e-3, 1001.0), (0.1, 11.0)):
        z = torch.tensor([[value**0.5], [-(value**0.5)]], dtype=DOUBLE)  # mean 0, variance `value`
        found = float(whole(messages([z])[0]).precision)
        assert found == pytest.approx(expected, rel=1e-9)


def test_e2_rank_cut_recovers_the_rank_in_float32_features():
    """Z = 24 samples in 64 dimensions, features in float32: 23 directions have precision, the others exactly α."""
    z = torch.randn(24, 64, generator=torch.Generator().manual_seed(9))
    eigen = torch.linalg.eigvalsh(whole(messages([z])[0]).precision[0])
    assert int((eigen > 1 + 1e-9).sum()) == 23
    assert float(eigen.max()) < 1e3


def test_e3_precision_weighting_needs_the_count():
    """Mean centroid error over 20 draws; 6 clients, class counts 24, 60, 8, 2, 1, 120, true centroid 0.

    Equal scales: counting is about as good as anything, `printed` is much worse. Scales 0.3 and 1.5: `shrinkage` and
    `isotropic` beat counting by far, `printed` loses to it. (Ratios of the specification: printed/count 1.96 and 1.57,
    shrinkage/count 0.51, isotropic/count 0.52. The covariances are ours and d is 64, so the margins here are wide.)
    A second class with ten samples per client gives the client of one sample a pooled spread.
    """
    counts, modes = (24, 60, 8, 2, 1, 120), ("printed", "shrinkage", "isotropic", "count")
    labels = [torch.cat([torch.zeros(n), torch.ones(10)]).long() for n in counts]
    for scales, far in (([1.0] * 6, False), ([0.3, 1.5, 0.3, 1.5, 0.3, 1.5], True)):
        error = dict.fromkeys(modes, 0.0)
        for seed in range(20):
            clients = draws(100 + seed, [n + 10 for n in counts], 64, scales)
            for mode in modes:
                error[mode] += float(centroid(clients, mode, classes=2, labels=labels).norm()) / 20
        assert error["printed"] > 1.2 * error["count"]
        assert error["shrinkage"] < (0.75 if far else 1.3) * error["count"]
        assert error["isotropic"] < (0.75 if far else 1.3) * error["count"]


def test_e3_the_precisions_by_their_formulas():
    """Classes of 6, 2 and 1 samples: Z/s² with s² = tr Σ·Z/(Z − 1)/d, and Z ((ZΣ + ν₀s²I)/(Z + ν₀))⁻¹ with s² = tr Σ/d.

    Where Z is too small (1, or 2 for the second), s² is that of all classes together.
    """
    z, y, d, nu0 = draws(9, (9,), 3)[0], torch.tensor([0] * 6 + [1] * 2 + [2]), 3, 4.0
    spreads = [torch.cov(z[y == k].T, correction=0) for k in range(2)] + [torch.zeros(d, d, dtype=DOUBLE)]
    traces = [float(spread.trace()) for spread in spreads]
    pool = (6 * traces[0] + 2 * traces[1]) / (d * 6)
    found = whole(said(z, y, torch.ones(9), 3, "isotropic", nu0=nu0)).precision
    expected = [6 / (traces[0] * 6 / 5 / d), 2 / (traces[1] * 2 / d), 1 / pool]
    assert found.tolist() == pytest.approx(expected, rel=1e-12)
    dense = whole(said(z, y, torch.ones(9), 3, "shrinkage", nu0=nu0)).precision
    for k, (count, square) in enumerate(((6, traces[0] / d), (2, pool), (1, pool))):
        shrunken = (count * spreads[k] + nu0 * square * torch.eye(d, dtype=DOUBLE)) / (count + nu0)
        assert torch.allclose(dense[k], count * torch.linalg.inv(shrunken), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", ["shrinkage", "isotropic"])
def test_e3_a_client_of_one_sample_does_not_take_over(mode):
    """121 samples of N(0, I) in 64 dimensions, one of them alone on its client: no worse than twice counting."""
    clients = draws(200, (120, 1), 64)
    assert float(centroid(clients, mode).norm()) < 2 * float(centroid(clients, "count").norm())


def test_e4_an_absent_class_says_nothing_through_the_engine():
    """A client without class 0 does not drag its centroid to 0, as Σ = 0, µ = 0, Λ = αI would."""
    z, other = A[:, :1] + 3, B[:, :1]
    federation_labels = [torch.zeros(4, dtype=torch.int64), torch.ones(4, dtype=torch.int64)]
    total = pooled(messages([z, other], classes=2, labels=federation_labels))
    previous = torch.full((2, 1), 9.0, dtype=DOUBLE)
    found = read(total, previous=torch.zeros_like(previous))
    assert found.flatten().tolist() == pytest.approx([4.0, 5.0], abs=1e-12)
    assert torch.equal(read(tree_map(torch.zeros_like, total), previous=previous), previous)


def test_e5_the_prior_counts_once_if_asked():
    """N(0, I) once: count mode with Z = 8 and mean m gives 8m/9 however many clients share the samples."""
    z = draws(11, (8,), 3)[0] + 2
    for clients in ([z], [z[:3], z[3:]], [z[:1], z[1:4], z[4:]]):
        found = read(pooled(messages(clients, "count")), prior=True)[0]
        assert torch.allclose(found, 8 * z.mean(0) / 9, atol=1e-12)


@pytest.mark.parametrize("mode", ["count", "printed"])
def test_e5_the_prior_stays_where_it_is(mode):
    """Messages are about a centre that moves from round to round, the prior is about 0: every round gives the same."""
    federation = points((5, 3), classes=1, inputs=4)
    run = Run(PFedVMP(mode=mode, prior=True), federation, models.build("linear", (4,), 1))
    clients = [federation.x[federation.train.client(c)] for c in (0, 1)]
    whole = torch.eye(4, dtype=DOUBLE)
    shift = torch.zeros(4, dtype=DOUBLE)
    for z in clients:
        ridged = torch.linalg.pinv(torch.cov(z.T, correction=0), hermitian=True, rtol=1e-10) + torch.eye(
            4, dtype=DOUBLE
        )
        factor = len(z) * torch.eye(4, dtype=DOUBLE) if mode == "count" else ridged
        whole, shift = whole + factor, shift + factor @ z.mean(0)
    for _ in range(3):
        assert torch.allclose(run.rounds(1).state.centroids[0], torch.linalg.solve(whole, shift), atol=1e-9)


def test_padding_has_no_influence_on_the_messages():
    z, y = draws(12, (7,), 3)[0], torch.tensor([0, 1, 1, 0, 1, 0, 0])
    wide = torch.cat([z, torch.full((3, 3), 1e6, dtype=DOUBLE)])
    for mode in ("printed", "shrinkage", "isotropic", "count"):
        plain = said(z, y, torch.ones(7), 2, mode)
        padded = said(wide, torch.cat([y, y[:3]]), torch.cat([torch.ones(7), torch.zeros(3)]), 2, mode)
        for left, right in zip(tree_leaves(plain), tree_leaves(padded), strict=True):
            assert torch.allclose(left, right, rtol=1e-9), mode


def test_e3_sums_over_batches_say_what_all_features_say():
    z, y = 3 + torch.randn(23, 5, dtype=DOUBLE, generator=torch.Generator().manual_seed(0)), torch.arange(23) % 4
    mask = (torch.arange(23) < 19).to(DOUBLE)
    parts = [sum_classes(z[b], y[b], mask[b], 5) for b in (slice(0, 10), slice(10, 23))]
    found = read_sums({name: parts[0][name] + parts[1][name] for name in parts[0]})
    wanted = describe_classes(z, y, mask, 5).spread()
    for name in ("count", "mean", "trace", "square"):
        assert torch.allclose(getattr(found, name), getattr(wanted, name), rtol=1e-12, atol=1e-12), name


# --- E2: precisions that differ by many orders, for all that is sent; against rational arithmetic ---------------------

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
def test_e2_precisions_up_to_1e11(orders, dtype, upload):
    """One client's precisions are up to 1e11 and the others' 1 to 100; a ridge of 1 still counts."""
    assert gap(clouds(orders, dtype), dtype, upload) < 3e-6


@pytest.mark.parametrize("upload", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("alpha", [1e-3, 1.0, 1e4])
def test_e2_precisions_of_all_clients(alpha, dtype, upload):
    """All collapse together, to 1e-6 of the features' mean square."""
    assert gap(clouds(6, dtype, range(5)), dtype, upload, alpha) < 3e-6


@pytest.mark.parametrize("upload", FORMS)
@pytest.mark.parametrize("size", [1e-2, 1e-4, 1e-6, 1e-8])
def test_e2_a_ridge_far_below_the_rounding_of_the_sum(size, upload):
    """Small features of 4 and 3 samples in 6 dimensions: precisions of 1e10 to 1e22, and one direction with α alone."""
    clients = [size * z for z in clouds(6, DOUBLE)]
    assert gap([clients[0], clients[2]], DOUBLE, upload) < 3e-6


@pytest.mark.parametrize("upload", FORMS)
@pytest.mark.parametrize("orders", [12, 16, 20, 24])
def test_e2_one_client_that_collapses_absurdly(orders, upload):
    """Precisions of 1e13 to 1e25 are sent as 1e12 of the features' scale, which changes nothing that can be seen."""
    assert gap(clouds(orders, DOUBLE), DOUBLE, upload) < 3e-5


@pytest.mark.parametrize("upload", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("orders", [12, 16, 20, 24])
def test_e2_all_clients_collapse_absurdly(orders, dtype, upload):
    """Nothing is raised; the centroid is a mean with positive weights: as long as the clients' means at most."""
    clients = clouds(orders, dtype, range(5))
    parts = [{"classes": on_the_wire(m["classes"], dtype)} for m in messages(clients, upload=upload)]
    found = read(fold_stack(tree_stack(parts)))[0]
    means = torch.stack([z.double().mean(0) for z in clients])
    assert float((found - means.mean(0)).norm()) <= 2 * float((means - means.mean(0)).norm(dim=1).max())


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_e2_equal_rows_have_no_direction(dtype):
    """Three, five and eleven rows that are equal, or so up to the last bit: Σ† is 0 as for one, and not 1e14."""
    for count in (3, 5, 11):
        z = torch.tensor([[0.1, -7.3, 1e3 / 3]], dtype=dtype).repeat(count, 1)
        near = z.clone()
        near[::2] = torch.nextafter(z[::2], torch.full_like(z[::2], 1e9))
        for rows in (z, near):
            assert torch.equal(whole(messages([rows])[0]).precision[0], torch.eye(3, dtype=DOUBLE))


def collapsed(dtype):
    """Two clients, two classes: points 30 away from 0 with deviations of 1e-4, in three of eight directions."""
    generator = torch.Generator().manual_seed(0)

    def draw(k):
        y = torch.tensor([0] * 4 + [1] * 4)
        spread = 1e-4 * torch.randn(8, 8, generator=generator, dtype=DOUBLE)
        return (30 + 5 * y[:, None] + k + spread).to(dtype), y

    return federate([draw(0), draw(1)], classes=2)


@each_engine
@pytest.mark.parametrize("upload", FORMS)
def test_e2_a_round_with_collapsed_features_ends(engine, upload):
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


@each_engine
@pytest.mark.parametrize("alpha", [0.25, 1.0, 30.0])
def test_e2_the_ridge_is_that_of_the_method(engine, alpha):
    """Ordinary features of three clients, two rounds: the second has other centres, and the same centroids."""
    federation = points((5, 3, 9), classes=1, inputs=4)
    run = Run(PFedVMP(mode="printed", alpha=alpha), federation, models.build("linear", (4,), 1), engine)
    wanted = exact.centroid([federation.x[federation.train.client(c)] for c in range(3)], alpha)
    for _ in range(2):
        assert np.abs(run.rounds(1).state.centroids[0].numpy() - wanted).max() < 1e-10


# --- E3: the variance within a class, bounded by what other classes and other clients say; against plain numpy --------

NU = 10.0
LABELS = {  # seven clients: labels of their rows, and rows that are made equal
    "ordinary": ([0] * 6 + [1] * 9 + [2] * 4, []),
    "one class": ([0] * 12, []),
    "equal rows": ([0] * 3 + [1] * 9 + [2] * 20, [0]),
    "equal rows alone": ([0] * 3, [0]),
    "single samples": ([0, 1, 2], []),
    "pairs": ([0] * 2 + [1] * 2 + [2] * 2, []),
    "two classes of equal rows": ([0] * 5 + [1] * 7 + [2] * 30, [0, 1]),
}


def rows_of(labels, equal, seed=0, d=5):
    generator = np.random.default_rng(seed)
    y = np.array(labels)
    z = 2.0 + generator.standard_normal((len(y), d)) * np.linspace(0.5, 1.5, d)
    for k in equal:
        z[y == k] = z[y == k][0]
    return z, y


def found_of(z, y, mode):
    z, y, ones = torch.tensor(z), torch.tensor(y), torch.ones(len(y))
    return describe_classes(z, y, ones, 3) if mode == "shrinkage" else read_sums(sum_classes(z, y, ones, 3))


def by_hand(z, y, mode, common):
    """Precisions (list of three) from the formulas, in plain numpy; None: the client knows no variance."""
    d = z.shape[1]
    parts = [z[y == k] - z[y == k].mean(0) if (y == k).any() else np.zeros((0, d)) for k in range(3)]
    squares = [float((p**2).sum()) / d for p in parts]
    free = [max(len(p) - 1, 0) for p in parts]
    alone = sum(squares) / max(sum(free), 1)
    if not common and alone <= 1e-3 * float((z**2).mean()):
        return None
    guess = common or alone
    pooled = (sum(squares) + NU * guess) / (sum(free) + NU)
    result = []
    for k in range(3):
        count = len(parts[k])
        v = (sum(squares) - squares[k] + NU * guess) / (sum(free) - free[k] + NU)
        least = NU * v / (free[k] + NU)
        if mode == "isotropic":
            result.append(count / max(squares[k] / max(free[k], 1), least))
        else:
            s2 = max(squares[k] / count, least) if count > 2 else pooled
            shrunken = (parts[k].T @ parts[k] + NU * s2 * np.eye(d)) / (count + NU)
            result.append(count * np.linalg.inv(shrunken))
    return result


@pytest.mark.parametrize("mode", ["isotropic", "shrinkage"])
@pytest.mark.parametrize("common", [0.0, 0.8])
@pytest.mark.parametrize("client", LABELS)
def test_e3_precisions_by_hand(client, common, mode):
    z, y = rows_of(*LABELS[client])
    own, plain = scaled_precision(found_of(z, y, mode), NU, torch.tensor(common, dtype=DOUBLE))
    expected = by_hand(z, y, mode, common)
    if expected is None:
        assert client in ("equal rows alone", "single samples")
        assert not own.any()
        assert plain.tolist() == [np.sum(y == k) for k in range(3)]
    else:
        assert not plain.any()
        for k in range(3):
            np.testing.assert_allclose(own[k].numpy(), expected[k], rtol=1e-10, atol=1e-12)


def test_e3_the_specification_holds_where_a_class_has_spread():
    """Three classes of 8 with about one variance: Z/s² with the class's own s², to the last digit but rounding."""
    z, y = rows_of([0] * 8 + [1] * 8 + [2] * 8, [])
    own, _ = scaled_precision(found_of(z, y, "isotropic"), NU, torch.tensor(0.0))
    for k in range(3):
        assert float(own[k]) == pytest.approx(8 / z[y == k].var(0, ddof=1).mean(), rel=1e-12)


@pytest.mark.parametrize("mode", ["isotropic", "shrinkage"])
def test_e3_equal_rows_weigh_no_more_than_a_few(mode):
    """Equal rows of a class beside others, told or not: their precision is below twice that of rows with spread."""
    z, y = rows_of([0] * 3 + [1] * 40 + [2] * 40, [0], seed=3)
    usual = 3 / np.mean([z[y == k].var(0, ddof=1).mean() for k in (1, 2)])
    for common in (0.0, 1.0):
        own, _ = scaled_precision(found_of(z, y, mode), NU, torch.tensor(common, dtype=DOUBLE))
        top = float(own[0]) if mode == "isotropic" else float(torch.linalg.eigvalsh(own[0]).max())
        assert usual < top < 2 * usual


def test_e3_the_variance_at_a_typical_client():
    """exp of the mean of log s², weights F/(F + ν₀); clients without spread say nothing. Seven of them by hand."""
    expected, weights, said = [], [], []
    for seed, (labels, equal) in enumerate(LABELS.values()):
        z, y = rows_of(labels, equal, seed)
        z = z * (1 + seed) ** 2
        squares = sum(float(((z[y == k] - z[y == k].mean(0)) ** 2).sum()) for k in set(labels))
        free = len(y) - len(set(labels))
        if squares > 1e-9:
            expected.append(np.log(squares / (5 * free)))
            weights.append(free / (free + NU))
        said.append({"it": variance_message(found_of(z, y, "shrinkage" if seed % 2 else "isotropic"), NU)})
        assert float(said[-1]["it"].value["weight"]) == pytest.approx(weights[-1] if squares > 1e-9 else 0)
    assert len(expected) == 5
    total = fold_stack(tree_stack(said))["it"]
    wanted = np.exp(np.average(expected, weights=weights))
    assert float(common_variance(total, torch.tensor(7.0))) == pytest.approx(wanted, rel=1e-12)
    assert float(common_variance(total.zero(), torch.tensor(7.0))) == 7.0


def test_e3_the_scale_follows_the_features():
    """Features times c: every variance times c²."""
    z, y = rows_of(*LABELS["equal rows"])
    one, far = (
        scale_of(found_of(c * z, y, "isotropic"), NU, torch.tensor(0.3 * c * c, dtype=DOUBLE)) for c in (1.0, 1e4)
    )
    assert torch.allclose(far.others / one.others, torch.full((3,), 1e8, dtype=DOUBLE), rtol=1e-9)
    assert float(far.pooled / one.pooled) == pytest.approx(1e8)
