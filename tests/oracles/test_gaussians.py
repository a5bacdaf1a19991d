"""Gaussian factors: the linear-Gaussian oracles, and every form against dense formulas and torch.distributions."""

import itertools
from functools import reduce

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence
from torch.func import grad, vmap

from posterity.core.gaussian import FORMS, Gaussian, dense, kl
from posterity.core.messages import Sum, fold_stack

from .sims import DOUBLE

D = 3
each_form = pytest.mark.parametrize("form", FORMS)
each_pair = pytest.mark.parametrize(("first", "second"), list(itertools.product(FORMS, FORMS)))
each_thin_pair = pytest.mark.parametrize(("first", "second"), list(itertools.product(FORMS[:2], FORMS[:2])))


def factor(form, seed, batch=()):
    """A proper factor, its mean and its dense precision."""
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(*batch, D, generator=generator, dtype=DOUBLE)
    if form == "dense":
        root = torch.randn(*batch, D, D, generator=generator, dtype=DOUBLE)
        precision = root @ root.transpose(-1, -2) + 0.5 * torch.eye(D, dtype=DOUBLE)
    else:
        shape = (*batch, D) if form == "diagonal" else batch
        precision = 0.5 + torch.rand(shape, generator=generator, dtype=DOUBLE)
    return Gaussian.of(mean, precision), mean, dense(precision, D, FORMS.index(form))


def test_the_prior_is_counted_once():
    """Prior N(0, 1), unit noise, client sums (2, −1, 4.5), counts (3, 1, 5).

    Messages are likelihood factors (precision = count, shift = sum): posterior precision 1 + 9 = 10, mean 5.5/10.
    Multiplying local *posteriors* counts the prior three times: 5.5/12 = 0.458333, variance 0.083333.
    """
    sums, counts = torch.tensor([[2.0], [-1.0], [4.5]], dtype=DOUBLE), torch.tensor([3.0, 1.0, 5.0], dtype=DOUBLE)
    prior = Gaussian(torch.tensor(1.0, dtype=DOUBLE), torch.zeros(1, dtype=DOUBLE))
    posteriors = [prior + Gaussian(c, s) for c, s in zip(counts, sums, strict=True)]
    messages = [p - prior for p in posteriors]
    stack = Gaussian(torch.stack([m.precision for m in messages]), torch.stack([m.shift for m in messages]))
    joint = prior + fold_stack({"site": Sum(stack)})["site"].value
    assert float(joint.mean()) == pytest.approx(0.55, abs=1e-12)
    assert float(joint.covariance()) == pytest.approx(0.1, abs=1e-12)
    naive = reduce(Gaussian.__add__, posteriors)
    assert float(naive.mean()) == pytest.approx(0.458333, abs=1e-6)
    assert float(naive.covariance()) == pytest.approx(0.083333, abs=1e-6)


def regressions():
    """Likelihood factors XᵀX/0.25, Xᵀy/0.25 of the specification's three clients."""
    data = (
        ([[1, 0], [1, 1]], [1, 2]),
        ([[1, 2], [1, 3], [1, -1]], [2.5, 4, 0]),
        ([[1, 0.5]], [1.2]),
    )
    for x, y in data:
        x, y = torch.tensor(x, dtype=DOUBLE), torch.tensor(y, dtype=DOUBLE)
        yield Gaussian(x.T @ x / 0.25, x.T @ y / 0.25)


def test_matrix_valued_oracle():
    sites = list(regressions())
    prior = Gaussian(torch.tensor(0.5, dtype=DOUBLE), torch.zeros(2, dtype=DOUBLE))  # isotropic: forms mix
    joint = reduce(Gaussian.__add__, sites, prior)
    assert joint.precision.tolist() == [pytest.approx([24.5, 22], abs=1e-8), pytest.approx([22, 61.5], abs=1e-8)]
    assert joint.shift.tolist() == pytest.approx([42.8, 78.4], abs=1e-8)
    assert joint.mean().tolist() == pytest.approx([0.88721584, 0.95741872], abs=1e-8)
    expected = torch.tensor([[0.060132, -0.02151063], [-0.02151063, 0.02395502]], dtype=DOUBLE)
    assert torch.allclose(joint.covariance(), expected, atol=1e-8, rtol=1e-6)
    cavity = joint - sites[1]
    assert cavity.precision.flatten().tolist() == pytest.approx([12.5, 6, 6, 5.5], abs=1e-8)
    assert cavity.mean().tolist() == pytest.approx([0.91603053, 0.89160305], abs=1e-8)
    assert torch.allclose((cavity + sites[1]).shift, joint.shift, atol=1e-12)


