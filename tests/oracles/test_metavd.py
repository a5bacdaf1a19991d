"""MetaVD's numbered oracles: precision weights, divergence, noise, hyper-network step, schedule, reductions."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from posterity.core.messages import Mean
from posterity.core.optim import SGD
from posterity.core.passes import Training
from posterity.core.protocol import Carry
from posterity.core.random import make_key, normal
from posterity.core.tree import tree_rows
from posterity.data.partition import dirichlet
from posterity.engine.round import train_round
from posterity.evaluate import per_client
from posterity.evaluate.scores import score
from posterity.methods.fedavg import FedAvg
from posterity.methods.maml import MAML
from posterity.methods.reptile import Reptile
from posterity.methods.wrappers.metavd import RHO, MetaVD, dropout
from posterity.methods.wrappers.metavd.hypernet import Predictor

from .sims import DOUBLE, Run, each_engine, leaves, mlp, points, same_bits, worst

TRAINING = Training(lr=0.1, batch=4)
SMALL = {"width": 5, "depth": 2}


def doubles(*values):
    return torch.tensor(values, dtype=DOUBLE)


def pooled(theta, rho, weight, form="log_variance"):
    """Eq. 5 for a stack of clients: the mean, and its precision Σ g/v."""
    total = dropout.pooled(theta, rho, weight, form)
    _, least = dropout.precision_weights(weight, dropout.log_variance(rho, theta, form))
    return total.value, total.weight * (-least).exp()


# --- aggregation -----------------------------------------------------------------------------------------------------
def test_o01_constant_variance_is_fedavg():
    theta, weight = normal(make_key(1), (5, 4, 3), DOUBLE), doubles(3, 1, 4, 1, 5)
    for level in (-8.5, -3.0, 0.7):
        found, _ = pooled(theta, torch.full_like(theta, level), weight)
        assert torch.equal(found, Mean.fold(Mean(weight, theta)).value)  # in every bit, so well within 1e-7


def test_o02_by_hand():
    """(.5·.5/.1 + .3·1/.2 − .2·.2/.4) / (5 + 1.5 + .5) = 3.9/7; FedAvg 0.51."""
    theta, v, g = doubles(0.5, 1, -0.2)[:, None], doubles(0.1, 0.2, 0.4)[:, None], doubles(0.5, 0.3, 0.2)
    assert float(pooled(theta, v.log(), g)[0]) == pytest.approx(3.9 / 7, abs=1e-9)
    assert float(pooled(theta, (v / theta**2).log(), g, "alpha")[0]) == pytest.approx(0.557142857, abs=1e-9)
    assert float((g[:, None] * theta).sum()) == pytest.approx(0.51, abs=1e-12)


@pytest.mark.parametrize(("theta", "found"), [((0.5, 1), 0.6), ((0.01, 1), 0.0101), ((-0.2, 1), -0.1538461538)])
def test_o03_equal_alphas_favour_small_weights(theta, found):
    """M5: weights 1/θ². Also EnsembleVD's oracle: θ = (1, 3) gives weights .9 and .1, so 1.2."""
    value, _ = pooled(doubles(*theta)[:, None], doubles(0.3, 0.3)[:, None], doubles(1, 1), "alpha")
    expected = sum(1 / t for t in theta) / sum(1 / t**2 for t in theta)
    assert float(value) == pytest.approx(expected, abs=1e-12)
    assert float(value) == pytest.approx(found, abs=1e-4)
    other, _ = pooled(doubles(1, 3)[:, None], doubles(0, 0)[:, None], doubles(1, 1), "alpha")
    assert float(other) == pytest.approx(1.2, abs=1e-12)


@pytest.mark.parametrize("form", dropout.FORMS)
def test_o04_identical_clients_are_left_alone(form):
    theta, rho = normal(make_key(1), (4, 3), DOUBLE), normal(make_key(2), (4, 3), DOUBLE)
    found, _ = pooled(theta.repeat(7, 1, 1), rho.repeat(7, 1, 1), torch.arange(1, 8, dtype=DOUBLE), form)
    torch.testing.assert_close(found, theta, rtol=1e-14, atol=1e-14)


