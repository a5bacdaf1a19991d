"""PVI: conjugate clients have a posterior that is known, and a round reaches it."""

import math
from collections import OrderedDict

import pytest
import torch
from oracles.sims import (
    DOUBLE,
    WEIGHT,
    Run,
    at,
    each_engine,
    federate,
    full_batch,
    mlp,
    points,
    q2,
    same_bits,
    scalar_model,
)

from posterity import methods, models
from posterity.core.gaussian import Gaussian
from posterity.core.passes import Training, fit
from posterity.core.random import make_key
from posterity.core.tree import tree_map, tree_rows
from posterity.methods.pvi import PVI, opposite_draws

TRAINING = Training(lr=0.1, batch=4, epochs=2)


def conjugate(steps=36, lr=0.25, **how):
    """Prior N(0, 1) on Q2, (b) solved to 1e-10: with curvatures from 2 to 6 every step halves the errors of the means
    at least; those of log σ are squared."""
    return PVI(full_batch(steps, lr), prior_scale=1.0, scale_lr=1.0, **how)


def moments(run):
    return run.scalar(), 1 / float(run.state.precision[WEIGHT])


@each_engine
def test_q2_is_exact_after_one_round(engine):
    """Precisions 1 + 1 + 4 and shift 12: N(2, 1/6); sites are the likelihoods, and a second round changes nothing."""
    run = Run(conjugate(damping=1.0), q2(), scalar_model(), engine, at(0.0)).rounds(1)
    assert moments(run) == pytest.approx((2.0, 1 / 6), abs=1e-9)
    sites = run.store.rows[WEIGHT]
    assert sites.precision.flatten().tolist() == pytest.approx([1, 4], abs=1e-8)
    assert sites.shift.flatten().tolist() == pytest.approx([0, 12], abs=1e-8)
    assert moments(run.rounds(1)) == pytest.approx((2.0, 1 / 6), abs=1e-9)
    outputs = run.outputs("received")  # at x = 1: the mean, and the noise's variance 1 with the weight's
    assert [o[0].tolist() for o in outputs] == [pytest.approx([2, 1 + 1 / 6], abs=1e-9)] * 2


def test_every_sample_counts():
    """Three samples each: precisions 1 + 3 + 12 and shift 36, N(2.25, 1/16)."""
    run = Run(conjugate(damping=1.0), q2(3), scalar_model(), initial=at(0.0)).rounds(1)
    assert moments(run) == pytest.approx((2.25, 1 / 16), abs=1e-8)


@pytest.mark.parametrize("damping", [0.5, None, 0.25])
def test_q2_with_damping(damping):
    """After r rounds a site has the share 1 − (1 − ρ)^r of its likelihood; none is 1/K = ½ here."""
    run, rho = Run(conjugate(damping=damping), q2(), scalar_model(), initial=at(0.0)), damping or 0.5
    for r in (1, 2):
        share = 1 - (1 - rho) ** r
        assert moments(run.rounds(1)) == pytest.approx((12 * share / (1 + 5 * share), 1 / (1 + 5 * share)), abs=1e-9)


def test_absent_clients_are_remembered():
    """One after the other: q has the first one's site while it is away, and the posterior after both."""
    run = Run(conjugate(damping=1.0), q2(), scalar_model(), initial=at(0.0)).rounds(1, cohort=[1])
    assert moments(run) == pytest.approx((12 / 5, 1 / 5), abs=1e-9)
    before = tree_map(torch.clone, tree_rows(run.store.rows, 1))
    run.rounds(1, cohort=[0])
    assert moments(run) == pytest.approx((2.0, 1 / 6), abs=1e-9)
    assert same_bits(before, tree_rows(run.store.rows, 1))


def test_a_nearly_flat_prior_gives_the_optimum_of_the_sum():
    """2.4, for a prior of variance 1e8; the first scale is the prior's, so log σ has a long way to go."""
    method = PVI(full_batch(60, 2 / 5), prior_scale=1e4, scale_lr=1.0, damping=1.0)
    run = Run(method, q2(), scalar_model(), initial=at(0.0)).rounds(1)
    assert moments(run) == pytest.approx((2.4, 1 / 5), abs=1e-6)


def bent(params, batch, here):
    """A loss that is concave in the first weight: its precision would fall by ½ for every sample."""
    value, buffers = fit(params, batch, here)
    first = params[WEIGHT][0, 0]
    return value + first - 0.25 * first**2, buffers


def test_a_site_that_would_become_negative_is_not_renewed_in_that_weight():
    """Elementwise: the first weight keeps its prior, mean included; the second has 1 + 4 and 12."""
    net = torch.nn.Sequential(OrderedDict(head=torch.nn.Linear(2, 1, bias=False)))
    model = models.wrap(net, "head", 1, "regression", shape=(2,))
    data = [(torch.tensor([[0.0, 2.0]], dtype=DOUBLE), torch.tensor([6.0], dtype=DOUBLE))]
    initial = {WEIGHT: torch.zeros(1, 2, dtype=DOUBLE)}
    run = Run(conjugate(loss=bent, damping=1.0), federate(data), model, initial=initial).rounds(1)
    assert run.state.params[WEIGHT][0].tolist() == pytest.approx([0, 2.4], abs=1e-9)
    assert run.state.precision[WEIGHT][0].tolist() == pytest.approx([1, 5], abs=1e-9)
    site = run.store.rows[WEIGHT]
    assert [site.precision[0, 0], site.shift[0, 0]] == [0, 0]


