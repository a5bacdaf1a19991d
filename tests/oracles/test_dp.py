"""+dp by another way: every client by numpy, the noise by its statistics, ε by the closed form of the Gaussian."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm

from posterity.core import Now, Sum, Training, make_key
from posterity.methods.fedavg import FedAvg
from posterity.methods.scaffold import SCAFFOLD
from posterity.methods.wrappers.dp import Private, State, epsilon, noisy

from .sims import DOUBLE, ENGINES, Run, each_engine, mlp, points

TRAINING = Training(lr=0.1, batch=4)
SIZES = (9, 5, 3, 12, 7)


def flat(params):
    return np.concatenate([leaf.flatten().numpy() for leaf in params.values()])


def played(method, engine=ENGINES[1], cohort=None, seed=0, federation=None):
    federation = points(SIZES) if federation is None else federation
    return Run(method, federation, mlp(federation), engine, seed=seed).rounds(1, cohort)


@each_engine
@pytest.mark.parametrize(("cohort", "count"), [(None, None), ([0, 2, 4], 3.0), ([0, 2, 4], 2.5)])
def test_clients_count_alike_by_a_fixed_number(engine, cohort, count):
    """w + Σ_k d_k min(1, S/‖d_k‖) / m, by numpy from clients that were alone."""
    bound = 0.4
    run = played(Private(FedAvg(TRAINING), bound, noise=0.0, cohort=count), engine, cohort)
    first = flat(run.sim.initial)
    moved = [flat(played(FedAvg(TRAINING), engine, [k]).state.params) - first for k in cohort or range(len(SIZES))]
    lengths = [np.linalg.norm(d) for d in moved]
    assert min(lengths) < bound < max(lengths)
    total = sum(d * min(1.0, bound / far) for d, far in zip(moved, lengths, strict=True))
    assert np.abs(flat(run.state.params) - first - total / (count or len(SIZES))).max() < 1e-12


def test_parts_are_shortened_together():
    """SCAFFOLD sends two: in units of their bounds they are of length 1 together, so z is the noise multiplier."""
    bound, sum_bound = 0.2, 0.7
    run = played(Private(SCAFFOLD(TRAINING), bound, sum_bound, noise=0.0, cohort=1.0), cohort=[3])
    plain = played(SCAFFOLD(TRAINING), cohort=[3])
    first = flat(run.sim.initial)
    clients = len(SIZES)  # by which the server divides the sum of the variates
    states = (run.state.host, plain.state)
    short, free = ((flat(s.params) - first, flat(s.control) * clients) for s in states)
    far = math.sqrt(np.sum((free[0] / bound) ** 2) + np.sum((free[1] / sum_bound) ** 2))
    assert far > 1
    for a, b in zip(short, free, strict=True):
        assert np.abs(a - b / far).max() < 1e-12


def test_the_noise_has_its_size_and_is_new_every_round_and_seed():
    """Nobody may move (S = 1e-9), so what moves is the noise: z S / m on every number."""
    z, bound = 3.0, 1e-9
    method = Private(FedAvg(TRAINING), bound, noise=z)
    runs = [played(method, seed=seed) for seed in (0, 1)]
    drawn = [(flat(run.state.params) - flat(run.sim.initial)) / (z * bound / len(SIZES)) for run in runs]
    second = (flat(runs[0].rounds(1).state.params) - flat(runs[0].sim.initial)) / (z * bound / len(SIZES)) - drawn[0]
    for some in (*drawn, second):
        count = len(some)
        assert abs(some.mean()) < 4 / math.sqrt(count) + 0.4  # the contributions themselves: at most 1/3 in length
        assert 0.6 < some.std() < 1.4
    assert all(abs(np.corrcoef(a, b)[0, 1]) < 0.45 for a, b in ((drawn[0], drawn[1]), (drawn[0], second)))


def test_the_noise_of_a_sum_is_not_divided():
    z, bound = 3.0, 1e-9
    run = played(Private(SCAFFOLD(TRAINING), 1e-12, bound, noise=z))
    drawn = flat(run.state.host.control) * len(SIZES) / (z * bound)  # SCAFFOLD divides the sum by its clients
    assert 0.6 < drawn.std() < 1.4


def test_leaves_and_parts_have_draws_of_their_own():
    drawn = noisy({"a": torch.zeros(40, dtype=DOUBLE), "b": torch.zeros(40, dtype=DOUBLE)}, 2.0, make_key(0))
    assert not torch.isclose(drawn["a"], drawn["b"]).any()
    assert all(1.3 < float(leaf.std()) < 2.7 for leaf in drawn.values())
    method, zero = Private(FedAvg(), noise=1.0), {"w": torch.zeros(40, dtype=DOUBLE)}
    seen = {}

    def combine(state, total, now):
        seen.update(total)
        return state

    inner = SimpleNamespace(offer=lambda state, client: ((), ()), combine=combine, differences=())
    object.__setattr__(method, "method", inner)
    method.combine(State((), 3), {"one": Sum(zero), "two": Sum(zero)}, Now(1, 1, make_key(0), 3))
    assert not torch.isclose(seen["one"].value["w"], seen["two"].value["w"]).any()


def gaussian_delta(eps, mu):
    """Balle and Wang 2018, Theorem 8."""
    return norm.cdf(mu / 2 - eps / mu) - math.exp(eps) * norm.cdf(-mu / 2 - eps / mu)


def renyi_bound(z, rounds, delta, chance):
    """ε of Poisson sampling from Mironov, Talwar and Zhang 2019: whole orders, the plain conversion."""
    best = math.inf
    for order in range(2, 200):
        terms = [math.lgamma(order + 1) - math.lgamma(j + 1) - math.lgamma(order - j + 1) + j * math.log(chance)
                 + (order - j) * math.log1p(-chance) + j * (j - 1) / (2 * z * z) for j in range(order + 1)]  # fmt: skip
        top = max(terms)
        spent = rounds * (top + math.log(sum(math.exp(t - top) for t in terms))) / (order - 1)
        best = min(best, spent + math.log(1 / delta) / (order - 1))
    return best


@pytest.mark.parametrize(
    ("z", "rounds", "delta"), [(1.0, 1, 1e-2), (1.0, 100, 0.037), (5.0, 100, 1e-5), (20.0, 50, 1e-3)]
)
def test_epsilon_of_full_participation_is_the_closed_form(z, rounds, delta):
    pytest.importorskip("dp_accounting", reason="ε needs the extra dp (pip install 'posterity[dp]')")
    mu = math.sqrt(rounds) / z
    exact = brentq(lambda eps: gaussian_delta(eps, mu) - delta, 0, 500)
    assert epsilon(z, delta, rounds) == pytest.approx(exact, rel=1e-6)
    assert epsilon(z, delta, rounds, 1.0) == epsilon(z, delta, rounds)


@pytest.mark.parametrize(("z", "rounds", "delta", "chance"), [(1.0, 100, 1e-2, 0.1), (2.0, 300, 1e-5, 0.3)])
def test_epsilon_of_poisson_sampling(z, rounds, delta, chance):
    """Below the plain conversion of the same moments, and not far below; sampling gains over everybody."""
    pytest.importorskip("dp_accounting", reason="ε needs the extra dp (pip install 'posterity[dp]')")
    found, plain = epsilon(z, delta, rounds, chance), renyi_bound(z, rounds, delta, chance)
    assert 0.6 * plain < found <= plain * (1 + 1e-9)
    assert found < epsilon(z, delta, rounds)


def delta_of_losses(eps, rounds, branches):
    """δ of so many rounds, of which an onlooker sees the branch: (chance, P, Q, chance that nothing is made)."""
    x, bins, width = np.linspace(-13, 14, 200_001), 2**17, 4e-3
    losses = np.zeros(bins)
    for chance, p, q, nothing in branches:
        place = np.round((np.log(p(x)) - np.log(q(x))) / width).astype(int)
        np.add.at(losses, place % bins, chance * p(x) * (x[1] - x[0]))
        losses[0] += chance * nothing
    total = np.fft.irfft(np.fft.rfft(losses) ** rounds, bins)
    loss = width * np.where(np.arange(bins) > bins // 2, np.arange(bins) - bins, np.arange(bins))
    return float((total * (1 - np.exp(np.minimum(eps - loss, 0)))).sum())


@pytest.mark.parametrize(("rounds", "chance", "clients"), [(300, 0.01, 100), (100, 0.05, 20), (100, 0.25, 20)])
def test_epsilon_holds_for_who_knows_who_else_came(rounds, chance, clients):
    """A round that nobody joined adds no noise: the losses of all rounds, added up on a grid, hold the promise."""
    pytest.importorskip("dp_accounting", reason="ε needs the extra dp (pip install 'posterity[dp]')")
    delta, alone = clients**-1.1, (1 - chance) ** (clients - 1)

    def still(x):
        return norm.pdf(x)

    def sampled(x):
        return chance * norm.pdf(x, 1) + (1 - chance) * norm.pdf(x)

    by_itself = (alone, lambda x: chance * norm.pdf(x, 1), lambda x: chance * norm.pdf(x), 1 - chance)
    branches = ((1 - alone, sampled, still, 0.0), by_itself)
    found = epsilon(1.0, delta, rounds, chance, clients)
    assert delta_of_losses(found, rounds, branches) <= delta
    assert delta_of_losses(found / 2, rounds, branches) > delta
    assert epsilon(1.0, delta, rounds, chance) < found <= epsilon(1.0, delta, rounds)
    if chance * clients < 5:
        assert delta_of_losses(epsilon(1.0, delta, rounds, chance), rounds, branches) > delta  # noise every round


@pytest.mark.parametrize("clients", [2, 20])
def test_epsilon_of_a_round_that_may_be_empty_is_5(clients):
    """The mixture by hand, converted by the library."""
    rdp = pytest.importorskip("dp_accounting.rdp", reason="ε needs the extra dp (pip install 'posterity[dp]')")
    dp = pytest.importorskip("dp_accounting")
    z, rounds, chance, delta = 2.0, 7, 0.2, 1e-3
    sampled = rdp.RdpAccountant()
    sampled.compose(dp.PoissonSampledDpEvent(chance, dp.GaussianDpEvent(z)))
    orders, b = [a for a in sampled.orders if a < 60], (1 - chance) ** (clients - 1)
    each = []
    for a, hidden in zip(orders, sampled.rdp, strict=False):
        seen = 1 - chance + chance * math.exp((a - 1) * a / (2 * z**2))
        each.append(rounds * math.log(b * seen + (1 - b) * math.exp((a - 1) * hidden)) / (a - 1))
    expected = rdp.compute_epsilon(orders, each, delta)[0]
    assert epsilon(z, delta, rounds, chance, clients) == pytest.approx(expected, rel=1e-9)
