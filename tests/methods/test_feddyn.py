"""FedDyn: the closed-form test bed, the two models of its server, the invariant of its drifts, its bytes."""

from dataclasses import replace

import pytest
import torch
from oracles.sims import (
    DOUBLE,
    ENGINES,
    WEIGHT,
    Run,
    at,
    each_engine,
    full_batch,
    leaves,
    mlp,
    points,
    q2,
    quadratics,
    same_bits,
    scalar_model,
    worst,
)

from posterity import methods
from posterity.core.passes import Training
from posterity.core.tree import tree_map, tree_rows
from posterity.methods.feddyn import FedDyn, cloud
from posterity.methods.fedprox import FedProx

TRAINING = Training(lr=0.1, batch=4, epochs=2)
CURVATURE, CENTRE = (1.0, 4.0), (0.0, 3.0)


def reference(cohorts, alpha, steps=5, lr=0.1, sizes=(1, 1), balance="clients", start=0.0):
    """Plain numbers on Q2: w, the mean of the cohort's models, and both drifts, after each round."""
    scale = [1.0 if balance == "clients" else sum(sizes) / 2 / n for n in sizes]
    w, drift, seen = start, [0.0, 0.0], []
    for cohort in cohorts:
        ends = {}
        for k in cohort:
            theta = w
            for _ in range(steps):
                pull = alpha * scale[k] * (theta - (w - drift[k]))
                theta -= lr * (CURVATURE[k] * (theta - CENTRE[k]) + pull)
            ends[k] = theta
        for k, theta in ends.items():
            drift[k] += theta - w
        average = sum(ends.values()) / len(ends)
        w = average + sum(drift) / 2
        seen.append((w, average, list(drift)))
    return seen


def played(method, cohorts, federation=None, engine=ENGINES[1], start=0.0):
    """The same of the engine."""
    run, seen = Run(method, federation or q2(), scalar_model(), engine, at(start)), []
    for cohort in cohorts:
        run.rounds(1, cohort)
        seen.append((float(cloud(run.state)[WEIGHT]), run.scalar(), run.personal()))
    return seen


@each_engine
def test_q2_with_exact_local_solves(engine):
    """The printed numbers. 64 steps of ¼ shrink the distance to the solution by 0.625⁶⁴ < 1e-13."""
    seen = played(FedDyn(full_batch(64, lr=0.25), alpha=0.5), [[0, 1]] * 4, engine=engine)
    assert [w for w, _, _ in seen] == pytest.approx([2.6666667, 2.2222222, 2.1728395, 2.2057613], abs=5e-8)
    assert [w for w, _, _ in seen] == pytest.approx([8 / 3, 20 / 9, 176 / 81, 536 / 243], abs=1e-12)


def test_q2_limit():
    """Everybody comes to 2.4, and stays where −α h_k is the gradient of client k: h = (−4.8, 4.8) for α = ½."""
    method = FedDyn(full_batch(1, lr=0.25), alpha=0.5)
    w, average, drift = played(method, [[0, 1]] * 40)[-1]
    assert (w, average) == pytest.approx((2.4, 2.4), abs=1e-9)
    assert drift == pytest.approx([-4.8, 4.8], abs=0.03)  # the last to arrive
    run = Run(method, q2(), scalar_model(), initial=at(2.4)).rounds(1)
    run.store.write(torch.arange(2), {WEIGHT: torch.tensor([-4.8, 4.8], dtype=DOUBLE).reshape(2, 1, 1)})
    run.state = replace(run.state, params=at(2.4), drift=at(0.0))
    run.rounds(1)
    assert float(cloud(run.state)[WEIGHT]) == pytest.approx(2.4, abs=1e-12)
    assert run.personal() == pytest.approx([-4.8, 4.8], abs=1e-12)


