"""FedEP: the specification's numbers (baselines, §4.2 and Q2), and several rounds in plain arithmetic."""

from dataclasses import replace

import pytest
import torch
from torch.func import vmap

from posterity.core.gaussian import Gaussian
from posterity.core.passes import Training
from posterity.core.protocol import Batch
from posterity.core.random import fold, make_key
from posterity.engine.round import receive
from posterity.methods.fedep import ClientFactor, FedEP, fisher, taken_out
from posterity.methods.fedprox import FedProx

from .sims import (
    DOUBLE,
    ORACLE,
    STACKED,
    WEIGHT,
    Run,
    at,
    full_batch,
    mlp,
    points,
    q2,
    quadratics,
    scalar_model,
    worst,
)

PLAIN = {"burn_rounds": 0, "server_lr": 1.0, "server_momentum": 0.0}
EXACT = {**PLAIN, "precision": "laplace", "damping": 1.0, "fisher_epochs": 1}


def solved(steps, lr):
    """Local solutions: the last of many iterates."""
    return Training(lr=lr, steps=steps, batch=10_000)


def test_o01_one_exact_sweep_is_the_product():
    """Q2: N(2.4, 1/5) whatever λ̄; the sites are the clients' own factors. 25 steps leave 0.6^25 = 3e-6 of the way."""
    run = Run(FedEP(solved(25, 2 / 5.1), **EXACT), q2(), scalar_model(), initial=at(0.0))
    assert run.rounds(1).scalar() == pytest.approx(2.4, abs=1e-5)
    assert float(run.state.precision[WEIGHT]) == pytest.approx(5.0, abs=1e-12)
    sites = run.store.rows.factors[WEIGHT]
    assert sites.precision.flatten().tolist() == pytest.approx([1, 4], abs=1e-12)
    assert sites.shift.flatten().tolist() == pytest.approx([0, 12], abs=1e-4)


def test_o02_with_a_prior():
    """q = N(0, 1) and sites that say nothing: N(2, 1/6) after one sweep; 20 steps leave (3/7)^20 = 4e-8."""
    run = Run(FedEP(solved(20, 2 / 7), **EXACT), q2(), scalar_model(), initial=at(0.0))
    one = torch.ones(1, 1, dtype=DOUBLE)
    run.state = replace(run.state, params={WEIGHT: 0 * one}, precision={WEIGHT: one})
    nothing = Gaussian(torch.zeros(2, 1, 1, dtype=DOUBLE), torch.zeros(2, 1, 1, dtype=DOUBLE))
    run.store.write(torch.arange(2), ClientFactor({WEIGHT: nothing}, (), torch.ones(2, dtype=DOUBLE)))
    assert run.rounds(1).scalar() == pytest.approx(2.0, abs=1e-6)
    assert float(run.state.precision[WEIGHT]) == pytest.approx(6.0, abs=1e-12)


def test_o03_diagonal_factors_of_correlated_clients():
    """Moments matched one client after the other, from sites that say nothing, by the formulas of the method."""
    means = torch.tensor([[7, -10.6], [0.2, 2.24]], dtype=DOUBLE)
    dense = torch.linalg.inv(
        torch.tensor([[[11, -5.3], [-5.3, 3.5]], [[5, 4.9], [4.9, 5.5]]], dtype=DOUBLE)
    )  # precisions
    shifts = (dense @ means[..., None])[..., 0]
    method, empty = FedEP(**PLAIN), Gaussian(torch.zeros(2, dtype=DOUBLE), torch.zeros(2, dtype=DOUBLE))
    q, sites, seen = {"θ": empty}, [{"θ": empty}, {"θ": empty}], []
    for _ in range(30):
        for k in (0, 1):
            cavity = taken_out(q, sites[k])["θ"]
            spread = torch.linalg.inv(dense[k] + torch.diag(cavity.precision))
            mean, precision = spread @ (shifts[k] + cavity.shift), 1 / spread.diagonal()
            step = {"θ": Gaussian.of(mean, precision) - q["θ"]}
            (q, _), (sites[k], _) = method.moved(q, (), step), method.moved(sites[k], (), step)
        seen.append(q["θ"].mean().tolist())
    assert seen[0] == pytest.approx([-4.378248, -3.635586], abs=5e-7)
    exact = torch.linalg.solve(dense.sum(0), shifts.sum(0)).tolist()
    assert exact == pytest.approx([-4.756952, -3.601535], abs=5e-7)
    assert seen[-1] == pytest.approx(exact, abs=5e-7)
    assert q["θ"].precision.tolist() == pytest.approx([0.838286, 1.091328], abs=5e-7)


