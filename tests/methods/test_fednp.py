"""FedNP: its limits, a hand-worked step, its bookkeeping of sites, its bytes. The oracles are in tests/oracles."""

import math
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from oracles.sims import (
    DOUBLE,
    ENGINES,
    Run,
    at,
    each_engine,
    federate,
    full_batch,
    mlp,
    points,
    quadratics,
    same_bits,
    scalar_model,
    worst,
)
from torch import nn

from posterity import data, models
from posterity.core.gaussian import Gaussian
from posterity.core.passes import Training
from posterity.core.tree import tree_cast, tree_map, tree_rows
from posterity.engine.blocks import receive_stack
from posterity.engine.simulation import select
from posterity.laws import check
from posterity.methods import build
from posterity.methods.fedavg import FedAvg
from posterity.methods.fednp import F_BIAS, F_NAMES, F_WEIGHT, NPN, FedNP, State, match
from posterity.methods.fedprox import FedProx

TRAINING = Training(lr=0.1, batch=4, epochs=2)
LAYER = {F_WEIGHT: torch.ones(1, 1, dtype=DOUBLE), F_BIAS: torch.zeros(1, dtype=DOUBLE)}  # f = the mean of one feature


def sites(run):
    """The sum of all sites that clients keep."""
    known = run.store.known.nonzero()[:, 0]
    return tree_map(lambda leaf: leaf.sum(0), tree_rows(run.store.rows["site"], known))


def off(run, tau0=1.0):
    """How far the totals are from prior + all sites."""
    kept = sites(run)
    return worst(run.state.totals, Gaussian(kept.precision + tau0, kept.shift))


def scalar_npn(x, variance, npn):
    """The NPN of one latent dimension in plain numbers: linear, sigmoid, linear."""
    w1, b1, w2, b2 = (float(npn[n].flatten()[0]) for n in NPN)

    def squash(mean, var, a, b):
        return 1 / (1 + math.exp(-a * (mean + b) / math.sqrt(1 + math.pi / 8 * a * a * var)))

    o, v = x * w1 + b1, variance * w1 * w1
    mean = squash(o, v, 1, 0)
    spread = max(squash(o, v, 4 - 2 * math.sqrt(2), math.log(math.sqrt(2) - 1)) - mean**2, 1e-6)
    return mean * w2 + b2, spread * w2 * w2


@each_engine
@pytest.mark.parametrize("kind", ["quadrature", "closed"])
def test_two_clients_by_hand(engine, kind):
    """One step of η = 0.1, λ = 0.5, ε = 0.2 from θ = 1: θ − η (a (θ − c) + λ (θ − m_θ)/ε), then the mean of 1 : 3.

    Inputs are √a, so f_k = √a_k with the identity layer; the cavity of the first round is N(0, 1).
    """
    method = FedNP(full_batch(1), lam=0.5, eps=0.2, latent=1, moments=kind, detach_f=True)
    run = Run(method, quadratics([1.0, 2.0], [2.0, 5.0], [1, 3]), scalar_model(), engine, at(1.0))
    run.state = State({**run.state.params, **LAYER}, run.state.totals)
    here, _ = receive_stack(run.sim, engine, run.state, run.store, torch.arange(2), 1)
    ends, losses = [], []
    for k, (a, c, n) in enumerate(((1.0, 2.0, 1), (2.0, 5.0, 3))):
        z_m, z_s, _ = (float(v) if isinstance(v, torch.Tensor) else v for v in
                       match(*(torch.tensor(v, dtype=DOUBLE) for v in (0.0, 1.0, math.sqrt(a))), kind))  # fmt: skip
        mean, spread = scalar_npn(z_m, z_s, tree_rows(here.personal["npn"], k))
        ends.append(n * (1 - 0.1 * (a * (1 - c) + 0.5 * (1 - mean) / 0.2)))
        about = 0.5 * (math.log(0.2 / spread) + (spread + (1 - mean) ** 2) / 0.2 - 1)
        prior = 0.5 * (z_s + z_m**2 - 1 - math.log(z_s))
        losses.append(n * (0.5 * a * (1 - c) ** 2 + 0.5 * (about + prior)))
    run.rounds(1)
    assert run.scalar() == pytest.approx(sum(ends) / 4, abs=1e-12)
    assert run.logs[0].loss == pytest.approx(sum(losses) / 4, abs=1e-12)
    assert off(run) < 1e-15