@each_engine
@pytest.mark.parametrize("balance", ["clients", "samples"])
def test_partial_participation_in_plain_numbers(engine, balance):
    """Sizes 3 and 1, clients that come and go: an absent client's drift still counts in w, by 1/K."""
    cohorts, sizes = [[0, 1], [1], [0], [0, 1], [1]], (3, 1)
    method = FedDyn(full_batch(5), alpha=0.5, balance=balance)
    seen = played(method, cohorts, quadratics(CURVATURE, CENTRE, sizes), engine, 1.0)
    for ours, plain in zip(seen, reference(cohorts, 0.5, sizes=sizes, balance=balance, start=1.0), strict=True):
        assert ours[:2] == pytest.approx(plain[:2], abs=1e-12)
        assert ours[2] == pytest.approx(plain[2], abs=1e-12)


def test_whose_mean_is_minimised():
    """Three samples against one: 2.4 for equal clients, (3·1·0 + 1·4·3) / (3·1 + 1·4) = 12/7 for equal samples."""
    for balance, expected in (("clients", 2.4), ("samples", 12 / 7)):
        plain = reference([[0, 1]] * 400, 0.5, sizes=(3, 1), balance=balance)[-1]
        assert plain[0] == pytest.approx(expected, abs=1e-6)
        method = FedDyn(full_batch(5), alpha=0.5, balance=balance)
        run = Run(method, quadratics(CURVATURE, CENTRE, (3, 1)), scalar_model(), initial=at(plain[1]))
        run.rounds(1)  # its records, to be replaced by those of the limit
        drifts = torch.tensor(plain[2], dtype=DOUBLE).reshape(2, 1, 1)
        run.store.write(torch.arange(2), {WEIGHT: drifts})
        run.state = replace(run.state, params=at(plain[1]), drift={WEIGHT: drifts.mean(0)})
        assert run.rounds(1).scalar() == pytest.approx(expected, abs=1e-6)
        assert run.personal() == pytest.approx(plain[2], abs=1e-6)


@each_engine
def test_two_clients_by_hand(engine):
    """α = 2, η = 0.1, two steps from w = 1; A = 1 pulls to 2 with three samples, A = 2 to 5 with one.

    Client 1: 1 → 1.1 → 1.1 − 0.1·(−0.9 + 2·0.1) = 1.17. Client 2: 1 → 1.8 → 1.8 − 0.1·(−6.4 + 2·0.8) = 2.28.
    Plain mean 1.725, drifts 0.17 and 1.28 with the mean 0.725: w = 2.45.
    """
    federation = quadratics([1.0, 2.0], [2.0, 5.0], [3, 1])
    (seen,) = played(FedDyn(full_batch(2), alpha=2.0), [[0, 1]], federation, engine, 1.0)
    assert seen[:2] == pytest.approx((2.45, 1.725), abs=1e-12)
    assert seen[2] == pytest.approx([0.17, 1.28], abs=1e-12)


@each_engine
def test_what_is_scored(engine):
    """The mean of the last clients; trained: from w; fine-tuned: from what is scored, without a penalty."""
    run = Run(FedDyn(full_batch(5), alpha=0.5), q2(), scalar_model(), engine, at(0.0)).rounds(2)
    w, point = float(cloud(run.state)[WEIGHT]), run.scalar()
    for newcomers in (False, True):
        assert [float(o[0, 0]) for o in run.outputs("received", newcomers=newcomers)] == pytest.approx([point] * 2)
    own = [(point - c) * (1 - 0.1 * a) ** 3 + c for a, c in zip(CURVATURE, CENTRE, strict=True)]
    assert [float(o[0, 0]) for o in run.outputs("adapted", epochs=3)] == pytest.approx(own, abs=1e-12)
    after = reference([[0, 1]] * 3, 0.5)
    ends = [w + new - old for new, old in zip(after[2][2], after[1][2], strict=True)]
    assert [float(o[0, 0]) for o in run.outputs("trained")] == pytest.approx(ends, abs=1e-12)
    assert "mean of the clients that trained last" in FedDyn().outside