def test_o14_order_and_halves_do_not_matter():
    theta, rho, weight = (
        normal(make_key(1), (5, 6), DOUBLE),
        normal(make_key(2), (5, 6), DOUBLE),
        doubles(3, 1, 4, 1, 5),
    )
    found, _ = pooled(theta, rho, weight)
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(pooled(theta[order], rho[order], weight[order])[0], found, rtol=1e-13, atol=1e-13)
    split = torch.tensor([0, 1, 2, 3, 4, 4])
    halves = doubles(3, 1, 4, 1, 2.5, 2.5)
    torch.testing.assert_close(pooled(theta[split], rho[split], halves)[0], found, rtol=1e-13, atol=1e-13)


def test_o15_precision_is_that_of_the_product():
    theta, rho = normal(make_key(1), (5, 6), DOUBLE), normal(make_key(2), (5, 6), DOUBLE)
    mean, precision = pooled(theta, rho, torch.ones(5, dtype=DOUBLE))
    exact = (-rho).exp().sum(0)
    torch.testing.assert_close(precision, exact, rtol=1e-9, atol=0)
    torch.testing.assert_close(mean, ((-rho).exp() * theta).sum(0) / exact, rtol=1e-9, atol=1e-12)


# --- divergence and noise --------------------------------------------------------------------------------------------
KL = {0.1: 1.198948, 0.25: 0.804719, 1: 0.346574, 4: 0.111572, 9: 0.052680, 0.01: 2.3075603, 100: 0.0049752}


@pytest.mark.parametrize("alpha", KL)
def test_o05_divergence_is_the_least_gaussian_one(alpha):
    theta = doubles(0.3)
    v = alpha * theta**2
    gamma = (theta**2 * (1 + alpha)) * torch.linspace(0.9, 1.1, 201, dtype=DOUBLE)
    gaussian = 0.5 * ((v + theta**2) / gamma - 1 - (v / gamma).log())
    assert int(gaussian.argmin()) == 100  # γ* = θ²(1 + α)
    for found in (dropout.divergence(v.log(), theta), dropout.divergence(doubles(alpha).log(), theta, "alpha")):
        assert float(found) == pytest.approx(float(gaussian.min()), abs=1e-12)
        assert float(found) == pytest.approx(KL[alpha], abs=1e-6)


@pytest.mark.parametrize("alpha", [0.05, 0.5, 2.0, 20.0])
def test_o05_log_uniform_prior_against_quadrature(alpha):
    """KL = E log|ε| − ½ log α + ½(log 2 + γ_Euler) for ε ~ N(1, α), 0 for α → ∞; Molchanov's fit is within 0.01."""
    z = (np.arange(400_000) + 0.5) / 20_000 - 10
    density = np.exp(-(z**2) / 2) / (2 * np.pi) ** 0.5 / 20_000
    mean_log = float((density * np.log(np.abs(1 + alpha**0.5 * z))).sum())
    expected = mean_log - 0.5 * np.log(alpha) + 0.5 * (np.log(2) + np.euler_gamma)
    found = float(dropout.divergence(doubles(alpha).log(), doubles(1.0), "alpha", "log_uniform"))
    assert found == pytest.approx(expected, abs=0.01)


def test_o06_slope_of_the_divergence():
    """−½ θ²/(θ² + v): −0.3214285714 at θ = .3, v = .05; and none for θ."""
    rho, theta = doubles(0.05).log().requires_grad_(), doubles(0.3).requires_grad_()
    (slope,) = torch.autograd.grad(dropout.divergence(rho, theta).sum(), rho)
    assert float(slope) == pytest.approx(-0.3214285714, abs=1e-9)
    assert not dropout.divergence(rho.detach(), theta).requires_grad


def test_o07_local_reparametrisation():
    """Mean .3 − .2 − .2 = −.1; variance Σ x²αθ² = .0225 + .04 + .16 = .2225, exactly and by 400,000 draws."""
    x, theta = doubles(1, -2, 0.5)[None], doubles(0.3, 0.1, -0.4)[None]
    v = dropout.variance(doubles(0.25, 1, 4).log()[None], theta, "alpha")
    mean = x @ theta.T
    assert float(mean) == pytest.approx(-0.1, abs=1e-15)
    assert float(x**2 @ v.T) == pytest.approx(0.2225, abs=1e-15)
    many = dropout.perturbed(x.expand(400_000, -1), mean.expand(400_000, -1), v, make_key(7))
    assert float(many.mean()) == pytest.approx(-0.1, abs=4 * (0.2225 / 400_000) ** 0.5)
    assert float(many.var()) == pytest.approx(0.2225, abs=4 * 0.2225 * (2 / 400_000) ** 0.5)
    one = dropout.perturbed(x, mean, v, make_key(7))
    assert float(one) == pytest.approx(float(mean + 0.2225**0.5 * normal(make_key(7), (1, 1), DOUBLE)), abs=1e-15)


