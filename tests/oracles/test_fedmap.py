"""FedMAP: the specification's oracles O1 to O10 and the numbers of its errata, on the functions the engine runs.

O11 (balanced accuracy) is in tests/evaluate/test_metrics.py, O12 (the generator) in
tests/data/test_datasets_generated.py.
"""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import norm
from torch.func import grad

from posterity.core.messages import LogMean, fold_stack, merge
from posterity.core.passes import Training, log_likelihood
from posterity.core.protocol import Batch, log_predictive
from posterity.engine.blocks import receive_stack
from posterity.engine.engines import ORACLE
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedmap import FedMAP
from posterity.methods.local import Local

from .sims import (
    DOUBLE,
    WEIGHT,
    Run,
    at,
    each_engine,
    federate,
    full_batch,
    mlp,
    points,
    quadratics,
    scalar_model,
    worst,
)

CURVATURE, CENTRE, SIZES = (1.0, 4.0, 0.5), (1.0, -2.0, 3.0), (5, 3, 2)  # sizes 5:3:2 are the weights .5, .3, .2


def log_means(log_weights, values):
    return [
        {"params": LogMean(torch.tensor(w, dtype=DOUBLE), {"t": torch.tensor([v], dtype=DOUBLE)})}
        for w, v in zip(log_weights, values, strict=True)
    ]


def stacked_mean(log_weights, values):
    value = {"t": torch.tensor(values, dtype=DOUBLE)[:, None]}
    return fold_stack({"params": LogMean(torch.tensor(log_weights, dtype=DOUBLE), value)})["params"]


@each_engine
def test_o01_fixed_point_of_quadratic_clients(engine):
    """Clients go on from their own θ, so the fixed point of a few steps a round is that of exact arg mins.

    γ = Σ wϱc / Σ wϱ with ϱ = a/(a + 1/σ²) = (2/3, 8/9, 1/2): (1/3 − 8/15 + 3/10) / (1/3 + 4/15 + 1/10) = 0.1/0.7.
    """
    method = FedMAP(full_batch(10, lr=0.35), sigma2=2.0, weighting="num_examples")
    run = Run(method, quadratics(CURVATURE, CENTRE, SIZES), scalar_model(), engine, at(0.15)).rounds(22)
    assert run.scalar() == pytest.approx(1 / 7, abs=1e-10)
    assert run.personal() == pytest.approx([5 / 7, -37 / 21, 11 / 7], abs=1e-9)


def test_o02_a_wide_prior_is_local_training():
    federation, training = points((9, 5, 2)), Training(lr=0.1, batch=4, epochs=2)
    wide = Run(FedMAP(training, sigma2=1e12), federation, mlp(federation)).rounds(3)
    alone = Run(Local(training), federation, mlp(federation)).rounds(3)
    assert 0 < worst(wide.store.rows, alone.store.rows) < 1e-5


@pytest.mark.parametrize(("sigma2", "speed"), [(1e-2, -2.738014), (1e-4, -2.858731), (1e-6, -2.859987)])
def test_o03_a_narrow_prior_is_gradient_flow(sigma2, speed):
    """The step size σ² solves ½a(θ − c)² + (θ − γ)²/(2σ²): each step leaves a σ² of the error, at most 0.04^8."""
    method = FedMAP(full_batch(8, lr=sigma2), sigma2=sigma2, weighting="num_examples")
    run = Run(method, quadratics(CURVATURE, CENTRE, SIZES), scalar_model(), initial=at(0.7)).rounds(1)
    assert (run.scalar() - 0.7) / sigma2 == pytest.approx(speed, abs=1e-6)
    limit = -sum(w * a * (0.7 - c) for w, a, c in zip((0.5, 0.3, 0.2), CURVATURE, CENTRE, strict=True))
    assert limit == pytest.approx(-2.86, abs=1e-12)


def test_o04_a_very_narrow_prior_freezes_the_clients():
    """… and is not FedAvg, which moves by a fifth of the way here."""
    federation, training = quadratics(CURVATURE, CENTRE, SIZES), full_batch(4, lr=1e-8)
    run = Run(FedMAP(training, sigma2=1e-8), federation, scalar_model(), initial=at(0.7)).rounds(2)
    assert run.personal() == pytest.approx([0.7] * 3, abs=1e-6)
    assert run.scalar() == pytest.approx(0.7, abs=1e-6)
    free = Run(FedAvg(full_batch(4)), federation, scalar_model(), initial=at(0.7)).rounds(1)
    assert abs(free.scalar() - 0.7) > 0.1