@each_form
def test_mean_and_covariance(form):
    q, mean, full = factor(form, 1)
    assert q.form == form
    assert torch.allclose(q.mean(), mean, atol=1e-12)
    assert torch.allclose(dense(q.covariance(), D, FORMS.index(form)), torch.linalg.inv(full), atol=1e-12)
    assert torch.allclose(q.shift, full @ mean, atol=1e-12)


@each_pair
def test_product_and_cavity(first, second):
    """Product: (Λ_a + Λ_b)⁻¹(Λ_a m_a + Λ_b m_b). Taking b out again gives a. The richer form wins."""
    (a, mean_a, full_a), (b, mean_b, full_b) = factor(first, 1), factor(second, 2)
    both = a + b
    assert FORMS.index(both.form) == max(FORMS.index(first), FORMS.index(second))
    expected = torch.linalg.solve(full_a + full_b, full_a @ mean_a + full_b @ mean_b)
    assert torch.allclose(both.mean(), expected, atol=1e-12)
    again = both - b
    assert torch.allclose(again.mean(), mean_a, atol=1e-11)
    assert torch.allclose(dense(again.precision, D, FORMS.index(again.form)), full_a, atol=1e-12)


@each_form
@pytest.mark.parametrize("power", [0.25, 3.0])
def test_powers_keep_the_mean_and_divide_the_covariance(form, power):
    q, mean, full = factor(form, 3)
    for raised in (q * power, power * q):
        assert torch.allclose(raised.mean(), mean, atol=1e-12)
        assert torch.allclose(dense(raised.precision, D, FORMS.index(form)), power * full, atol=1e-12)


@each_form
def test_a_power_for_each_factor_of_a_batch(form):
    """K = D factors, each with its own power: outside of vmap this must equal raising them one by one."""
    q, mean, _ = factor(form, 4, (D,))
    power = torch.tensor([0.5, 1.0, 2.0], dtype=DOUBLE)
    raised = q * power
    assert torch.allclose(raised.mean(), mean, atol=1e-10)
    one = Gaussian(q.precision[0], q.shift[0]) * 0.5
    assert torch.allclose(raised.precision[0], one.precision)


@each_thin_pair
def test_divergence_against_torch(first, second):
    (p, mean_p, full_p), (q, mean_q, full_q) = factor(first, 5), factor(second, 6)
    expected = kl_divergence(
        MultivariateNormal(mean_p, precision_matrix=full_p), MultivariateNormal(mean_q, precision_matrix=full_q)
    )
    assert float(kl(p, q)) == pytest.approx(float(expected), abs=1e-10)
    assert float(kl(p, p)) == pytest.approx(0.0, abs=1e-12)


@each_pair
def test_batches_equal_single_factors_equal_vmap(first, second):
    (p, _, _), (q, _, _) = factor(first, 8, (4,)), factor(second, 9, (4,))
    singles = [
        (Gaussian(p.precision[i], p.shift[i]), Gaussian(q.precision[i], q.shift[i])) for i in range(4)
    ]  # fmt: skip
    for name, function in (
        ("mean", lambda a, b: (a + b).mean()),
        ("cavity", lambda a, b: (a + b - b).mean()),
    ):
        expected = torch.stack([function(a, b) for a, b in singles])
        assert torch.allclose(function(p, q), expected, atol=1e-11), name
        assert torch.allclose(vmap(function)(p, q), expected, atol=1e-11), name


@each_thin_pair
def test_gradients_under_vmap(first, second):
    """d KL / d shift_p by autograd against central differences, in a stack of three."""
    (p, _, _), (q, _, _) = factor(first, 10, (3,)), factor(second, 11, (3,))

    def value(shift, precision, other):
        return kl(Gaussian(precision, shift), other)

    slope = vmap(grad(value))(p.shift, p.precision, q)
    step = 1e-6
    for axis in range(D):
        nudge = step * torch.eye(D, dtype=DOUBLE)[axis]
        difference = (value(p.shift + nudge, p.precision, q) - value(p.shift - nudge, p.precision, q)) / (2 * step)
        assert torch.allclose(slope[:, axis], difference, atol=1e-7)
