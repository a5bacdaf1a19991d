"""MOON: its contrast in numbers, three rounds against plain autograd, its reductions, its record, its projection."""

import math

import pytest
import torch
import torch.nn.functional as F
from oracles.sims import DOUBLE, ENGINES, Run, each_engine, federate, mlp, points, same_bits, worst

from posterity import methods, models
from posterity.core.passes import Training
from posterity.core.protocol import Batch, Here, Leaves
from posterity.core.random import make_key
from posterity.core.tree import tree_map, tree_rows
from posterity.methods.fedavg import FedAvg
from posterity.methods.moon import MOON, contrast, projection_of, unit

TRAINING = Training(lr=0.1, batch=4, epochs=2)


def rows(*values):
    return torch.tensor(values, dtype=DOUBLE)


@pytest.mark.parametrize(("temperature", "expected"), [(0.5, 0.2632825), (1.0, 0.4374880)])
def test_the_contrast_in_numbers(temperature, expected):
    """Cosines 0.8 and 0.2, whatever the lengths."""
    z, towards, away = rows([2.0, 0.0]), rows([4.0, 3.0]), rows([0.2, math.sqrt(0.96)])
    found = contrast(z, towards, away, temperature)
    assert found.shape == (1,)
    assert float(found) == pytest.approx(expected, abs=5e-8)
    assert float(found) == pytest.approx(math.log1p(math.exp(-0.6 / temperature)), abs=1e-14)
    swapped = float(contrast(z, away, towards, temperature))
    assert swapped == pytest.approx(math.log1p(math.exp(0.6 / temperature)), abs=1e-14)


def test_features_of_zeros_have_a_finite_gradient():
    """A cosine of 0 with everything; other lengths than 0 are 1."""
    z, other = torch.zeros(2, 3, dtype=DOUBLE), torch.ones(2, 3, dtype=DOUBLE)
    assert not unit(z).any()
    assert float(unit(1e-5 * other).norm(dim=1).min()) == pytest.approx(1.0, abs=1e-14)
    for towards, away in ((other, z), (z, other), (z, z)):
        slope = torch.func.grad(lambda v, a=towards, b=away: contrast(v, a, b, 0.5).sum())(z)
        assert bool(torch.isfinite(slope).all())


def test_tiny_temperatures_do_not_overflow():
    z, away = rows([1.0, 0.0]), rows([-1.0, 0.0])
    assert float(contrast(z, away, z, 1e-4)) == pytest.approx(2e4)
    assert float(contrast(z, z, away, 1e-4)) == 0.0


# --- three rounds against plain autograd -----------------------------------------------------------------------------
START = {"base.weight": rows([1.0, 0.5], [-0.5, 1.0]), "head.weight": rows([1.0, -1.0])}
DATA = [(rows([1.0, 2.0], [0.5, -1.0]), rows(1.0, -1.0)), (rows([2.0, -1.0]), rows(3.0)), (rows([0.3, 1.0]), rows(0.0))]


def linear_pair():
    """f(x) = h·tanh(Bx), for regression: the features are tanh(Bx)."""
    net = torch.nn.Sequential()
    net.add_module("base", torch.nn.Linear(2, 2, bias=False))
    net.add_module("tanh", torch.nn.Tanh())
    net.add_module("head", torch.nn.Linear(2, 1, bias=False))
    return models.wrap(net, "head", 1, "regression", shape=(2,))


def reference(cohorts, mu, tau, lr=0.1, steps=3):
    """Algorithm 1 by `backward`, the library's cosine and its cross-entropy; one batch of everything."""
    w, last, seen = {n: p.clone() for n, p in START.items()}, {}, []
    for cohort in cohorts:
        ends, sizes = [], [len(DATA[k][1]) for k in cohort]
        for k in cohort:
            x, y = DATA[k]
            previous = last.get(k, w)["base.weight"]
            theta = {n: p.clone().requires_grad_() for n, p in w.items()}
            for _ in range(steps):
                z = torch.tanh(x @ theta["base.weight"].T)
                others = [torch.tanh(x @ b.T) for b in (w["base.weight"], previous)]
                scores = torch.stack([F.cosine_similarity(z, other) for other in others], 1) / tau
                con = F.cross_entropy(scores, torch.zeros(len(y), dtype=torch.int64))
                loss = (0.5 * ((z @ theta["head.weight"].T)[:, 0] - y) ** 2).mean() + mu * con
                slope = torch.autograd.grad(loss, [theta[n] for n in theta])
                theta = {
                    n: (p - lr * g).detach().requires_grad_() for (n, p), g in zip(theta.items(), slope, strict=True)
                }
            last[k] = {n: p.detach() for n, p in theta.items()}
            ends.append(last[k])
        w = {n: sum(s * e[n] for s, e in zip(sizes, ends, strict=True)) / sum(sizes) for n in w}
        seen.append(w)
    return seen, last


