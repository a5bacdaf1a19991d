"""APFL: plain arithmetic on Q2, its limits FedAvg and Local, the mixing weight, its records."""

from dataclasses import replace

import pytest
import torch
from oracles.sims import (
    ENGINES,
    WEIGHT,
    Run,
    at,
    each_engine,
    full_batch,
    mlp,
    points,
    q2,
    quadratics,
    same_bits,
    scalar_model,
    worst,
)

from posterity.core.passes import Training
from posterity.core.tree import tree_map, tree_rows
from posterity.methods.apfl import APFL
from posterity.methods.fedavg import FedAvg
from posterity.methods.local import Local

TRAINING = Training(lr=0.1, batch=4, epochs=2)


def reference(rounds, alpha, adaptive, steps=5, lr=0.1, start=0.0, curvature=(1.0, 4.0), centre=(0.0, 3.0)):
    """Algorithm 1 with (3) at every step, in plain numbers: w, the v_k and the α_k."""
    w, v, a = start, [start, start], [alpha, alpha]
    for _ in range(rounds):
        ends = []
        for k in (0, 1):
            theta = w
            for _ in range(steps):
                mixed = a[k] * v[k] + (1 - a[k]) * theta
                slope = curvature[k] * (mixed - centre[k])
                moved = theta - lr * curvature[k] * (theta - centre[k])
                new_a = min(1.0, max(0.0, a[k] - lr * (v[k] - theta) * slope)) if adaptive else a[k]
                theta, v[k], a[k] = moved, v[k] - lr * a[k] * slope, new_a
            ends.append(theta)
        w = sum(ends) / 2
    return w, v, a


def record_of(run):
    return run.store.rows.model[WEIGHT].flatten().tolist(), run.store.rows.alpha.tolist()


@each_engine
@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("alpha", [0.25, 0.5])
def test_q2_in_plain_numbers(engine, alpha, adaptive):
    run = Run(APFL(full_batch(5), alpha, adaptive), q2(), scalar_model(), engine, at(0.0))
    for rounds in (1, 2, 3):
        w, v, a = reference(rounds, alpha, adaptive)
        assert run.rounds(1).scalar() == pytest.approx(w, abs=1e-12)
        found = record_of(run)
        assert found[0] == pytest.approx(v, abs=1e-12)
        assert found[1] == pytest.approx(a, abs=1e-12)
        mixed = [a[k] * v[k] + (1 - a[k]) * w for k in (0, 1)]
        assert [float(o[0, 0]) for o in run.outputs("received")] == pytest.approx(mixed, abs=1e-12)
    assert run.scalar() == pytest.approx(2.0000128003, abs=1e-9)  # FedAvg's third round
    if adaptive:
        assert found[1][0] != found[1][1]


def test_one_step_by_hand():
    """f = ½(θ − 1)², v = 3, w = 2, α = 0.25, step 0.1: v̄ = 2.25, slope 1.25.

    v ← 3 − 0.1·0.25·1.25 = 2.96875, α ← 0.25 − 0.1·(3 − 2)·1.25 = 0.125, w ← 2 − 0.1·1 = 1.9.
    """
    run = Run(APFL(full_batch(1), 0.25), quadratics([1.0], [1.0]), scalar_model(), initial=at(2.0)).rounds(1)
    run.store.rows.model[WEIGHT][:] = 3.0
    run.store.rows.alpha[:] = 0.25
    run.state = replace(run.state, params=at(2.0))
    run.rounds(1)
    assert run.scalar() == pytest.approx(1.9, abs=1e-15)
    assert record_of(run) == ([pytest.approx(2.96875, abs=1e-15)], [pytest.approx(0.125, abs=1e-15)])


@pytest.mark.parametrize(("apart", "end"), [(3.0, 0.0), (-3.0, 1.0)])
def test_the_mixing_weight_stays_within_its_bounds(apart, end):
    """v on the wrong side of w: a long step of α to 0; on the right side, to 1."""
    run = Run(APFL(full_batch(1, 1.0), 0.5), quadratics([1.0], [0.0]), scalar_model(), initial=at(4.0)).rounds(1)
    run.store.rows.model[WEIGHT][:] = 4.0 + apart
    run.store.rows.alpha[:] = 0.5
    run.state = replace(run.state, params=at(4.0))
    assert record_of(run.rounds(1))[1] == [end]


@pytest.mark.parametrize(("engine", "norm"), [(ENGINES[0], True), (ENGINES[1], False)], ids=["oracle", "stacked"])
def test_the_server_is_fedavg_whatever_the_mixing_weight(engine, norm):
    federation = points((9, 5, 1))
    methods = APFL(replace(TRAINING, clip=1.0), 0.7), FedAvg(replace(TRAINING, clip=1.0))
    runs = [Run(m, federation, mlp(federation, norm=norm), engine).rounds(2) for m in methods]
    assert same_bits(runs[0].state, runs[1].state)
    assert (runs[0].logs[0].bytes_up, runs[0].logs[0].bytes_down) == (
        runs[1].logs[0].bytes_up, runs[1].logs[0].bytes_down)  # fmt: skip