def test_o04_fedsep_with_identity_is_fedprox_of_equal_clients():
    """λ̄(N − n)/n = 0.05 · 16/8 = 0.1 for three clients of 8; Λ stays λ̄N = 1.2."""
    federation = points((8, 8, 8))
    model, how = mlp(federation, norm=True), Training(lr=0.1, batch=4)
    runs = [Run(m, federation, model).rounds(2) for m in (FedEP(how, sites=False, **PLAIN), FedProx(how, mu=0.1))]
    assert worst(runs[0].state.params, runs[1].state.params) < 1e-12
    assert all(torch.allclose(p, torch.full_like(p, 1.2), atol=1e-13) for p in runs[0].state.precision.values())
    assert runs[0].logs[1].loss == pytest.approx(runs[1].logs[1].loss, abs=1e-12)


def test_o05_its_fixed_point_is_fedproxs_and_that_of_sites_the_optimum():
    """λ̄ = 1 on Q2: µ = 1, so 1.8461538 with exact local solutions; with sites 2.4."""
    method = FedEP(solved(22, 2 / 7), sites=False, identity=1.0, **PLAIN)
    run = Run(method, q2(), scalar_model(), initial=at(1.8461538)).rounds(1)
    assert run.scalar() == pytest.approx(1.8461538, abs=5e-8)
    for sites, limit in ((True, 2.4), (False, 1.8461538)):  # the plain arithmetic that test_o06 compares with
        ends = reference(300, (1, 1), 40, 0.3, 1.0, sites, 0, 1.0, 0.0, mean=False)
        assert ends[-1][0] == pytest.approx(limit, abs=1e-6)


def reference(rounds, sizes, steps, lr, lam, sites, burn, rate, momentum, damping=None, decay=0.0, mean=True):
    """FedEP with 'identity' on two quadratics in plain numbers: µ, Λ and the shifts of the sites after each round."""
    total = sum(sizes)
    mu, big, speed, found = 1.0, lam * total, [0.0, 0.0], []
    own, own_speed = [None, None], [[0.0, 0.0], [0.0, 0.0]]
    for r in range(1, rounds + 1):
        late, changes = r > burn, []
        speed = [0.0, 0.0] if r == burn + 1 else speed
        for k, (a, c) in enumerate(((1.0, 0.0), (4.0, 3.0))):
            n = sizes[k]
            eta, prec = own[k] if sites and own[k] else (n / total * big * mu, n / total * big)
            theta, ends = mu, []
            for _ in range(steps):
                slope = a * (theta - c) + decay * theta
                if late:
                    slope += ((big - prec) * (theta - mu) + eta - prec * mu) / n
                theta -= lr * slope
                ends.append(theta)
            x = sum(ends) / steps if late and mean else theta
            new = big - prec + lam * n if late else big
            changes.append((new * x - big * mu, new - big))
            if sites and late:
                d = damping or 1 / 2
                own_speed[k] = [momentum * v + d * z for v, z in zip(own_speed[k], changes[k], strict=True)]
                own[k] = tuple(p + rate * v for p, v in zip((eta, prec), own_speed[k], strict=True))
        weights = [damping or 1 / 2] * 2 if late else [n / total for n in sizes]
        step = [sum(w * z[i] for w, z in zip(weights, changes, strict=True)) for i in (0, 1)]
        speed = [momentum * v + z for v, z in zip(speed, step, strict=True)]
        eta, big = big * mu + rate * speed[0], big + rate * speed[1]
        mu = eta / big
        found.append((mu, big, [s[0] if s else 0.0 for s in own]))
    return found


CASES = [
    (True, 1, 0.5, 0.9, None, 0.0, STACKED),
    (True, 2, 0.5, 0.9, None, 0.0, STACKED),
    (True, 0, 1.0, 0.0, 0.25, 0.3, ORACLE),
    (False, 1, 0.5, 0.9, None, 0.0, STACKED),
    (False, 0, 1.0, 0.0, 0.25, 0.0, STACKED),
]