@each_engine
def test_rounds_against_autograd(engine):
    """Clients that come and go: the last model may be two rounds old, and a first visit has no contrast."""
    cohorts, training = [[0, 1], [1], [0, 1, 2], [0, 2]], Training(lr=0.1, epochs=3, batch=10)
    run = Run(MOON(training, mu=2.0, temperature=0.7), federate(DATA), linear_pair(), engine, START)
    expected, last = reference(cohorts, 2.0, 0.7)
    for cohort, w in zip(cohorts, expected, strict=True):
        assert worst(run.rounds(1, cohort).state.params, w) < 1e-13
    assert set(run.store.rows) == {"base.weight"}
    for k in range(3):
        assert worst(tree_rows(run.store.rows, k), {"base.weight": last[k]["base.weight"]}) < 1e-13
    assert worst(expected[-1], reference(cohorts, 0.0, 0.7)[0][-1]) > 1e-2
    assert worst(expected[-1], reference(cohorts, 2.0, 0.5)[0][-1]) > 1e-3


@each_engine
@pytest.mark.parametrize("projection", [False, True])
def test_the_loss_by_hand(engine, projection):
    """References in evaluation mode, the model itself in training mode, padding counts nothing; batch norm and all."""
    federation = points((9, 5))
    model = mlp(federation, norm=True)
    method = MOON(mu=3.0, temperature=0.4, projection=projection)
    glob, previous, params = (_leaves(method, model, seed) for seed in (1, 2, 3))
    mine = {n: p for n, p in previous.items() if n not in model.head_names}
    batch = Batch(federation.x[:5], federation.y[:5], torch.tensor([1.0, 1, 1, 1, 0], dtype=DOUBLE))
    number = torch.zeros((), dtype=torch.int64)
    here = Here(
        Leaves(glob), (), mine, {}, number, batch.mask.sum(), number, number, number + 1, make_key(0), glob, model
    )
    value, buffers = method.contrasted(params, batch, here)
    extra = projection_of(model.feature_dim)

    def projected(leaves, z):
        return extra(leaves, z) if projection else z

    z, after = model.features(params, batch.x, mask=batch.mask, train=True, key=here.key)
    z = projected(params, z)
    ends = [projected(p, model.features(p, batch.x)[0]) for p in (glob, previous)]
    scores = torch.stack([F.cosine_similarity(z, e) for e in ends], 1)[:4] / 0.4
    fitted = F.cross_entropy(model.classify(params, z, mask=batch.mask, train=True, key=here.key)[:4], batch.y[:4])
    expected = fitted + 3.0 * F.cross_entropy(scores, torch.zeros(4, dtype=torch.int64))
    assert float(value) == pytest.approx(float(expected), abs=1e-13)
    assert same_bits(buffers, after)
    assert float(method.plain(params, batch, here)[0]) == pytest.approx(float(fitted), abs=1e-13)


def _leaves(method, model, seed):
    params = {n: p + 0.1 * seed if n in model.buffers else p for n, p in model.init(seed, DOUBLE).items()}
    more = projection_of(model.feature_dim).init(make_key(seed), next(iter(params.values())))
    return {**params, **more} if method.projection else params


# --- reductions ------------------------------------------------------------------------------------------------------
@each_engine
def test_without_contrast_it_is_fedavg_bit_for_bit(engine):
    federation, training = points((9, 5, 1)), Training(lr=0.1, batch=4, momentum=0.9)
    runs = [Run(m, federation, mlp(federation, norm=True), engine).rounds(2) for m in
            (MOON(training, mu=0.0), FedAvg(training))]  # fmt: skip
    assert same_bits(runs[0].state.params, runs[1].state.params)


@each_engine
def test_the_first_round_is_fedavg(engine):
    """The last model is the broadcast: log 2 for everybody and no gradient. The second round is another one."""
    federation = points((9, 5, 1))
    runs = [
        Run(m, federation, mlp(federation, norm=True), engine).rounds(1) for m in (MOON(TRAINING), FedAvg(TRAINING))
    ]
    assert worst(runs[0].state.params, runs[1].state.params) < 1e-12
    later = [run.rounds(1) for run in runs]
    assert worst(later[0].state.params, later[1].state.params) > 1e-4


