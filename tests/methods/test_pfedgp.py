"""pFedGP: a training step and a prediction by hand, what travels, and who is left without a classifier."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from oracles.sims import DOUBLE, ENGINES, Run, federate, full_batch, mlp, points, q2, same_bits, scalar_model, worst

from posterity.core import Training, make_key
from posterity.core import gaussian as precision
from posterity.core.gaussian import with_tf32
from posterity.engine.engines import STACKED
from posterity.methods import build
from posterity.methods.pfedgp import PFedGP
from posterity.methods.pfedgp import node as nodes
from posterity.methods.pfedgp.memory import FIELD, HELD, at_once
from posterity.methods.pfedgp.node import grow_tree, unit

PLAIN = full_batch(1, lr=0.3)
X, WEIGHTS = (torch.as_tensor(a) for a in np.polynomial.hermite.hermgauss(32))


@dataclass(frozen=True)
class Ordered(PFedGP):
    """Samples are taken as they lie, so that a test knows which half is given."""

    def passes(self):
        return tuple(replace(each, shuffle=False) for each in super().passes())


def left_by_hand(k, cross, kappa, steps):
    """E σ(f*) with ω from mean-field rounds, by inverses; nothing flows through ω."""
    omega = torch.full((len(kappa),), 0.25, dtype=DOUBLE)
    for _ in range(steps):
        cov = torch.linalg.inv(torch.linalg.inv(k.detach()) + torch.diag(omega))
        c = torch.sqrt((cov @ kappa) ** 2 + cov.diagonal())
        omega = torch.tanh(c / 2) / (2 * c)
    inverse = torch.linalg.inv(k + torch.diag(1 / omega))
    mean, variance = cross.T @ inverse @ (kappa / omega), 8.001 - (cross * (inverse @ cross)).sum(0)
    f = mean[:, None] + torch.sqrt(2 * variance)[:, None] * X
    return torch.sigmoid(f) @ WEIGHTS / math.sqrt(math.pi)


def branches_by_hand(u, y, targets, sides, steps=5):
    """E σ(f*) (nodes, targets), for nodes that are used, from the samples of the classes at each."""
    found = {}
    for node, side in enumerate([float(one) for one in row] for row in sides):  # inside of `grad` there is no tolist
        rows = [i for i, label in enumerate(y) if side[int(label)]]
        if rows:
            here = u[rows]
            k = 8 * torch.exp(-((here[:, None] - here) ** 2).sum(-1) / 2) + 1e-3 * torch.eye(len(rows), dtype=DOUBLE)
            cross = 8 * torch.exp(-((here[:, None] - targets) ** 2).sum(-1) / 2)
            found[node] = left_by_hand(k, cross, torch.tensor([0.5 * side[int(y[i])] for i in rows]).double(), steps)
    return found


def tree_by_hand(u, y, classes):
    count = torch.tensor([(y == c).sum() for c in range(classes)])
    return grow_tree(torch.stack([u[y == c].mean(0) if count[c] else u[0] * 0 for c in range(classes)]), count)


def step_by_hand(model, params, x, y, sides, lr):
    """One step on −log p of every second sample of a class, given the others."""
    seen, given, asked = {}, [], []
    for i, label in enumerate(y.tolist()):
        seen[label] = seen.get(label, 0) + 1
        (given if seen[label] % 2 else asked).append(i)

    def loss(base):
        u = unit(model.features({**params, **base}, x)[0])
        total = torch.zeros((), dtype=DOUBLE)
        for node, left in branches_by_hand(u[given], y[given], u[asked], sides).items():
            for place, i in enumerate(asked):
                side = float(sides[node, y[i]])
                total = total - (side > 0) * left[place].log() - (side < 0) * (1 - left[place]).log()
        return total / len(asked)

    base = {n: params[n] for n in params if n in model.base_names}
    slope, value = torch.func.grad_and_value(loss)(base)
    return {**params, **{n: base[n] - lr * slope[n] for n in base}}, float(value)


def one_client(labels, seed=1, inputs=4):
    generator = torch.Generator().manual_seed(seed)
    y = torch.tensor(labels)
    x = torch.randn(len(y), inputs, generator=generator, dtype=DOUBLE) + y[:, None]
    test = torch.randn(5, inputs, generator=generator, dtype=DOUBLE)
    return federate([(x, y)], 4, test=[(test, torch.zeros(5, dtype=torch.int64))])


FEW = one_client([0, 2, 0, 1, 2, 2, 0, 0, 2])  # class 1 once, class 3 never


@pytest.mark.parametrize("epochs", [1, 2])
def test_training_by_hand(epochs):
    """An epoch is a step on all data; the tree is that of the broadcast; the lonely sample of class 1 is given."""
    model = mlp(FEW)
    run = Run(Ordered(full_batch(epochs, lr=0.3), inference="vb"), FEW, model).rounds(1)
    params, x, y = run.sim.initial, FEW.x[:9], FEW.y[:9]
    sides, values = tree_by_hand(unit(model.features(params, x)[0]), y, 4), []
    for _ in range(epochs):
        params, value = step_by_hand(model, params, x, y, sides, 0.3)
        values.append(value)
    assert worst(run.state.params, params) < 1e-9
    assert worst(run.state.params, run.sim.initial) > 1e-2
    assert run.logs[0].loss == pytest.approx(sum(values) / epochs, abs=1e-9)


def test_prediction_by_hand():
    """All training samples are given; class 3 has no probability, and the others' sum to one."""
    model = mlp(FEW)
    for engine in ENGINES:
        run = Run(Ordered(PLAIN, inference="vb"), FEW, model, engine)
        u, y = unit(model.features(run.sim.initial, FEW.x[:9])[0]), FEW.y[:9]
        targets = unit(model.features(run.sim.initial, FEW.x[9:])[0])
        sides = tree_by_hand(u, y, 4)
        expected = torch.ones(5, 4, dtype=DOUBLE)
        for node, left in branches_by_hand(u, y, targets, sides).items():
            for c in range(4):
                expected[:, c] *= left if sides[node, c] > 0 else 1 - left if sides[node, c] < 0 else 1
        (told,) = run.outputs("received")
        assert float((told.exp()[:, :3] - expected[:, :3]).abs().max()) < 1e-9
        assert float(told.exp()[:, 3].max()) < 1e-12
        assert told.exp().sum(1).tolist() == pytest.approx([1] * 5, abs=1e-12)