def test_both_divergences_of_several_dimensions():
    """D_z = 3, τ₀ = 0.5: the classifier's is averaged over its weights, that of z summed and taken from N(0, 1/τ₀)."""
    federation = points((9,))
    method = FedNP(latent=3, tau0=0.5, eps=0.3, f_output="vector")
    run = Run(method, federation, mlp(federation))
    here = select(receive_stack(run.sim, ENGINES[0], run.state, run.store, torch.tensor([0]), 1)[0], 0)
    params, f = method.start(here), torch.tensor([0.5, -1.0, 2.0], dtype=DOUBLE)
    z_m, z_s, _ = match(torch.zeros(3, dtype=DOUBLE), torch.full((3,), 2.0, dtype=DOUBLE), f, "quadrature")
    mean, spread = method.classifier(params, z_m, z_s)
    q = torch.distributions.Normal
    about = torch.distributions.kl_divergence(q(mean, spread.sqrt()), q(params["head.weight"].flatten(), 0.3**0.5))
    prior = torch.distributions.kl_divergence(q(z_m, z_s.sqrt()), q(torch.zeros_like(z_m), 2.0**0.5))
    assert float(method.divergence(params, f, here)) == pytest.approx(float(about.mean() + prior.sum()), abs=1e-12)


@each_engine
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_without_divergences_it_is_its_host_bit_for_bit(engine, dtype, mu):
    """λ = 0: FedAvg for µ = 0 and FedProx for µ > 0; leaves, running statistics and losses, with absences."""
    federation = points((9, 5, 1, 6))
    training = replace(TRAINING, momentum=0.5, weight_decay=1e-3, clip=1.0)
    host = FedProx(training, mu=mu) if mu else FedAvg(training)
    model = mlp(federation, norm=True)
    ours, theirs = (Run(m, federation, model, engine, dtype=dtype) for m in (FedNP(training, lam=0.0, mu=mu), host))
    for cohort in (None, [0, 2, 3], [1, 2]):
        ours.rounds(1, cohort)
        theirs.rounds(1, cohort)
        assert same_bits({n: ours.state.params[n] for n in model.leaves}, theirs.state.params)
        assert ours.logs[-1].loss == theirs.logs[-1].loss


@pytest.mark.parametrize("mu", [0.0, 0.3])
def test_the_divergences_change_either_host(mu):
    federation = points((9, 5))
    ends = [Run(FedNP(TRAINING, lam=lam, mu=mu), federation, mlp(federation)).rounds(1).state.params
            for lam in (0.0, 0.1)]  # fmt: skip
    heads = [{n: p for n, p in end.items() if n.startswith("head.")} for end in ends]
    assert worst(*heads) > 1e-4


@pytest.mark.parametrize(
    ("network", "shape", "width"),
    [("linear", (6,), 6), ("mlp_bn", (6,), 64), ("lenet5", (1, 28, 28), 84), ("metavd_cnn", (3, 32, 32), 128)],
)
def test_the_classifier_of_any_network(network, shape, width):
    """The NPN speaks of every weight of the head, of no bias, and one round goes through."""
    generator = torch.Generator().manual_seed(0)
    given = [(torch.randn(4, *shape, generator=generator, dtype=DOUBLE), torch.tensor([0, 1, 2, 0])) for _ in range(2)]
    federation, model = federate(given, classes=3), models.build(network, shape, 3)
    run = Run(FedNP(Training(lr=0.01, batch=4), lam=0.1), federation, model).rounds(1)
    assert run.store.rows["npn"][NPN[3]].shape == (2, 3 * width)
    assert not run.logs[0].refused
    assert off(run) < 1e-14


def test_the_pull_comes_on_top_of_the_divergences():
    federation = points((9, 5))
    start = mlp(federation).init(0, DOUBLE)
    gaps = []
    for mu in (0.0, 5.0):
        run = Run(FedNP(TRAINING, mu=mu), federation, mlp(federation), initial=start).rounds(1)
        gaps.append(worst({n: run.state.params[n] for n in start}, start))
    assert gaps[1] < 0.8 * gaps[0]


@each_engine
@pytest.mark.parametrize("kind", ["quadrature", "closed"])
@pytest.mark.parametrize("output", ["scalar", "vector"])
def test_totals_are_the_prior_and_all_sites(engine, kind, output):
    """Exactly, whoever takes part: absent clients' sites stay inside."""
    federation = points((9, 5, 1, 6, 4))
    method = FedNP(TRAINING, lam=0.1, moments=kind, f_output=output, tau0=0.7)
    run = Run(method, federation, mlp(federation), engine)
    for cohort in (None, [0, 3], [1], [2, 3, 4], [0, 1, 2]):
        run.rounds(1, cohort)
        assert off(run, 0.7) < 1e-14
        assert bool((run.store.rows["site"].precision >= 0).all())