def test_o07_no_input_no_noise_and_no_nan():
    x = torch.zeros(2, 3, dtype=DOUBLE, requires_grad=True)
    out = dropout.perturbed(x, x.sum(1, keepdim=True), torch.ones(1, 3, dtype=DOUBLE), make_key(0))
    (slope,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(slope, torch.ones_like(x))


def test_o11_dropout_rate():
    for alpha, p in ((0.25, 0.2), (4, 0.8), (9, 0.9)):
        assert float(dropout.rate(doubles(alpha).log(), doubles(0.3), "alpha")) == pytest.approx(p, abs=1e-12)
        assert float(dropout.rate(doubles(alpha * 0.09).log(), doubles(0.3))) == pytest.approx(p, abs=1e-12)
    assert float(dropout.rate(doubles(-1.0), doubles(0.0))) == 1


OUTPUTS = [  # of the hyper-network, a weight, what ρ is the logarithm of
    (0.0, 0.3, "alpha"), (8.5, -0.7, "alpha"), (9.6, 0.01, "alpha"), (10.7, 2.0, "alpha"), (15.25, 0.3, "alpha"),
    (17.0, 1e-3, "alpha"), (40.0, 0.3, "alpha"), (-6.0, 0.3, "alpha"),
    (0.0, 0.3, "log_variance"), (5.0, 0.02, "log_variance"), (8.5, 0.25, "log_variance"), (40.0, 3.0, "log_variance"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "theta", "form"), OUTPUTS)
def test_rate_and_divergence_of_an_output(raw, theta, form):
    """ρ = raw − 8.5, used from −8.5 on, and up to log v = 0 or log α = 8.5: so p goes up to 0.9998 in both forms."""
    net = {"0.weight": torch.zeros(1, 2, dtype=DOUBLE), "0.bias": doubles(raw)}
    asked = replace(predictor(), form=form)
    rho = asked.ask(net, doubles(0.4, -1.0), torch.Size([1]))
    used = max(-8.5, min(raw - 8.5, 8.5 if form == "alpha" else 0.0))
    alpha = math.exp(used) / (1 if form == "alpha" else theta**2)
    assert float(dropout.rate(rho, doubles(theta), form)) == pytest.approx(alpha / (1 + alpha), rel=1e-12)
    found = dropout.divergence(rho, doubles(theta), form)
    assert float(found) == pytest.approx(0.5 * math.log((1 + alpha) / alpha), rel=1e-9)
    assert float(dropout.variance(rho, doubles(theta), form)) == pytest.approx(alpha * theta**2, rel=1e-12)


def test_the_range_of_log_v_is_the_released_one():
    """In every bit: clamp(h, −8.5, 8.5) − 8.5."""
    raw = 12 * normal(make_key(2), (500,), DOUBLE)
    assert torch.equal(dropout.centred(raw), raw.clamp(-8.5, 8.5) - 8.5)
    assert float(dropout.centred(raw, "alpha").max()) == 8.5 == float(dropout.centred(doubles(17.0), "alpha"))


def test_weights_with_rates_above_one_half_count_as_little_as_they_should():
    """(5) with α = 9 and 1/4 at θ = 0.2 and −0.3: weights g/(αθ²); the floor for newcomers, α of e̅ if they ask."""
    theta, alpha, g = (0.2, -0.3), (9.0, 0.25), (2.0, 1.0)
    weights = [n / (a * t * t) for n, a, t in zip(g, alpha, theta, strict=True)]
    expected = sum(w * t for w, t in zip(weights, theta, strict=True)) / sum(weights)
    stack = doubles(*theta)[:, None], doubles(*alpha).log()[:, None], doubles(*g)
    assert float(pooled(*stack, "alpha")[0]) == pytest.approx(expected, abs=1e-14)
    asked, weight = replace(predictor(), form="alpha"), torch.zeros(2, 1, dtype=DOUBLE)
    source = asked.first(weight, 4, make_key(0))
    net = {n: torch.zeros_like(p) for n, p in source.net.items()}
    net["2.bias"] = doubles(9.0, 1.0).log() + 8.5
    served = [
        asked.serve(replace(source, net=net), None, weight.shape, noise)[0] for noise in ("floor", "mean_embedding")
    ]
    assert served[0].flatten().tolist() == [-8.5, -8.5]
    assert served[1].exp().flatten().tolist() == pytest.approx([9, 1], rel=1e-12)
    carry = dropout.quiet(RHO)(Carry({RHO: served[1]}, {}, ()), None)
    assert carry.params[RHO].flatten().tolist() == [-8.5, -8.5]


def test_o16_schedule():
    """2 % of 1,000 rounds."""
    rounds = (0, 7, 10, 20, 21, 999)
    found = [10 * dropout.ramp(r, 0.02 * 1000) for r in rounds]
    assert found == pytest.approx([0.0247, 1.4185, 5.0, 9.9753, 10, 10], abs=1e-4)
    assert [dropout.ramp(r, 0) for r in rounds] == [1] * 6


@each_engine
def test_o16_schedule_through_rounds(engine):
    """The share of β that clients are told in rounds 1, 8, 11, 21 and 22 of 1,000; with anneal = 0 all of it."""
    federation = points((5, 3))
    run = Run(MetaVD(FedAvg(TRAINING), **SMALL), federation, mlp(federation), engine)
    seen = {}
    for number in range(1, 23):
        own = engine.offer(run.sim, run.state, torch.tensor([0, 1]), 2)[1]
        seen[number] = 10 * float(tree_rows(own, 1).warmth)
        run.state, _ = train_round(run.sim, engine, run.state, run.store, torch.tensor([0, 1]), number, 1000)
    picked = [seen[r] for r in (1, 8, 11, 21, 22)]
    assert picked == pytest.approx([0.0247, 1.4185, 5.0, 9.9753, 10], abs=1e-4)
    flat = Run(MetaVD(FedAvg(TRAINING), anneal=0.0, **SMALL), federation, mlp(federation), engine)
    assert float(flat.state.warmth) == 1 == float(flat.rounds(1).state.warmth)


# --- reductions ------------------------------------------------------------------------------------------------------
def silent(method, **how):
    """No noise and no divergence."""
    return MetaVD(method, beta=0.0, draws=0, **{**SMALL, **how})


def constant(run):
    """The run with a hyper-network whose output is 0 for every client."""
    net = run.state.source.net
    last = max(int(n.split(".")[0]) for n in net)
    zero = {n: torch.zeros_like(p) if n.startswith(f"{last}.") else p for n, p in net.items()}
    run.state = replace(run.state, source=replace(run.state.source, net=zero))
    return run


@each_engine
@pytest.mark.parametrize("host", [FedAvg(TRAINING), Reptile(TRAINING), MAML(TRAINING)], ids=lambda h: h.label)
def test_o08_without_noise_and_divergence_it_is_its_host(engine, host):
    federation = points((9, 5, 1, 7))
    model = mlp(federation)
    plain = Run(host, federation, model, engine).rounds(3)
    wrapped = constant(Run(silent(host), federation, model, engine)).rounds(3)
    assert worst(plain.state.params, wrapped.state.params) < 1e-12
    for point in ("received", "adapted"):
        for a, b in zip(plain.outputs(point), wrapped.outputs(point), strict=True):
            assert float((a - b).abs().max()) < 1e-12


@each_engine
@pytest.mark.parametrize("family", ["ensemble", "naive"])
def test_o08_bitwise_in_float32(engine, family):
    """Tables start equal and decay equally. In float64 only the order of a sum of three differs."""
    federation = points((9, 5, 1, 7))
    model = mlp(federation)
    plain = Run(FedAvg(TRAINING), federation, model, engine, dtype=torch.float32).rounds(3)
    wrapped = Run(silent(FedAvg(TRAINING), family=family), federation, model, engine, dtype=torch.float32).rounds(3)
    assert same_bits(plain.state.params, wrapped.state.params)


def test_o08_in_order_of_size_every_bit_is_equal():
    federation = points((9, 7, 5, 1))
    plain = Run(FedAvg(TRAINING), federation, mlp(federation)).rounds(3)
    wrapped = constant(Run(silent(FedAvg(TRAINING)), federation, mlp(federation))).rounds(3)
    assert same_bits(plain.state.params, wrapped.state.params)


# --- hyper-network ---------------------------------------------------------------------------------------------------
def predictor(lr=1.0, decay=0.0, clip=None, momenta=(0.0, 0.0)):
    movers = [SGD(lr, m, decay) for m in momenta]
    return Predictor("hyper", 3, 5, 2, movers[0], movers[1], clip)


@pytest.mark.parametrize("eta", [1.0, 0.9])
def test_o09_step_is_autograd(eta):
    """Of Σ_m g^m ⟨h_ψ(e^m), Δρ^m⟩ with Δρ held, and of one embedding at a time."""
    asked = predictor(eta)
    source = asked.first(torch.zeros(4, 2, dtype=DOUBLE), 6, make_key(0))
    clients, share, delta = torch.tensor([1, 4, 5]), doubles(0.5, 0.3, 0.2), normal(make_key(3), (3, 4, 2), DOUBLE)
    live = {n: p.clone().requires_grad_() for n, p in leaves(source).items() if not n.startswith("velocity")}
    net = {n.removeprefix("net/"): p for n, p in live.items() if n.startswith("net/")}
    rho = asked.ask(net, live["embedding"][clients], (4, 2))
    slopes = torch.autograd.grad((share[:, None, None] * rho * delta).sum(), list(live.values()))
    after = leaves(asked.step(source, clients, share, rho.detach() + delta))
    for (name, before), slope in zip(live.items(), slopes, strict=True):
        torch.testing.assert_close(after[name], before.detach() + eta * slope, rtol=1e-12, atol=1e-14)
    assert torch.equal(after["embedding"][[0, 2, 3]], source.embedding[[0, 2, 3]])


def test_o09_one_client_alone_and_momentum():
    """The second step's velocity is momentum × the first + the new slope, for met clients only."""
    asked = predictor(momenta=(0.6, 0.3))
    source = asked.first(torch.zeros(4, 2, dtype=DOUBLE), 6, make_key(0))
    clients, share = torch.tensor([2]), doubles(1.0)
    rho = asked.ask(source.net, source.embedding[clients], (4, 2)) + 0.1
    once = asked.step(source, clients, share, rho)
    again = asked.step(once, clients, share, asked.ask(once.net, once.embedding[clients], (4, 2)))
    move = once.embedding[2] - source.embedding[2]
    torch.testing.assert_close(again.embedding[2] - once.embedding[2], 0.3 * move, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(
        again.net["0.bias"] - once.net["0.bias"], 0.6 * (once.net["0.bias"] - source.net["0.bias"]), rtol=1e-9, atol=0
    )


def test_absent_clients_stay_or_are_moved_by_momentum_and_decay():
    """`moves = all`, as released: a client that is not asked again goes on along its last step, and decays."""
    for everybody in (False, True):
        asked = replace(predictor(momenta=(0.6, 0.3), decay=0.01), everybody=everybody)
        source = asked.first(torch.zeros(4, 2, dtype=DOUBLE), 6, make_key(0))
        rho = asked.ask(source.net, source.embedding[[2]], (4, 2)) + 0.1
        once = asked.step(source, torch.tensor([2]), doubles(1.0), rho)
        same = asked.ask(once.net, once.embedding[[4]], (4, 2))
        again = asked.step(once, torch.tensor([4]), doubles(1.0), same)
        first, second = source.embedding, once.embedding
        if everybody:
            velocity = 0.3 * (first[2] - second[2]) + 0.01 * second[2]
            torch.testing.assert_close(again.embedding[2], second[2] - velocity, rtol=1e-12, atol=1e-15)
            torch.testing.assert_close(second[0], 0.99 * first[0], rtol=1e-12, atol=0)
        else:
            assert torch.equal(again.embedding[[0, 2]], torch.stack((first[0], second[2])))


def test_what_decay_does_to_the_noise_of_an_ensemble():
    """Nobody asks for noise, and each client is met once in ten of 1,000 rounds."""
    for moves, end in (("all", -2.8), ("cohort", -7.6)):
        asked = MetaVD(FedAvg(), family="ensemble", moves=moves).predictor
        source = asked.first(torch.zeros(1, 1, dtype=DOUBLE), 10, make_key(0))
        for number in range(1000):
            one = torch.tensor([number % 10])
            source = asked.step(source, one, doubles(1.0), source.embedding[one][:, :, None])
        assert source.embedding.mean().item() == pytest.approx(end, abs=0.05)


def test_the_momentum_of_an_ensemble_is_that_of_its_noise():
    """ρ^m takes the place of ψ, whose momentum is 0.6; that of an embedding is 0.3."""
    asked = MetaVD(FedAvg(), family="ensemble", hyper_decay=0.0).predictor
    source, one = asked.first(torch.zeros(2, 1, dtype=DOUBLE), 3, make_key(0)), torch.tensor([1])
    once = asked.step(source, one, doubles(1.0), source.embedding[one][:, :, None] + 0.1)
    again = asked.step(once, one, doubles(1.0), once.embedding[one][:, :, None])
    moved = once.embedding[1] - source.embedding[1]
    torch.testing.assert_close(moved, torch.full_like(moved, 0.09))
    torch.testing.assert_close(again.embedding[1] - once.embedding[1], 0.6 * moved)


def test_o10_clients_that_do_not_move_leave_the_hyper_network_alone():
    for decay in (0.0, 5e-4):
        asked = predictor(decay=decay, clip=100.0)
        source = asked.first(torch.zeros(4, 2, dtype=DOUBLE), 6, make_key(0))
        clients = torch.arange(6)
        same = asked.ask(source.net, source.embedding[clients], (4, 2))
        after = asked.step(source, clients, torch.full((6,), 1 / 6, dtype=DOUBLE), same)
        for name, before in leaves((source.net, source.embedding)).items():
            assert torch.equal(leaves((after.net, after.embedding))[name], before - decay * before)


# --- MAML ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Straight(MetaVD):
    """In the given order of the samples, without aggregation: the message's Bag is read."""

    def passes(self):
        return tuple(replace(p, shuffle=False) for p in self.inner.passes())


@pytest.mark.parametrize("draws", [0, 3])
def test_o13_no_inner_step_is_reptile_on_the_query(draws):
    """Also of ρ, with the same draws: rows 1, 2, 4, 5 … of the batch are the query."""
    federation = points((9,))
    query = federation.train.rows[torch.arange(9) % 3 > 0]
    part = type(federation.train)(query, torch.tensor([0, len(query)]))
    fewer = type(federation)(**{**federation.__dict__, "train": part})
    training, model = Training(lr=0.1, batch=9), mlp(federation)
    how = {**SMALL, "draws": draws, "anneal": 0.0}
    meta = Straight(MAML(training, inner=0, server_lr=1.0, server_momentum=0.0), **how)
    plain = Straight(Reptile(training, 1.0, 0.0), **how)
    left, right = Run(meta, federation, model).rounds(1), Run(plain, fewer, model).rounds(1)
    assert worst(left.state, right.state) < 1e-12
    assert worst(left.state.params, left.sim.initial) > 1e-4


# --- calibration and partition, which live elsewhere -----------------------------------------------------------------
def test_o12_calibration_errors():
    """Four confidences in four bins: .3, .6, .5, .1, so 0.375 and 0.6. Flattened over ten bins: 0.1 and 0.5 (M9).

    The flattened numbers are those of .3 in [.2, .3) and .6, .7 in [.6, .7), but these lie on the edges and their last
    bits decide: they are moved inwards by 1e-9 here.
    """
    rows = [[0.7 - 1e-9, 0.2 + 5e-10, 0.1 + 5e-10], [0.6 + 1e-9, 0.3 - 2e-9, 0.1 + 1e-9]]
    p = doubles(*rows, [0.25, 0.25 - 1e-9, 0.5 + 1e-9], [0.05, 0.9 + 1e-9, 0.05 - 1e-9])
    values = per_client(score(p.log(), torch.tensor([0, 1, 2, 1]), torch.tensor([0, 4]), 3, "classification"))
    assert float(values["ece"]) == pytest.approx(0.375, abs=1e-8)
    assert float(values["mce"]) == pytest.approx(0.6, abs=1e-8)
    assert float(values["ece_flat"]) == pytest.approx(0.1, abs=1e-8)
    assert float(values["mce_flat"]) == pytest.approx(0.5, abs=1e-8)


@pytest.mark.parametrize(("alpha", "ours", "paper"), [(5, 10, 10), (0.5, 9.13, 9.10), (0.1, 4.62, 4.65)])
def test_o17_classes_per_client(alpha, ours, paper):
    """Ten classes of 5,000 over 130 clients (all six rows of the table: tests/data/test_partition.py)."""
    y = torch.arange(10).repeat_interleave(5_000)
    rows = dirichlet(y, 130, alpha, np.random.default_rng(0), minimum=1)
    mean = sum(len(y[r].unique()) for r in rows) / 130
    assert abs(mean - ours) < 0.5
    assert abs(mean - paper) < 0.5


def test_rho_is_a_leaf_of_its_own():
    federation = points((5, 3))
    run = Run(MetaVD(FedAvg(TRAINING), **SMALL), federation, mlp(federation))
    assert RHO not in run.sim.model.leaves
    assert run.state.params is run.state.host.params