def test_chains_are_near_the_mean_field_and_differ_from_each_other():
    method, count = PFedGP(), 40
    u = unit(torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE))
    sides = torch.tensor([[1.0, 1, 1, -1, -1, 0], [0, 0, 0, 1, -1, 0]], dtype=DOUBLE)
    delta, omega = method.augment(u, torch.ones(6, dtype=DOUBLE), sides, make_key(0), count)
    _, field = PFedGP(inference="vb").augment(u, torch.ones(6, dtype=DOUBLE), sides, make_key(0), count)
    assert omega.shape == (2, count, 6)
    assert field.shape == (2, 1, 6)
    assert torch.equal(omega != 0, (sides != 0)[:, None].expand_as(omega))
    assert len({tuple(row) for node in omega.tolist() for row in node}) == 2 * count
    assert float(delta) == 1e-3
    error = omega.std(1) / math.sqrt(count)
    assert bool(((omega.mean(1) - field[:, 0]).abs() <= 4 * error + 0.03).all())
    other = method.augment(u, torch.ones(6, dtype=DOUBLE), sides, make_key(1), count)[1]
    assert not torch.equal(other, omega)


def test_how_many_chains():
    seen = []

    @dataclass(frozen=True)
    class Watched(PFedGP):
        def augment(self, u, mask, sides, key, chains):
            seen.append(chains)
            return super().augment(u, mask, sides, key, chains)

    run = Run(Watched(PLAIN, chains=3, test_chains=2), FEW, mlp(FEW), ENGINES[0]).rounds(1)
    assert set(seen) == {3}
    seen.clear()
    run.outputs("received")
    assert set(seen) == {2}


def test_clients_count_once_whatever_their_size():
    federation = points((12, 3))
    model = mlp(federation)
    both = Run(PFedGP(PLAIN, inference="vb"), federation, model).rounds(1)
    each = [Run(PFedGP(PLAIN, inference="vb"), federation, model).rounds(1, [k]).state.params for k in (0, 1)]
    assert worst(both.state.params, {n: (each[0][n] + each[1][n]) / 2 for n in each[0]}) < 1e-15


def test_only_the_base_is_sent_and_nothing_is_kept():
    """d_b numbers down and up, and a weight; the head stays as it was, bit for bit."""
    federation = points((7, 5, 6))
    for norm in (False, True):
        model = mlp(federation, norm=norm)
        run = Run(PFedGP(inference="vb"), federation, model, dtype=torch.float32).rounds(1)
        d = 6 * 8 + 8 + (32 if norm else 0)
        assert run.logs[0].bytes_down == 3 * 4 * d
        assert run.logs[0].bytes_up == 3 * 4 * (d + 1)
        heads = [{n: p[n] for n in model.head_names} for p in (run.state.params, run.sim.initial)]
        assert same_bits(*heads)
        assert not run.store.rows