def test_totals_in_float32():
    federation = points((9, 5, 1, 6, 4))
    run = Run(FedNP(TRAINING), federation, mlp(federation), dtype=torch.float32)
    for step in range(30):
        run.rounds(1, [step % 5, (step + 2) % 5])
    assert off(run) < 1e-5


@each_engine
def test_a_refused_message_leaves_no_site(engine):
    """Client 1 has a NaN in its data: its record and the totals are as if it had not been there."""
    federation = points((9, 5, 6))
    run = Run(FedNP(TRAINING, lam=0.1), federation, mlp(federation), engine).rounds(1)
    before = tree_map(torch.clone, tree_rows(run.store.rows, 1))
    x = federation.x.clone()
    x[federation.train.client(1)[0]] = math.nan
    run.sim = replace(run.sim, federation=replace(run.sim.federation, x=x))
    run.rounds(1)
    assert [r.client for r in run.logs[-1].refused] == [1]
    assert same_bits(tree_rows(run.store.rows, 1), before)
    assert off(run) < 1e-14


def factors_only(values, engine=ENGINES[1]):
    """Client k's f is `values[k]` for ever."""
    given = [(torch.full((2, 1), v, dtype=DOUBLE), torch.zeros(2, dtype=DOUBLE)) for v in values]
    run = Run(FedNP(Training(lr=0.0), latent=1), federate(given), scalar_model(), engine)
    run.state = State({**run.state.params, **LAYER}, run.state.totals)
    return run


def test_a_client_that_leaves_takes_its_site_along():
    """The totals lose it at once, and those who stay reach the fixed point that they would have without it."""
    run = factors_only((1.0, 0.5, -0.8)).rounds(5)
    gone = tree_rows(run.store.rows["site"], 1)
    full = run.state.totals
    run.state = run.sim.method.forget(run.state, gone)
    assert torch.equal(run.state.totals.precision, full.precision - gone.precision)
    run.rounds(25, [0, 2])
    others = factors_only((1.0, -0.8)).rounds(30)
    assert worst(run.state.totals, others.state.totals) < 1e-10


def test_the_fixed_point_under_partial_participation():
    run = factors_only((1.0, 0.5, -0.8))
    for step in range(45):
        run.rounds(1, [step % 3, (step * step + 1) % 3] if step % 3 != (step * step + 1) % 3 else [step % 3])
    assert float(run.state.totals.mean()) == pytest.approx(0.2464539228, abs=1e-8)


def test_one_client_has_the_prior_as_its_cavity():
    """K = 1: after any number of rounds, q is prior × its own factor, matched in one step."""
    run = factors_only((1.0,)).rounds(4)
    assert float(run.state.totals.mean()) == pytest.approx(0.4132419283, abs=1e-8)
    assert float(run.state.totals.covariance()) == pytest.approx(0.8292311087, abs=1e-8)
    assert run.logs[-1].report["z_mean"] == pytest.approx(0.4132419283, abs=1e-8)
    assert run.logs[-1].report["z_variance"] == pytest.approx(0.8292311087, abs=1e-8)