def test_a_weight_of_zero_is_fedavg():
    federation = points((9, 5, 1))
    runs = [Run(m, federation, mlp(federation)).rounds(2) for m in (APFL(TRAINING, 0.0, False), FedAvg(TRAINING))]
    assert all(torch.equal(a, b) for a, b in zip(*(run.outputs("received") for run in runs), strict=True))
    assert [log.loss for log in runs[0].logs] == [log.loss for log in runs[1].logs]


@pytest.mark.parametrize(("engine", "norm"), [(ENGINES[0], True), (ENGINES[1], False)], ids=["oracle", "stacked"])
def test_a_weight_of_one_is_local(engine, norm):
    federation = points((9, 5, 1))
    local = replace(TRAINING, momentum=0.5)
    runs = [Run(m, federation, mlp(federation, norm=norm), engine).rounds(2)
            for m in (APFL(local, 1.0, False), Local(local))]  # fmt: skip
    assert same_bits(runs[0].store.rows.model, runs[1].store.rows)
    ends = runs[0].outputs("received"), runs[1].outputs("received")
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    assert [log.loss for log in runs[0].logs] == [log.loss for log in runs[1].logs]


def test_running_statistics_are_not_mixed():
    """Those of the record are of the mixture's own batches: with α = ½ neither the server's nor what was received."""
    federation = points((9, 5))
    model = mlp(federation, norm=True)
    run = Run(APFL(TRAINING, 0.5, False), federation, model).rounds(1)
    for name in model.buffers:
        mine = run.store.rows.model[name][0]
        assert worst(mine, run.sim.initial[name]) > 1e-3
    before = {n: run.store.rows.model[n].clone() for n in model.buffers}
    still = Run(APFL(replace(TRAINING, lr=0.0), 0.5, False), federation, model).rounds(1)
    alone = Run(Local(replace(TRAINING, lr=0.0)), federation, model).rounds(1)
    assert all(torch.equal(still.store.rows.model[n], alone.store.rows[n]) for n in before)


def test_newcomers_predict_with_the_servers_model():
    federation = points((9, 5, 4))
    model = mlp(federation)
    runs = [Run(m, federation, model).rounds(2, [0, 1]) for m in (APFL(TRAINING), FedAvg(TRAINING))]
    ours, theirs = (run.outputs("received", newcomers=True)[2] for run in runs)
    assert worst(ours, theirs) < 1e-14


def test_an_absent_client_keeps_its_record():
    federation = points((9, 5, 4))
    run = Run(APFL(TRAINING), federation, mlp(federation)).rounds(1)
    before = tree_map(torch.clone, tree_rows(run.store.rows, 1))
    moved = tree_map(torch.clone, tree_rows(run.store.rows, 0))
    run.rounds(2, cohort=[0, 2])
    assert same_bits(before, tree_rows(run.store.rows, 1))
    assert worst(moved.model, tree_rows(run.store.rows, 0).model) > 1e-3
    assert float(moved.alpha) != float(run.store.rows.alpha[0])


def test_fine_tuning_moves_the_mixture():
    """By as many steps as a round has: to where the mixture of the client's own end is, before the server's mean."""
    run = Run(APFL(full_batch(5)), q2(), scalar_model(), initial=at(0.0)).rounds(1)
    w, v, a = reference(1, 0.5, True)
    ends = []
    for k, (curvature, centre) in enumerate([(1.0, 0.0), (4.0, 3.0)]):
        theta, mine, alpha = w, v[k], a[k]
        for _ in range(2):
            slope = curvature * (alpha * mine + (1 - alpha) * theta - centre)
            new = theta - 0.1 * curvature * (theta - centre), mine - 0.1 * alpha * slope
            alpha = min(1.0, max(0.0, alpha - 0.1 * (mine - theta) * slope))
            theta, mine = new
        ends.append(alpha * mine + (1 - alpha) * theta)
    assert [float(o[0, 0]) for o in run.outputs("adapted", epochs=2)] == pytest.approx(ends, abs=1e-12)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"alpha": -0.1}, "alpha must be at least 0 and at most 1"),
        ({"alpha": 1.1}, "alpha must be at least 0 and at most 1"),
        ({"alpha": float("nan")}, "alpha must be a finite number; nan"),
        ({"adaptive": "maybe"}, "adaptive takes true or false"),
    ],
)
def test_bad_hyper_parameters(given, message):
    with pytest.raises(ValueError, match=message):
        APFL(**given)