def test_the_first_round_is_fedprox_of_equal_clients():
    """Without drifts yet; later it is another method."""
    federation = points((8, 8, 8))
    first = [Run(m, federation, mlp(federation, norm=True)).rounds(1) for m in
             (FedDyn(TRAINING, alpha=0.3), FedProx(TRAINING, mu=0.3))]  # fmt: skip
    assert worst(first[0].state.params, first[1].state.params) < 1e-14
    assert first[0].logs[0].loss == pytest.approx(first[1].logs[0].loss, abs=1e-14)
    later = [run.rounds(1) for run in first]
    assert worst(later[0].state.params, later[1].state.params) > 1e-3


@each_engine
def test_the_mean_drift_is_that_of_all_clients(engine):
    """Under partial participation too: absent clients count with the drift that they have (0 before they came)."""
    federation = points((23, 9, 17, 1, 12, 5, 2))
    run = Run(FedDyn(TRAINING), federation, mlp(federation, norm=True, eps=1e-2), engine)
    for cohort in ([0, 2, 3, 6], [1, 2], [0, 1, 4, 6], [3]):
        run.rounds(1, cohort)
        known = run.store.known.to(DOUBLE)
        mean = {n: torch.tensordot(known, v, dims=1) / 7 for n, v in leaves(run.store.rows).items()}
        assert worst(mean, run.state.drift) < 1e-13 * max(1.0, max(float(m.abs().max()) for m in mean.values()))
    assert max(float(v.abs().max()) for v in run.state.drift.values()) > 1e-3
    assert set(run.state.drift) == run.sim.model.trainable  # buffers have no drift


def test_buffers_are_plain_means():
    """Three samples to one: the statistics of both count alike, and w has those of the average."""
    federation = points((12, 4))
    run = Run(FedDyn(full_batch(1)), federation, mlp(federation, norm=True)).rounds(1)
    single = [Run(FedDyn(full_batch(1)), federation, run.sim.model).rounds(1, cohort=[k]) for k in (0, 1)]
    for name in run.sim.model.buffers:
        mean = (single[0].state.params[name] + single[1].state.params[name]) / 2
        assert torch.allclose(run.state.params[name], mean, atol=1e-14)
        assert torch.equal(cloud(run.state)[name], run.state.params[name])


def test_a_strong_pull_keeps_everybody_at_the_broadcast():
    """Exact solves with α = 1e8 move by at most |∇f| / α; the step 1/α solves them."""
    run = Run(FedDyn(full_batch(3, lr=1e-8), alpha=1e8), q2(), scalar_model(), initial=at(0.5)).rounds(1)
    assert run.scalar() == pytest.approx(0.5, abs=1e-6)
    assert run.scalar() != 0.5


@pytest.mark.parametrize("norm", [False, True])
def test_bytes_are_fedavgs(norm):
    """w down, the way gone and a weight up; `samples` tells the mean size of a client too. Scoring is not counted."""
    federation = points((5, 9, 4))
    d = 6 * 8 + 8 + 8 * 3 + 3 + (32 if norm else 0)
    for options, more in (({}, 0), ({"balance": "samples"}, 1)):
        log = Run(FedDyn(**options), federation, mlp(federation, norm=norm), dtype=torch.float32).rounds(1).logs[0]
        assert log.bytes_down == 3 * 4 * (d + more)
        assert log.bytes_up == 3 * 4 * (d + 1)


def test_an_absent_client_keeps_its_drift():
    federation = points((9, 5, 4))
    run = Run(FedDyn(TRAINING), federation, mlp(federation)).rounds(1)
    before = tree_map(torch.clone, tree_rows(run.store.rows, 1))
    run.rounds(2, cohort=[0, 2])
    assert same_bits(before, tree_rows(run.store.rows, 1))


def test_the_values_of_the_paper():
    paper = methods.build("feddyn@paper")
    assert (paper.alpha, paper.balance) == (0.01, "samples")
    assert paper.local == Training(lr=0.1, epochs=5, batch=50, weight_decay=1e-3, clip=10.0)


def test_bad_hyper_parameters():
    for alpha in (0.0, -1.0):
        with pytest.raises(ValueError, match=r"alpha must be above 0; "):
            FedDyn(alpha=alpha)
    with pytest.raises(ValueError, match="balance = 'sample' is unknown: did you mean 'samples'"):
        FedDyn(balance="sample")
