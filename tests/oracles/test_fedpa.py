"""FedPA: the specification's oracles (baselines, §4.1 and Q2), on the functions the engine runs."""

import pytest
import torch
from torch.func import vmap

from posterity.core.messages import Mean, fold_stack
from posterity.core.passes import Training
from posterity.core.protocol import Now
from posterity.engine import keys
from posterity.engine.blocks import receive_stack
from posterity.engine.engines import ORACLE
from posterity.methods.fedpa import FedPA, State, flattened, posterior_delta, restored

from .sims import DOUBLE, WEIGHT, Run, at, each_engine, full_batch, mlp, points, q2, scalar_model

FOUR = torch.tensor([[1, 0], [0, 2], [2, 1], [3, -1]], dtype=DOUBLE)
NOW = Now(1, 1, torch.zeros(2, dtype=torch.int64), 2)


def dense(samples, w, rho):
    """Σ̂⁻¹(x̄ − w) by forming Σ̂."""
    share, size = 1 / (1 + (len(samples) - 1) * rho), samples.shape[1]
    spread = torch.cov(samples.T).reshape(size, size) if len(samples) > 1 else torch.zeros(size, size, dtype=DOUBLE)
    return torch.linalg.solve(share * torch.eye(size, dtype=DOUBLE) + (1 - share) * spread, samples.mean(0) - w)


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


@pytest.mark.parametrize(("rho", "expected"), [(0.0, (-1.5, -0.5)), (0.1, (-1.523923, -0.839713)), (1.0, (-2.2, -1.8))])
def test_o01_four_samples(rho, expected):
    """The specification prints w − x̄; ours is the negative."""
    delta = posterior_delta(FOUR, torch.ones(4, dtype=DOUBLE), torch.zeros(2, dtype=DOUBLE), rho)
    assert (-delta).tolist() == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize("rho", [0.0, 0.01, 0.4, 5.0])
def test_o02_programme_is_the_dense_solve(rho):
    samples, w = random(6, 10), random(10, seed=1)
    delta = posterior_delta(samples, torch.ones(6, dtype=DOUBLE), w, rho)
    assert torch.allclose(delta, dense(samples, w, rho), atol=1e-14, rtol=1e-13)


@pytest.mark.parametrize("filled", [(0, 1, 0, 1, 1, 0), (1, 0, 0, 0, 0, 1), (0, 0, 1, 0, 0, 0), (1, 1, 1, 1, 1, 1)])
def test_o02_empty_blocks_are_skipped(filled):
    """Also under `vmap`, where every client has its own gaps."""
    samples, w, mask = random(6, 10), random(10, seed=1), torch.tensor(filled, dtype=DOUBLE)
    expected = dense(samples[mask > 0], w, 0.4)
    delta = posterior_delta(samples * mask[:, None], mask, w, 0.4)
    assert torch.allclose(delta, expected, atol=1e-14, rtol=1e-13)
    other = torch.ones_like(mask)
    both = vmap(lambda s, m: posterior_delta(s, m, w, 0.4))(torch.stack((samples, samples)), torch.stack((other, mask)))
    assert torch.allclose(both[1], expected, atol=1e-14, rtol=1e-13)


def test_o03_one_sample_is_its_delta_and_none_is_fedavgs():
    samples, w, last, late = random(4, 3), random(3, seed=1), random(3, seed=2), torch.tensor(8)
    one, none = torch.tensor([0, 0, 1, 0], dtype=DOUBLE), torch.zeros(4, dtype=DOUBLE)
    method = FedPA(burn_rounds=7, rho=0.5)
    assert torch.equal(method.delta(last, samples, one, w, late), samples[2] - w)
    assert torch.equal(method.delta(last, samples, none, w, late), last - w)
    assert not posterior_delta(samples, none, w, 0.5).any()
    assert torch.equal(method.delta(last, samples, one, w, torch.tensor(7)), last - w)  # still burning in


def test_o04_a_large_rho_inverts_the_sample_covariance():
    samples, w = random(40, 3), random(3, seed=1)
    expected = torch.linalg.solve(torch.cov(samples.T), samples.mean(0) - w)
    delta = posterior_delta(samples, torch.ones(40, dtype=DOUBLE), w, 1e6)  # 1e9 would lose nine of sixteen digits
    assert torch.allclose(delta, expected, rtol=1e-7)