def test_who_has_no_data_finds_all_classes_equally_likely():
    test = [(torch.randn(2, 4, generator=torch.Generator().manual_seed(k), dtype=DOUBLE), torch.tensor([0, 1]))
            for k in range(3)]  # fmt: skip
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(5), dtype=DOUBLE)
    nothing = (x[:0], torch.zeros(0, dtype=torch.int64))
    train = [(x, torch.tensor([0, 1, 0, 1])), (x, torch.tensor([2, 2, 2, 2])), nothing]
    federation = federate(train, 3, test=test)
    run = Run(PFedGP(PLAIN, chains=2, test_chains=2), federation, mlp(federation)).rounds(1, [0, 1])
    for newcomers in (False, True):
        two, one, none = (told.exp() for told in run.outputs("received", newcomers=newcomers))
        assert float(two[:, :2].sum(1).min()) > 1 - 1e-12
        assert one.tolist() == [pytest.approx([0, 0, 1], abs=1e-12)] * 2
        assert none.tolist() == [pytest.approx([1 / 3] * 3, abs=1e-12)] * 2


def test_fine_tuning_trains_before_the_classifier_is_built():
    run = Run(Ordered(PLAIN, inference="vb"), FEW, mlp(FEW))
    before, after, trained = (run.outputs(point)[0] for point in ("received", "adapted", "trained"))
    assert float((before - after).abs().max()) > 1e-3
    assert float((after - trained).abs().max()) < 1e-12
    run.rounds(1)
    assert float((run.outputs("received")[0] - trained).abs().max()) < 1e-12  # the only client is the federation


def test_memory_is_declared():
    """Chains are computed in groups of about HELD numbers; what is declared grows with the matrices of one group."""
    assert at_once(540, 1, 600, HELD) == HELD // 360_000 == 5
    assert at_once(9, 20, 300, HELD) == 1
    assert at_once(60, 1, 20, HELD) == 60
    assert at_once(9, 1, 1360, FIELD) == 9 > at_once(9, 1, 1370, FIELD)
    assert (PFedGP().held, PFedGP(inference="vb").held) == (HELD, FIELD)
    model = mlp(points())
    training, conditioning = (each[-1].scratch for each in (PFedGP().passes(), PFedGP().prepare()))
    assert training(600, model) > 20 * 14 * 300**2
    assert conditioning(600, model) > 5 * 5 * 600**2
    assert conditioning(2400, model) > 3 * conditioning(1200, model)  # one chain at a time
    few = PFedGP(inference="vb")
    assert few.passes()[-1].scratch(600, model) < training(600, model) / 5
    assert few.prepare()[-1].scratch(600, model) < conditioning(600, model)
    assert few.passes()[-1].scratch(2400, model) > 3 * 14 * 1200**2  # all three nodes of four classes at once


def test_what_it_says_of_itself():
    assert "does not use the head" in PFedGP().remarks(mlp(FEW))[0]
    assert "learns nothing" in PFedGP().remarks(scalar_model())[1]
    assert "equally likely" in PFedGP().outside
    assert build("pfedgp@paper") == build("pfedgp") == PFedGP()
    assert PFedGP().local == Training(lr=0.05, epochs=3, momentum=0.9, weight_decay=1e-3, clip=50.0)


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match=r"needs two or more; a regression was given: take fedavg"):
        Run(PFedGP(), q2(), scalar_model())
    for name in ("chains", "test_chains", "gibbs_steps"):
        with pytest.raises(ValueError, match=rf"{name} must be at least 1; 0 was given"):
            PFedGP(**{name: 0})
    for name in ("scale", "length", "jitter"):
        for value, expected in (
            (0.0, "above 0"),
            (-1.0, "above 0"),
            (math.inf, "a finite number"),
            (math.nan, "a finite number"),
        ):
            with pytest.raises(ValueError, match=rf"{name} must be {expected}"):
                PFedGP(**{name: value})
    with pytest.raises(ValueError, match=r"inference = 'mcmc' is unknown"):
        PFedGP(inference="mcmc")


def test_kernels_are_exact_where_layers_are_not(monkeypatch):
    """With TF32 a product has ten bits, and a kernel rounded so has no factor; layers keep what was asked for."""
    monkeypatch.setattr(precision, "DEVICES", {"cpu"})
    seen = {"kernel": set(), "layer": set()}

    def watch(name, function):
        def call(*args, **how):
            seen[name].add(torch.backends.cuda.matmul.allow_tf32)
            return function(*args, **how)

        return call

    monkeypatch.setattr(nodes, "kernel", watch("kernel", nodes.kernel))
    model = mlp(FEW)
    monkeypatch.setattr(type(model), "features", watch("layer", type(model).features))
    with with_tf32(True):
        run = Run(Ordered(PLAIN, inference="vb"), FEW, model, STACKED).rounds(1)
        run.outputs("received")
        assert torch.backends.cuda.matmul.allow_tf32
    assert seen == {"kernel": {False}, "layer": {True}}
