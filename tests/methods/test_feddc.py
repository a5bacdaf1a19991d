"""FedDC: the closed-form test bed, its reductions to FedDyn and SCAFFOLD, its invariants, its bytes."""

from dataclasses import replace

import pytest
import torch
from oracles.sims import (
    DOUBLE,
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
from posterity.methods.feddc import FedDC, Personal
from posterity.methods.feddyn import FedDyn, cloud
from posterity.methods.scaffold import SCAFFOLD

TRAINING = Training(lr=0.1, batch=4, epochs=2)
CURVATURE, CENTRE = (1.0, 4.0), (0.0, 3.0)


class Newton(FedDC):
    """Every step ends at the minimum of the client's objective, which is quadratic here."""

    def passes(self):
        (inner,) = super().passes()

        def step(carry, batch, here):
            def slope(params):
                return torch.func.grad(lambda p: self.corrected(p, batch, here)[0])(params)

            found, second = slope(carry.params), torch.func.grad(lambda p: slope(p)[WEIGHT].sum())(carry.params)
            return replace(carry, params=tree_map(lambda p, g, h: p - g / h, carry.params, found, second))

        return (replace(inner, step=step),)


def reference(cohorts, alpha, steps=5, lr=0.1, sizes=(1, 1), balance="clients", start=0.0):
    """Plain numbers on Q2 after each round: w, the mean of the cohort's models, g, drifts, and gradients."""
    share = [1.0 if balance == "clients" else 2 * n / sum(sizes) for n in sizes]
    w, g, drift, own, seen = start, 0.0, [0.0, 0.0], [0.0, 0.0], []
    for cohort in cohorts:
        ends, new = {}, list(own)
        for k in cohort:
            theta = w
            for _ in range(steps):
                slope = CURVATURE[k] * (theta - CENTRE[k]) + alpha / share[k] * (theta - w + drift[k])
                theta -= lr * (slope + g / share[k] - own[k])
            ends[k], new[k] = theta, own[k] - g / share[k] - (theta - w) / (steps * lr)
        for k, theta in ends.items():
            drift[k] += theta - w
        g += sum(share[k] * (new[k] - own[k]) for k in cohort) / 2
        own, average = new, sum(ends.values()) / len(ends)
        w = average + sum(drift) / 2
        seen.append((w, average, g, list(drift), list(own)))
    return seen


def told(run):
    """The same of the engine."""
    rows = run.store.rows
    drift, slope = (part[WEIGHT].flatten().tolist() for part in (rows.drift, rows.slope))
    return (
        float(cloud(run.state)[WEIGHT]),
        run.scalar(),
        float(run.state.slope[WEIGHT]),
        drift,
        slope,
    )


def test_q2_with_exact_local_solves():
    """The printed numbers: α = 1, one step that ends at the minimum, τη = ½. By hand for round 1 from w = 0:

    θ = (0, 12/5), so the mean is 1.2, the mean drift 1.2 and w = 2.4; g_2 = −2.4 / 0.5 = −4.8 and g = −2.4.
    """
    run, seen = Run(Newton(full_batch(1, lr=0.5), alpha=1.0), q2(), scalar_model(), initial=at(0.0)), []
    for _ in range(3):
        seen.append(told(run.rounds(1)))
    assert [w for w, *_ in seen] == pytest.approx([2.4, 3.12, 2.616], abs=1e-12)
    assert seen[0][:3] == pytest.approx((2.4, 1.2, -2.4), abs=1e-12)
    assert seen[0][4] == pytest.approx([0.0, -4.8], abs=1e-12)
    w, average, g, drift, _ = told(run.rounds(37))
    assert (w, average, g) == pytest.approx((2.4, 2.4, 0.0), abs=1e-9)
    assert drift == pytest.approx([-0.8, 0.8], abs=1e-9)


@each_engine
@pytest.mark.parametrize("balance", ["clients", "samples"])
def test_partial_participation_in_plain_numbers(engine, balance):
    """Sizes 3 and 1, clients that come and go: an absent client's drift and gradient still count, by 1/K."""
    cohorts, sizes = [[0, 1], [1], [0], [0, 1], [1]], (3, 1)
    method = FedDC(full_batch(5), alpha=0.5, balance=balance)
    run = Run(method, quadratics(CURVATURE, CENTRE, sizes), scalar_model(), engine, at(1.0))
    plain = reference(cohorts, 0.5, sizes=sizes, balance=balance, start=1.0)
    for cohort, expected in zip(cohorts, plain, strict=True):
        found = told(run.rounds(1, cohort))
        assert found[:3] == pytest.approx(expected[:3], abs=1e-11)
        assert found[3] == pytest.approx(expected[3], abs=1e-11)
        assert found[4] == pytest.approx(expected[4], abs=1e-11)


@pytest.mark.parametrize(("balance", "expected"), [("clients", 2.4), ("samples", 12 / 7)])
def test_whose_mean_is_minimised(balance, expected):
    """Three samples against one: 2.4 for equal clients, (3·1·0 + 1·4·3) / (3·1 + 1·4) for equal samples."""
    assert reference([[0, 1]] * 300, 0.5, sizes=(3, 1), balance=balance)[-1][:2] == pytest.approx(
        [expected] * 2, abs=1e-6
    )
    method = FedDC(full_batch(5), alpha=0.5, balance=balance)
    run = Run(method, quadratics(CURVATURE, CENTRE, (3, 1)), scalar_model(), initial=at(0.0)).rounds(40)
    assert run.scalar() == pytest.approx(expected, abs=1e-3)


def test_steps_are_those_of_the_client():
    """Sizes 3 and 1 in batches of one: three steps and one. g_k is the way over η and the client's own steps."""
    federation = quadratics(CURVATURE, CENTRE, (3, 1))
    run = Run(FedDC(Training(lr=0.1, batch=1), alpha=0.5), federation, scalar_model(), initial=at(1.0)).rounds(1)
    ends = [reference([[k]], 0.5, steps=s, start=1.0)[0][1] for k, s in ((0, 3), (1, 1))]
    found = run.store.rows.slope[WEIGHT].flatten().tolist()
    assert found == pytest.approx([(1 - ends[0]) / 0.3, (1 - ends[1]) / 0.1], abs=1e-12)


def forgotten(run, drift):
    """The run without what one of the two terms has collected."""
    state, rows = run.state, run.store.rows
    if drift:
        run.state = replace(state, drift=tree_map(torch.zeros_like, state.drift))
        kept = Personal(tree_map(torch.zeros_like, rows.drift), rows.slope)
    else:
        run.state = replace(state, slope=tree_map(torch.zeros_like, state.slope))
        kept = Personal(rows.drift, tree_map(torch.zeros_like, rows.slope))
    run.store.write(torch.arange(len(run.store.known)), tree_map(torch.clone, kept))


@each_engine
def test_without_the_linear_term_it_is_feddyn(engine):
    federation = points((9, 5, 4))
    model = mlp(federation, norm=True)
    ours, theirs = (Run(m(TRAINING, alpha=0.3), federation, model, engine) for m in (FedDC, FedDyn))
    for _ in range(3):
        theirs.rounds(1)
        forgotten(ours.rounds(1), drift=False)
    assert worst(ours.state.params, theirs.state.params) < 1e-14
    assert worst(ours.state.drift, theirs.state.drift) < 1e-14
    assert worst(ours.store.rows.drift, theirs.store.rows) < 1e-14


@each_engine
def test_without_pull_and_drift_it_is_scaffold(engine):
    """α too small to count and drifts forgotten after every round: option II, models and variates."""
    federation = points((9, 5, 4))
    model = mlp(federation, norm=True)
    ours, theirs = (
        Run(FedDC(TRAINING, alpha=1e-300), federation, model, engine),
        Run(SCAFFOLD(TRAINING), federation, model, engine),
    )
    for _ in range(3):
        theirs.rounds(1)
        forgotten(ours.rounds(1), drift=True)
    assert worst(ours.state.params, theirs.state.params) < 1e-13
    assert worst(ours.state.slope, theirs.state.control) < 1e-12
    assert worst(ours.store.rows.slope, theirs.store.rows) < 1e-12


@each_engine
def test_the_means_are_those_of_all_clients(engine):
    """Under partial participation too: absent clients count with what they have (0 before they came)."""
    federation = points((23, 9, 17, 1, 12, 5, 2))
    run = Run(FedDC(TRAINING), federation, mlp(federation, norm=True, eps=1e-2), engine)
    for cohort in ([0, 2, 3, 6], [1, 2], [3]):
        run.rounds(1, cohort)
        known = run.store.known.to(DOUBLE)
        for rows, held in ((run.store.rows.drift, run.state.drift), (run.store.rows.slope, run.state.slope)):
            mean = {n: torch.tensordot(known, v, dims=1) / 7 for n, v in leaves(rows).items()}
            assert worst(mean, held) < 1e-13 * max(1.0, max(float(m.abs().max()) for m in mean.values()))
            assert set(held) == run.sim.model.trainable  # buffers have neither
    assert max(float(v.abs().max()) for v in run.state.slope.values()) > 1e-3


@each_engine
def test_what_is_scored(engine):
    """The mean of the last clients; trained: from w; fine-tuned: from what is scored, without both terms."""
    after = reference([[0, 1]] * 3, 0.5)
    run = Run(FedDC(full_batch(5), alpha=0.5), q2(), scalar_model(), engine, at(0.0)).rounds(2)
    point = after[1][1]
    for newcomers in (False, True):
        assert [float(o[0, 0]) for o in run.outputs("received", newcomers=newcomers)] == pytest.approx([point] * 2)
    own = [(point - c) * (1 - 0.1 * a) ** 3 + c for a, c in zip(CURVATURE, CENTRE, strict=True)]
    assert [float(o[0, 0]) for o in run.outputs("adapted", epochs=3)] == pytest.approx(own, abs=1e-11)
    ends = [after[1][0] + new - old for new, old in zip(after[2][3], after[1][3], strict=True)]
    assert [float(o[0, 0]) for o in run.outputs("trained")] == pytest.approx(ends, abs=1e-11)
    assert "mean of the clients that trained last" in FedDC().outside


def test_the_linear_term_has_no_value():
    """One step from w with drifts and gradients: the loss reported is f_2(w) and the pull alone."""
    run = Run(FedDC(full_batch(1), alpha=0.5), q2(), scalar_model(), initial=at(1.0)).rounds(1)
    w, _, _, drift, _ = told(run)
    expected = 2 * (w - 3) ** 2 + 0.25 * drift[1] ** 2
    assert run.rounds(1, cohort=[1]).logs[1].loss == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("norm", [False, True])
def test_bytes_are_twice_the_model_both_ways(norm):
    """w and g down; the way gone, the change of g_k and a weight up. Buffers travel once; scoring is not counted."""
    federation = points((5, 9, 4))
    d, buffers = 6 * 8 + 8 + 8 * 3 + 3 + (16 if norm else 0), 16 if norm else 0
    for options, more in (({}, 0), ({"balance": "samples"}, 1)):
        log = Run(FedDC(**options), federation, mlp(federation, norm=norm), dtype=torch.float32).rounds(1).logs[0]
        assert log.bytes_down == 3 * 4 * (2 * d + buffers + more)
        assert log.bytes_up == 3 * 4 * (2 * d + buffers + 1)


def test_an_absent_client_keeps_its_record():
    federation = points((9, 5, 4))
    run = Run(FedDC(TRAINING), federation, mlp(federation)).rounds(1)
    before = tree_map(torch.clone, tree_rows(run.store.rows, 1))
    run.rounds(1, cohort=[0, 2])
    assert same_bits(before, tree_rows(run.store.rows, 1))


def test_the_values_of_the_paper():
    paper = methods.build("feddc@paper")
    assert (paper.alpha, paper.balance) == (0.01, "samples")
    assert paper.local == Training(lr=0.1, epochs=5, batch=50, weight_decay=1e-3)


def test_bad_hyper_parameters():
    for alpha in (0.0, -1.0):
        with pytest.raises(ValueError, match=r"alpha must be above 0; "):
            FedDC(alpha=alpha)
    for local in (Training(momentum=0.9), Training(optimiser="adam"), Training(lr=0.0), Training(clip=5.0)):
        with pytest.raises(ValueError, match=r"FedDC reads the mean gradient .* without momentum and clip$"):
            FedDC(local)
    with pytest.raises(ValueError, match="balance = 'sample' is unknown: did you mean 'samples'"):
        FedDC(balance="sample")