def test_the_first_loss_is_fedavgs_and_log_2():
    federation = points((9, 5, 1))
    logs = [Run(m, federation, mlp(federation)).rounds(1).logs[0] for m in (MOON(TRAINING, mu=2.0), FedAvg(TRAINING))]
    assert logs[0].loss == pytest.approx(logs[1].loss + 2 * math.log(2), abs=1e-12)


def test_fine_tuning_and_newcomers_have_no_contrast():
    federation = points((9, 5, 4))
    run = Run(MOON(TRAINING, mu=5.0), federation, mlp(federation)).rounds(2)
    plain = Run(FedAvg(TRAINING), federation, run.sim.model)
    plain.state, plain.played = run.state, run.played
    for newcomers in (False, True):
        pairs = zip(run.outputs("adapted", newcomers=newcomers), plain.outputs("adapted"), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_an_absent_client_keeps_its_last_model():
    federation = points((9, 5, 4))
    run = Run(MOON(TRAINING), federation, mlp(federation)).rounds(1)
    before = tree_map(torch.clone, tree_rows(run.store.rows, 1))
    assert set(before) == run.sim.model.base_names
    run.rounds(1, cohort=[0, 2])
    assert same_bits(before, tree_rows(run.store.rows, 1))


# --- projection ------------------------------------------------------------------------------------------------------
def test_the_projection_stands_between_base_and_head():
    """It is trained, averaged, drawn from the seed, and part of what predicts; both engines agree."""
    federation = points((9, 5, 4))
    model, method = mlp(federation), MOON(TRAINING, projection=True)
    loop, stacked = (Run(method, federation, model, engine).rounds(2) for engine in ENGINES)
    assert worst(loop.state.params, stacked.state.params) < 1e-12
    extra = projection_of(8)
    first = Run(method, federation, model).state.params
    assert same_bits(first, Run(method, federation, model).state.params)
    assert worst(extra.of(first), extra.of(Run(method, federation, model, seed=1).state.params)) > 1e-2
    assert min(float((loop.state.params[n] - first[n]).abs().max()) for n in extra.leaves) > 1e-4
    assert set(loop.store.rows) == {*model.base_names, *extra.leaves}
    w, x = loop.state.params, federation.x[federation.test.client(0)]
    hidden = F.relu(F.linear(model.features(w, x)[0], w["projection/0.weight"], w["projection/0.bias"]))
    z = F.linear(hidden, w["projection/2.weight"], w["projection/2.bias"])
    expected = F.log_softmax(F.linear(z, *(w[n] for n in model.leaves if n in model.head_names)), -1)
    assert torch.allclose(loop.outputs("received")[0], expected, atol=1e-13)


def test_a_projection_for_regression():
    federation = federate(DATA, test=[(DATA[0][0], DATA[0][1])] * 3)
    run = Run(MOON(Training(lr=0.1), projection=True), federation, linear_pair(), initial=START).rounds(2)
    output = run.outputs("received")[0]
    assert output.shape == (2, 2)
    assert output[:, 1].tolist() == [1.0, 1.0]  # mean and variance


@pytest.mark.parametrize("norm", [False, True])
def test_bytes_are_fedavgs(norm):
    """d down, d and a weight up; a projection adds 2 (D² + D) numbers each way."""
    federation = points((5, 9, 4))
    d = 6 * 8 + 8 + 8 * 3 + 3 + (32 if norm else 0)
    for projection, more in ((False, 0), (True, 2 * (64 + 8))):
        method = MOON(projection=projection)
        log = Run(method, federation, mlp(federation, norm=norm), dtype=torch.float32).rounds(1).logs[0]
        assert log.bytes_down == 3 * 4 * (d + more)
        assert log.bytes_up == 3 * 4 * (d + more + 1)


def test_the_values_of_the_paper():
    paper = methods.build("moon@paper")
    assert (paper.mu, paper.temperature, paper.projection) == (5.0, 0.5, True)
    assert paper.local == Training(lr=0.01, epochs=10, batch=64, momentum=0.9, weight_decay=1e-5)
    assert (MOON().mu, MOON().projection) == (1.0, False)


def test_remarks():
    head = models.build("linear", (6,), 3)
    assert MOON().remarks(head) == (
        f"MOON is FedAvg here: all of the network {head.name!r} is head, so nobody's features differ",
    )
    assert MOON(projection=True).remarks(head) == MOON().remarks(linear_pair()) == ()


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match="mu must be at least 0; -1"):
        MOON(mu=-1.0)
    for temperature in (0.0, -0.5):
        with pytest.raises(ValueError, match="temperature must be above 0"):
            MOON(temperature=temperature)
    with pytest.raises(ValueError, match="projection takes true or false"):
        MOON(projection="maybe")