@pytest.mark.parametrize(("sites", "burn", "rate", "momentum", "damping", "decay", "engine"), CASES)
def test_o06_three_rounds_of_plain_arithmetic(sites, burn, rate, momentum, damping, decay, engine):
    """Sizes 1 and 3; burn-in weighs by samples, and neither pulls nor touches a site in rounds 1 … burn."""
    method = FedEP(full_batch(3, 0.05, weight_decay=decay), sites, identity=0.5, burn_rounds=burn, server_lr=rate,
                   server_momentum=momentum, damping=damping)  # fmt: skip
    run = Run(method, quadratics([1.0, 4.0], [0.0, 3.0], [1, 3]), scalar_model(), engine, at(1.0))
    for mu, precision, shifts in reference(3, (1, 3), 3, 0.05, 0.5, sites, burn, rate, momentum, damping, decay):
        assert run.rounds(1).scalar() == pytest.approx(mu, abs=1e-12)
        assert float(run.state.precision[WEIGHT]) == pytest.approx(precision, abs=1e-12)
        if sites:
            assert run.store.rows.factors[WEIGHT].shift.flatten().tolist() == pytest.approx(shifts, abs=1e-12)


def test_o07_the_fisher_information_is_unbiased():
    """Σ_i Σ_c p_c (∂ log p_c)² of a small batch, against the mean of 6000 draws: five standard errors."""
    federation = points((3,), inputs=2)
    model = mlp(federation, hidden=(3,))
    run = Run(FedEP(), federation, model)
    _, here = receive(run.sim, run.state, run.store, 0, 1)
    params, x, mask = run.sim.initial, federation.x[:4], torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=DOUBLE)
    batch, root = Batch(x, federation.y[:4], mask), make_key(7)
    found = vmap(lambda key: fisher(params, batch, type(here)(**{**vars(here), "key": key})))(
        fold(root, torch.arange(6000))
    )
    for name in params:
        exact = torch.zeros_like(params[name])
        for row in x[:3]:
            for c in range(3):
                leaf = params[name].clone().requires_grad_()
                log = model({**params, name: leaf}, row[None])[0].log_softmax(-1)[0, c]
                exact += log.exp().detach() * torch.autograd.grad(log, leaf)[0] ** 2
        error = found[name].std(0) / 6000**0.5
        assert bool(((found[name].mean(0) - exact).abs() <= 5 * error + 1e-12).all()), name


def q_and_sites(cohorts, burn, momentum, steps, rounds):
    """FedEP on Q2: µ after rounds with these cohorts and more rounds with both clients, and η − Σ_k η_k."""
    method = FedEP(solved(steps, 2 / 7), identity=1.0, burn_rounds=burn, server_lr=0.5, server_momentum=momentum)
    run = Run(method, q2(), scalar_model(), initial=at(1.0))
    for cohort in cohorts:
        run.rounds(1, cohort)
    run.rounds(rounds)
    q = run.state.params[WEIGHT] * run.state.precision[WEIGHT]
    return run.scalar(), float(q - run.store.rows.factors[WEIGHT].shift.sum())


CLIENTS = [([], 1, 0.9), ([], 3, 0.9), ([[1]], 0, 0.0), ([[1]] * 5, 0, 0.0), ([[0], [1]], 1, 0.0)]


@pytest.mark.parametrize(("cohorts", "burn", "momentum"), CLIENTS)
def test_o08_q_is_the_product_of_the_sites(cohorts, burn, momentum):
    """Whatever momentum burn-in ends with, and whenever a client is first met."""
    assert q_and_sites(cohorts, burn, momentum, 3, burn + 3)[1] == pytest.approx(0, abs=1e-12)


@pytest.mark.everything
@pytest.mark.parametrize(("cohorts", "burn", "momentum"), CLIENTS)
def test_o08_so_it_ends_at_the_optimum(cohorts, burn, momentum):
    """λ̄ = 1 on Q2: 2.4. A momentum that burn-in hands on moved it to 5.1 or 5.26, a late client to 2.28 or 1.92."""
    assert q_and_sites(cohorts, burn, momentum, 22, 250)[0] == pytest.approx(2.4, abs=2e-3)