def test_a_newcomers_cavity_is_q():
    federation = points((9, 5, 6))
    run = Run(FedNP(TRAINING), federation, mlp(federation)).rounds(2)
    here, _ = receive_stack(run.sim, ENGINES[0], run.state, run.store, torch.tensor([0, 1]), 2, newcomers=True)
    assert not bool(here.personal["site"].precision.any() | here.personal["site"].shift.any())
    for engine in ENGINES:
        run.engine = engine
        assert all(bool(o.isfinite().all()) for o in run.outputs("adapted", newcomers=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("latent", [10, 3])
def test_bytes_are_fedavgs_and_the_layer_of_f_and_two_numbers_per_dimension(dtype, latent):
    """Each way: D_z (d + 1) for f, which is a part of θ, and 2 D_z for the sites: 80 bytes in float32 at D_z = 10."""
    federation = points((5, 9, 3))
    model = mlp(federation)
    logs = [Run(m, federation, model, dtype=dtype).rounds(1).logs[0] for m in (FedNP(latent=latent), FedAvg())]
    extra = 3 * (latent * (model.feature_dim + 1) + 2 * latent) * dtype.itemsize
    assert logs[0].bytes_up == logs[1].bytes_up + extra
    assert logs[0].bytes_down == logs[1].bytes_down + extra


def test_the_npn_has_its_size_and_stays_at_home():
    """10·10 + 10 + 10·P + P numbers for P weights of the classifier, drawn from ±0.05 by each client, never sent."""
    federation = points((5, 9, 3))
    model = mlp(federation)
    run = Run(FedNP(TRAINING, lam=0.1), federation, model)
    here, _ = receive_stack(run.sim, ENGINES[1], run.state, run.store, torch.arange(3), 1)
    first, size = here.personal["npn"], model.feature_dim * 3
    assert sum(p[0].numel() for p in first.values()) == 110 + 11 * size
    assert all(0.04 < float(p.abs().max()) <= 0.05 for p in first.values() if p.numel() > 100)
    assert not torch.equal(first[NPN[0]][0], first[NPN[0]][1])
    assert not set(NPN) & set(run.rounds(1).state.params)
    assert min(worst(first[n], run.store.rows["npn"][n]) for n in NPN) > 0
    wide = Run(FedNP(biases=True), federation, model)
    more, _ = receive_stack(wide.sim, ENGINES[1], wide.state, wide.store, torch.arange(3), 1)
    assert more.personal["npn"][NPN[3]].shape[1] == size + 3


@pytest.mark.parametrize(("changes", "moves"), [({}, True), ({"detach_f": True}, False), ({"lam": 0.0}, False)])
def test_who_trains_f(changes, moves):
    federation = points((9, 5))
    method = FedNP(replace(TRAINING, weight_decay=0.1), **{"lam": 0.1, **changes})
    run = Run(method, federation, mlp(federation))
    first = {n: run.state.params[n] for n in F_NAMES}
    run.rounds(1)
    assert (worst({n: run.state.params[n] for n in F_NAMES}, first) > 1e-12) == moves  # their mean rounds


def test_the_first_f_depends_on_the_seed():
    federation = points((9, 5))
    first = [Run(FedNP(), federation, mlp(federation), seed=s).state.params[F_WEIGHT] for s in (0, 0, 1)]
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])
    bound = mlp(federation).feature_dim ** -0.5  # as PyTorch's linear layers
    assert 0.9 * bound < float(first[0].abs().max()) <= bound


def test_detached_f_sends_no_gradient_into_the_base():
    """The base then moves as FedAvg's; the gradient through f moves it otherwise."""
    federation = points((9, 5))
    model, training = mlp(federation), full_batch(1)
    ends = {}
    for name, method in {"plain": FedAvg(training), "detached": FedNP(training, lam=1.0, detach_f=True),
                         "whole": FedNP(training, lam=1.0)}.items():  # fmt: skip
        params = Run(method, federation, model).rounds(1).state.params
        ends[name] = {n: params[n] for n in model.base_names}
    assert worst(ends["detached"], ends["plain"]) < 1e-14
    assert worst(ends["whole"], ends["plain"]) > 1e-6


def test_uniform_weights():
    """n = (1, 3), λ = 0, one step of 0.1 from 1: ends 1.1 and 1.8, so 1.45 and not 1.625."""
    federation = quadratics([1.0, 2.0], [2.0, 5.0], [1, 3])
    for weighting, end in (("uniform", 1.45), ("num_examples", 1.625)):
        method = FedNP(full_batch(1), lam=0.0, weighting=weighting)
        assert Run(method, federation, scalar_model(), initial=at(1.0)).rounds(1).scalar() == pytest.approx(end)


@pytest.mark.parametrize("output", ["scalar", "vector"])
def test_engines_agree(output):
    federation = points((9, 5, 1, 6))
    method = FedNP(TRAINING, lam=0.1, f_output=output)
    ends = []
    for engine in ENGINES:
        run = Run(method, federation, mlp(federation), engine)
        for cohort in (None, [0, 2], [1, 3]):
            run.rounds(1, cohort)
        ends.append((run.state, run.store.rows))
    assert worst(*ends) < 1e-12


@pytest.mark.everything
@pytest.mark.parametrize("method", [FedNP(TRAINING, 0.1, "closed", f_output="vector", biases=True, mu=0.1,
                                          weighting="uniform", detach_f=True, latent=3)])  # fmt: skip