def test_a_site_may_lose_precision_down_to_zero():
    site = Gaussian(torch.tensor([4.0, 4.0, 4.0]), torch.ones(3))
    change = PVI().allowed(site, Gaussian(torch.tensor([-1.0, -4.0, -5.0]), torch.tensor([2.0, 3.0, 5.0])))
    assert (change.precision.tolist(), change.shift.tolist()) == ([-1, -4, 0], [2, 3, 0])


@each_engine
def test_q_is_the_product_of_prior_and_sites(engine):
    """After any rounds with any cohorts, for a network with batch norm; and no site has a negative precision."""
    federation = points((9, 5, 1, 4))
    model = mlp(federation, norm=True, eps=1e-2)
    run = Run(PVI(TRAINING, damping=0.5), federation, model, engine)
    for cohort in ([0, 1, 2], [1, 3]):
        run.rounds(1, cohort)
    assert set(run.state.precision) == set(run.store.rows) == model.trainable
    for name, site in run.store.rows.items():
        assert float(site.precision.min()) >= 0
        precision = 100 + site.precision.sum(0)
        shift = 100 * run.sim.initial[name].flatten() + site.shift.sum(0)
        assert torch.allclose(run.state.precision[name].flatten(), precision, rtol=1e-12)
        assert torch.allclose(run.state.params[name].flatten(), shift / precision, rtol=1e-9, atol=1e-12)
    for name in model.buffers:
        assert not torch.equal(run.state.params[name], run.sim.initial[name])


def test_draws_have_the_moments_of_a_gaussian():
    """Mean 0 and variance 1 exactly, whatever their number; one pair is ±1; fourth moment 3 of many (0.05 is 4 sd)."""
    like = torch.zeros(3, 2, dtype=DOUBLE)
    for pairs in (1, 3):
        draws = opposite_draws(make_key(0), like, pairs)
        assert draws.shape == (2 * pairs, 3, 2)
        assert draws.mean(0).abs().max() < 1e-15
        assert (draws**2).mean(0) == pytest.approx(1, abs=1e-12)
    assert opposite_draws(make_key(0), like, 1).unique().tolist() == pytest.approx([-1, 1], abs=1e-12)
    many = opposite_draws(make_key(1), torch.zeros(40, dtype=DOUBLE), 4000)
    assert float((many**4).mean()) == pytest.approx(3, abs=0.05)


def test_predictions_are_averaged_over_draws():
    """Probabilities, not logarithms: of many draws against the plain mean; without draws the mean network's."""
    federation = points((9, 5))
    model = mlp(federation)
    run = Run(PVI(TRAINING, prior_scale=0.5, samples=300), federation, model).rounds(1)
    x = federation.x[federation.test.client(0)]
    generator = torch.Generator().manual_seed(0)
    total = 0
    for _ in range(600):
        some = {n: p + torch.randn(p.shape, generator=generator, dtype=DOUBLE) / run.state.precision[n].sqrt()
                for n, p in run.state.params.items()}  # fmt: skip
        total = total + model.logits(some, x).softmax(-1) / 600
    answer = run.outputs("received")[0]
    assert float((answer.exp() - total).abs().max()) < 0.07  # standard errors up to 0.02
    assert float(answer.exp().sum(1).max()) == pytest.approx(1, abs=1e-12)
    mean = Run(PVI(TRAINING, prior_scale=0.5, samples=0), federation, model).rounds(1)
    assert torch.allclose(mean.outputs("received")[0], model.logits(run.state.params, x).log_softmax(-1), atol=1e-12)
    assert float((mean.outputs("received")[0].exp() - total).abs().max()) > 0.07


def test_a_newcomer_has_q_and_adapts_to_the_posterior_with_its_data():
    """q times the likelihood of the newcomer's samples: precision 6 + A, shift 12 + A m."""
    run = Run(conjugate(lr=1 / 6, damping=1.0), q2(), scalar_model(), initial=at(0.0)).rounds(2)
    assert [o[0, 0].item() for o in run.outputs("received", newcomers=True)] == pytest.approx([2, 2], abs=1e-6)
    adapted = run.outputs("adapted", epochs=50, newcomers=True)
    assert [o[0, 0].item() for o in adapted] == pytest.approx([12 / 7, 24 / 10], abs=1e-6)
    assert [o[0, 1].item() for o in adapted] == pytest.approx([1 + 1 / 7, 1 + 1 / 10], abs=1e-6)


def test_bytes_are_twice_the_model_both_ways():
    """Mean and precision down; changes of shift and precision up. Buffers of batch norm travel once, with a weight."""
    federation = points((5, 9))
    for norm in (False, True):
        log = Run(PVI(), federation, mlp(federation, norm=norm), dtype=torch.float32).rounds(1).logs[0]
        d, buffers = 6 * 8 + 8 + 8 * 3 + 3 + (16 if norm else 0), 16 if norm else 0
        assert log.bytes_down == 2 * 4 * (2 * d + buffers)
        assert log.bytes_up == 2 * 4 * (2 * d + buffers + (1 if norm else 0))


def test_the_scale_is_reported():
    run = Run(conjugate(damping=1.0), q2(), scalar_model(), initial=at(0.0)).rounds(1)
    assert float(run.sim.method.report(run.state, {})["scale"]) == pytest.approx(math.sqrt(1 / 6), abs=1e-9)


def test_bad_hyper_parameters():
    assert methods.build("pvi@paper").local == Training(lr=1e-3, optimiser="adam")
    for field, value in (("damping", -0.1), ("damping", 1.5), ("scale_lr", -1.0), ("draws", 0), ("samples", -1)):
        with pytest.raises(ValueError, match=rf"{field} must be .*; {value}"):
            PVI(**{field: value})
    for value in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"prior_scale"):
            PVI(prior_scale=value)