def test_o05_extreme_log_weights():
    total = stacked_mean((-420.0, -150.0, -151.0, -400.0), (1.0, 2.0, 3.0, 4.0))
    assert float(total.mean()["t"]) == pytest.approx(2 + 1 / (1 + math.e), abs=1e-12)
    assert 2 + 1 / (1 + math.e) == pytest.approx(2.268941421, abs=1e-9)


@pytest.mark.parametrize("constant", [-1e4, -37.0, 700.0])
def test_o06_only_differences_of_log_weights_matter(constant):
    weights, values = [-420.0, -150.0, -151.0, -149.5], [1.0, 2.0, 3.0, 4.0]
    expected = float(stacked_mean(weights, values).mean()["t"])
    moved = [w + constant for w in weights]
    assert float(stacked_mean(moved, values).mean()["t"]) == pytest.approx(expected, abs=1e-12)
    for order in ([0, 1, 2, 3], [3, 0, 2, 1], [2, 3, 1, 0]):
        parts = [log_means(moved, values)[i] for i in order]
        streamed = merge(merge(merge(parts[0], parts[1]), parts[2]), parts[3])
        assert float(streamed["params"].mean()["t"]) == pytest.approx(expected, abs=1e-12)


@each_engine
def test_o07_weights_by_size_from_the_prior_are_fedavg(engine):
    """In float64; the float32 form of this oracle is in tests/methods/test_fedmap.py."""
    federation, training = points((9, 5, 1, 13)), Training(lr=0.1, batch=4, epochs=2)
    method = FedMAP(training, sigma2=math.inf, weighting="num_examples", start_at="prior")
    runs = [Run(m, federation, mlp(federation), engine).rounds(2) for m in (method, FedAvg(training))]
    assert worst(runs[0].state.params, runs[1].state.params) < 1e-12


def conjugate(y, gamma, sigma2, scale):
    """θ after training to convergence on y_i ~ N(θ, 1) from γ, and γ still where it was."""
    x = torch.ones(len(y), 1, dtype=DOUBLE)
    method = FedMAP(full_batch(25, lr=0.6), sigma2=sigma2, prior_scale=scale)
    return Run(method, federate([(x, y)]), scalar_model(), initial=at(gamma)).rounds(1).personal()[0]


def test_o08_conjugate_gaussian():
    """Curvatures 1 + 1/(Nσ²) and 1 + 1/σ² lie between 1.1 and 1.5: 25 steps of 0.6 leave 0.34^25 of the error."""
    y = torch.tensor([0.3, 1.9, -0.4, 2.2, 1.0], dtype=DOUBLE)
    gamma, sigma2, mean = -0.8, 2.0, 1.0
    assert conjugate(y, gamma, sigma2, "bayes") == pytest.approx((5 * mean + gamma / 2) / (5 + 1 / 2), abs=1e-8)
    assert conjugate(y, gamma, sigma2, "per_batch") == pytest.approx((mean + gamma / 2) / (1 + 1 / 2), abs=1e-8)


@pytest.mark.parametrize(("n", "bayes"), [(10, 10 / 11), (100, 100 / 101), (1000, 1000 / 1001)])
def test_a3_mean_and_sum_differ_by_the_samples(n, bayes):
    """ȳ = 1, γ = 0, σ² = 1: (6) gives N/(N + 1) = .9091, .9901, .9990, and (7) gives ½ for every N."""
    y = 1 + 0.1 * torch.cos(torch.arange(n, dtype=DOUBLE) * math.pi)  # 1.1, 0.9, 1.1, …
    assert bayes == pytest.approx({10: 0.9091, 100: 0.9901, 1000: 0.9990}[n], abs=5e-5)
    assert conjugate(y, 0.0, 1.0, "bayes") == pytest.approx(bayes, abs=1e-8)
    assert conjugate(y, 0.0, 1.0, "per_batch") == pytest.approx(0.5, abs=1e-8)