def test_other_choices_keep_the_laws(method):
    laws = ("engines", "company", "mask", "absent", "structure", "precision", "newcomers", "refusal", "weights")
    broken = [(v.law, v.detail) for v in check(method, "mlp", laws) if not v.held]
    assert broken == []


def test_heads_of_several_layers_and_without_biases():
    net = nn.Sequential(OrderedDict(
        base=nn.Linear(6, 5), head=nn.Sequential(nn.Linear(5, 4, bias=False), nn.ReLU(), nn.Linear(4, 3, bias=False)),
    ))  # fmt: skip
    federation = points((9, 5))
    model = models.wrap(net, "head", 3, shape=(6,))
    run = Run(FedNP(TRAINING, lam=0.1), federation, model).rounds(2)
    assert run.store.rows["npn"][NPN[3]].shape[1] == 20 + 12
    assert off(run) < 1e-14


def test_a_head_that_is_not_trained_is_refused():
    net = nn.Sequential(OrderedDict(base=nn.Linear(6, 5), head=nn.Linear(5, 3)))
    for p in net.head.parameters():
        p.requires_grad = False
    with pytest.raises(ValueError, match="no leaf of the model's head is trained"):
        Run(FedNP(), points((9, 5)), models.wrap(net, "head", 3, shape=(6,), fresh=False))


@each_engine
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_the_toy_regression(engine, scale):
    """The paper's three pieces of a parabola; unscaled powers make |f| a hundred and more, and nothing breaks."""
    federation = data.load("polynomial", split="100/0")
    model = models.build("cubic", (1,), 1, "regression", scale=scale)
    training = Training(lr=0.01, batch=10, optimiser="rmsprop")
    run = Run(FedNP(training, biases=True, f_output="vector"), federation, model, engine, dtype=torch.float32)
    x, y = federation.x.float(), federation.y.float()

    def error():
        return float(((model(tree_cast(run.state.params, torch.float32), x)[0] - y) ** 2).mean())

    before = error()
    run.rounds(10)
    assert not any(log.refused for log in run.logs)
    assert error() < before
    assert off(run) < 1e-4 * float(run.state.totals.shift.abs().max())


def test_the_first_coefficients_of_the_toy():
    """`start` bounds them and keeps them random by seed; 0 begins at the zero curve."""
    leaves = []
    for start, seed in ((0.05, 0), (0.05, 1), (0.0, 0)):
        first = models.build("cubic", (1,), 1, "regression", start=start).init(seed)
        leaves.append(torch.cat([p.flatten() for p in first.values()]))
    assert 0 < float(leaves[0].abs().max()) <= 0.05
    assert not torch.equal(leaves[0], leaves[1])
    assert not bool(leaves[2].any())
    with pytest.raises(ValueError, match="start bounds the first coefficients"):
        models.build("cubic", (1,), 1, "regression", start=-1.0)


def test_equally_spaced_inputs_of_the_toy():
    federation = data.load("polynomial", split="100/0", seed=3, options={"spacing": "grid"})
    for k, (low, high, count) in enumerate(((-7, -5, 30), (-2, 2, 20), (4, 8, 50))):
        assert torch.allclose(federation.x[federation.train.client(k), 0], torch.linspace(low, high, count))
    with pytest.raises(ValueError, match="spacing='even'"):
        data.load("polynomial", split="100/0", options={"spacing": "even"})


def test_it_is_found_by_name_and_wrapped():
    method = build("fednp+ft", {"moments": "closed", "lam": "0.1", "f_output": "vector", "local.epochs": 10})
    assert method.label == "FedNP-FT"
    assert (method.method.moments, method.method.lam, method.method.local.epochs) == ("closed", 0.1, 10)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lam": -0.1}, "lam must be at least 0"),
        ({"lam": math.nan}, "lam must be a finite number; nan"),
        ({"moments": "closed_form"}, "did you mean 'closed'"),
        ({"points": 3}, "points must be at least 17"),
        ({"latent": 0}, "latent must be at least 1"),
        ({"eps": 0.0}, "eps must be at least"),
        ({"tau0": 0.0}, "tau0 must be at least"),
        ({"f_output": "both"}, "f_output = 'both' is unknown"),
        ({"weighting": "n"}, "weighting = 'n' is unknown"),
        ({"mu": -1.0}, "mu must be at least 0"),
        ({"detach_f": "maybe"}, "detach_f takes true or false"),
    ],
)
def test_bad_hyper_parameters(given, message):
    with pytest.raises(ValueError, match=message):
        FedNP(**given)