def with_moments(mean, variance, rho, count=5):
    """`count` numbers of this mean for which ρ_ℓ + (1 − ρ_ℓ) S is exactly `variance` (…, 1)."""
    share = 1 / (1 + (count - 1) * rho)
    spread = ((variance - share) / (1 - share)) ** 0.5
    base = torch.linspace(-1, 1, count, dtype=DOUBLE)
    return (mean + spread * base / base.std())[:, None]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_o05_q2_with_exact_covariance_goes_to_the_global_optimum(momentum):
    """Posteriors N(0, 1) and N(3, 1/4): Δ = A(m − w) is minus the gradient of f_k, so the fixed point is θ* = 2.4.

    From w = 0 with η_s = 0.1: Δ = (0, 12), w = 0.1 · 6 = 0.6, as one step of centralised descent.
    """
    method, rho, full = FedPA(rho=1.0, server_lr=0.1, server_momentum=momentum, burn_rounds=0), 1.0, torch.ones(5)
    clouds = [with_moments(0.0, 1.0, rho), with_moments(3.0, 0.25, rho)]
    state, seen = State(at(0.0), at(0.0)), []
    for _ in range(120):
        w = state.params[WEIGHT].flatten()
        deltas = [method.delta(w, x, full.double(), w, torch.tensor(1)) for x in clouds]
        sent = {"delta": Mean(torch.ones(2, dtype=DOUBLE), {WEIGHT: torch.stack(deltas)[..., None]})}
        state = method.combine(state, fold_stack(sent), NOW)
        seen.append(float(state.params[WEIGHT]))
    assert seen[0] == pytest.approx(0.6, abs=1e-12)
    assert seen[-1] == pytest.approx(2.4, abs=1e-12)


@each_engine
def test_o06_q2_by_hand_through_the_engine(engine):
    """Three stretches of one step, the first for mixing, ρ = 1, so ρ_2 = ½; η = 0.1, from w = 1, η_s = 1.

    Client 1: θ = 0.9, 0.81, 0.729: x = (0.81, 0.729), x̄ = 0.7695, S = 0.081²/2 = 0.0032805.
    Client 2: θ − 3 = −2 · 0.6^t: −1.2, −0.72, −0.432: x̄ = 2.424, S = 0.288²/2 = 0.041472.
    Δ = (x̄ − 1) / (½ + ½ S).
    """
    deltas = [(0.7695 - 1) / (0.5 + 0.5 * 0.0032805), (2.424 - 1) / (0.5 + 0.5 * 0.041472)]
    method = FedPA(full_batch(3), rho=1.0, samples=2, burn=1, burn_rounds=0, server_lr=1.0, server_momentum=0.0)
    run = Run(method, q2(), scalar_model(), engine, at(1.0)).rounds(1)
    assert run.scalar() == pytest.approx(1 + sum(deltas) / 2, abs=1e-12)


def test_o07_the_engines_samples_give_the_dense_solve():
    """Clients of 23, 3 and 1 samples: 6, 1 and 1 steps in 4 + 1 stretches; the last two have no sample."""
    federation = points((23, 3, 1))
    model = mlp(federation)
    method = FedPA(Training(lr=0.1, batch=4), rho=0.3, burn_rounds=0)
    run = Run(method, federation, model)
    here, _ = receive_stack(run.sim, ORACLE, run.state, run.store, torch.arange(3), 1)
    carries = ORACLE.work(run.sim, method.passes(), ORACLE.start(run.sim, here), here, keys.TRAIN)
    sent = ORACLE.visit(run.sim, method.passes(), here).message
    assert [c.kept["filled"].tolist() for c in carries] == [[1] * 5, [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]]
    w = flattened(run.state.params)
    for k, carry in enumerate(carries):
        mine = flattened({n: leaf[k] for n, leaf in sent["delta"].value.items()})
        rows = flattened(carry.kept["samples"], 1)[1:][carry.kept["filled"][1:] > 0]
        expected = dense(rows, w, 0.3) if len(rows) else flattened(carry.params) - w
        assert torch.allclose(mine, expected, atol=1e-13)


def test_leaves_as_a_vector_and_back():
    leaves = {"a": random(2, 3), "b": random(4, seed=1), "c": random(1, 1, 2, seed=2)}
    back = restored(flattened(leaves), leaves)
    assert list(back) == list(leaves)
    assert all(torch.equal(back[n], leaves[n]) for n in leaves)