@pytest.mark.parametrize(("scale", "share"), [("per_batch", 1.0), ("bayes", 1 / 40)])
def test_o09_gradient_of_the_prior(scale, share):
    """(θ − γ)/σ², and 1/N_k of it under `bayes`, on top of the gradient of the loss."""
    federation = points((4,))
    model = mlp(federation)
    method, gamma, theta = FedMAP(sigma2=3.0, prior_scale=scale), model.init(0, DOUBLE), model.init(1, DOUBLE)
    here = SimpleNamespace(shared=SimpleNamespace(params=gamma), model=model, key=None, n=torch.tensor(40.0).double())
    batch = Batch(federation.x[:4], federation.y[:4], torch.ones(4, dtype=DOUBLE))
    whole = grad(lambda p: method.posterior_loss(p, batch, here)[0])(theta)
    data = grad(lambda p: method.loss(p, batch, here)[0])(theta)
    for name in theta:
        expected = share * (theta[name] - gamma[name]) / 3.0
        assert torch.allclose(whole[name] - data[name], expected, atol=1e-7)


def test_o10_weight_ratio_is_the_likelihood_ratio():
    """Equal θ (step size 0); client 2 has client 1's data twice, so its likelihood is the square.

    log ω_2 − log ω_1 must be log p(Z_1|θ) = −Σ {½(θx − y)² + ½ log 2π}; the prior cancels. θ = 0.5, γ = 0.
    """
    x, y = torch.tensor([[1.0], [2.0], [-1.0]], dtype=DOUBLE), torch.tensor([0.2, 1.5, 1.0], dtype=DOUBLE)
    federation = federate([(x, y), (x.repeat(2, 1), y.repeat(2))])
    first, second = sent_log_weights(federation, [0.5, 0.5], "posterior")
    log_likelihood = -0.5 * float(((0.5 * x[:, 0] - y) ** 2).sum()) - 1.5 * math.log(2 * math.pi)
    assert second - first == pytest.approx(log_likelihood, abs=1e-9)
    assert first == pytest.approx(log_likelihood - 0.25 / 30, abs=1e-9)


def sent_log_weights(federation, theta, weighting, sigma2=15.0, engine=ORACLE):
    """log ω_k as the clients send it with γ = 0 and estimates `theta`, which a step size of 0 leaves where they are."""
    method = FedMAP(Training(lr=0.0), sigma2=sigma2, weighting=weighting)
    run = Run(method, federation, scalar_model(), engine, at(0.0)).rounds(1)
    run.store.rows[WEIGHT][:] = torch.tensor(theta, dtype=DOUBLE)[:, None, None]
    sim, clients = run.sim, torch.arange(len(theta))
    here, _ = receive_stack(sim, engine, run.state, run.store, clients, 1)
    sent = engine.visit(sim, sim.method.passes(), here).message
    return sent["params"].log_weight.tolist()


# θ_k of seven clients with 1 to 40 samples, drawn once; what scipy makes of them is the oracle
THETA, COUNTS = (0.5, -1.2, 0.0, 2.0, 0.7, -0.3, 1.1), (1, 2, 3, 5, 8, 21, 40)


def regression_clients():
    draw = np.random.default_rng(7)
    pairs = [(draw.normal(size=n), draw.normal(scale=1.5, size=n)) for n in COUNTS]
    return pairs, federate([(torch.tensor(x)[:, None], torch.tensor(y)) for x, y in pairs])


@each_engine
@pytest.mark.parametrize("weighting", ["posterior", "likelihood", "per_sample"])
def test_log_weights_of_unequal_regression_clients_are_log_densities(engine, weighting):
    """log ω against scipy.stats.norm: the predictive variance is the 1 that `log_predictive` and the NLL have.

    Of the prior only −‖θ‖²/2σ²: its constant is the same for all (A4). Shares in γ too: they are what users see.
    """
    pairs, federation = regression_clients()
    log_lik = np.array([norm.logpdf(y, t * x, 1.0).sum() for t, (x, y) in zip(THETA, pairs, strict=True)])
    prior, n = -np.square(THETA) / (2 * 3.0), np.array(COUNTS)
    expected = {"likelihood": log_lik, "posterior": log_lik + prior, "per_sample": (log_lik + prior) / n}[weighting]
    found = np.array(sent_log_weights(federation, THETA, weighting, 3.0, engine))
    assert found == pytest.approx(expected, rel=1e-12)
    total = fold_stack({"params": LogMean(torch.tensor(found), torch.eye(7, dtype=DOUBLE))})["params"]
    assert total.mean().tolist() == pytest.approx(softmax(expected), rel=1e-10, abs=1e-300)


@pytest.mark.parametrize("weighting", ["posterior", "likelihood"])
def test_a_client_with_more_samples_weighs_less_by_their_constants(weighting):
    """Everybody fits perfectly at θ = γ = 0, so log ω_k = −N_k/2 · log 2π and nothing else: 1 : 2 : 5 samples."""
    data = [(torch.ones(n, 1, dtype=DOUBLE), torch.zeros(n, dtype=DOUBLE)) for n in (1, 2, 5)]
    found = sent_log_weights(federate(data), [0.0] * 3, weighting)
    assert found == pytest.approx([-0.918938533204673, -1.837877066409345, -4.594692666023363], abs=1e-12)


def test_the_likelihood_is_the_one_that_is_scored():
    """Minus N_k times the NLL that evaluation gives the same model on the same rows."""
    pairs, federation = regression_clients()
    model = scalar_model()
    for k, (x, y) in enumerate(pairs):
        rows = federation.train.client(k)
        batch = Batch(federation.x[rows], federation.y[rows], torch.ones(len(rows), dtype=DOUBLE))
        here = SimpleNamespace(model=model)
        scored = log_predictive(at(THETA[k]), batch.x, here)
        ours = float(log_likelihood(at(THETA[k]), batch, here))
        assert ours == pytest.approx(norm.logpdf(y, scored[:, 0].numpy(), scored[:, 1].sqrt().numpy()).sum(), rel=1e-12)
        assert ours == pytest.approx(norm.logpdf(y, THETA[k] * x, 1.0).sum(), rel=1e-12)


# The ten clients of erratum A1: mean losses that give the specification's log ω (−392 … −448, −151 … −165) and weights.
SIZES_A1 = torch.tensor([1400.0] * 5 + [350.0] * 5, dtype=DOUBLE)
LOSSES_A1 = torch.tensor([0.30, 0.32, 0.28, 0.31, 0.29, 0.45, 0.47, 0.44, 0.46, 0.43], dtype=DOUBLE)


def weights_a1(weighting, sizes=SIZES_A1, losses=LOSSES_A1):
    log_weight = FedMAP(weighting=weighting).log_weight(-losses * sizes, torch.zeros_like(sizes), sizes)
    values = torch.eye(len(sizes), dtype=DOUBLE)  # the mean of unit vectors is the vector of weights
    return log_weight, fold_stack({"params": LogMean(log_weight, values)})["params"].mean()


def test_a1_printed_weights_are_one_hot_and_underflow():
    """e^−151 is 0 in float32; in the log domain the worst-fitting small clients own the model.

    The specification's 0.9704 and 0.0288 include small R_k that it does not print; without them: 0.9697, 0.0293.
    """
    log_weight, weights = weights_a1("posterior")
    assert float(log_weight.min()) == pytest.approx(-448)
    assert float(log_weight[5:].max()) == pytest.approx(-150.5)
    assert not log_weight.float().exp().any()
    expected = [0, 0, 0, 0, 0, 0.0009, 0, 0.0288, 0, 0.9704]
    assert weights.tolist() == pytest.approx(expected, abs=1e-3)
    _, equal = weights_a1("posterior", SIZES_A1[:5], LOSSES_A1[:5])
    assert float(equal.max()) == pytest.approx(0.999999, abs=1e-6)


def test_a1_weights_per_sample():
    _, weights = weights_a1("per_sample")
    expected = [0.1075, 0.1054, 0.1097, 0.1064, 0.1086, 0.0925, 0.0906, 0.0934, 0.0915, 0.0943]
    assert weights.tolist() == pytest.approx(expected, abs=1e-4)


def test_a2_the_three_weightings_by_density():
    """L = −12, R = 3, N = 6."""
    given = [torch.tensor(v, dtype=DOUBLE) for v in (-12.0, -3.0, 6.0)]
    for weighting, value in {"per_sample": -2.5, "posterior": -15.0, "likelihood": -12.0}.items():
        assert float(FedMAP(weighting=weighting).log_weight(*given)) == pytest.approx(value, abs=1e-14)


@pytest.mark.parametrize(("weighting", "weights"), [("num_examples", (9, 5, 1)), ("uniform", (1, 1, 1))])
def test_a2_the_two_weightings_by_number(weighting, weights):
    """γ is the weighted mean of the estimates that the clients kept, and the effective number is (Σw)²/Σw²."""
    federation = points((9, 5, 1))
    run = Run(FedMAP(weighting=weighting), federation, mlp(federation)).rounds(1)
    share = torch.tensor(weights, dtype=DOUBLE) / sum(weights)
    for name, rows in run.store.rows.items():
        assert torch.allclose(run.state.params[name], torch.tensordot(share, rows, 1), atol=1e-14)
    assert run.logs[0].report["effective_clients"] == pytest.approx(float(1 / (share**2).sum()))
