"""pFedMe: the closed-form test bed, plain arithmetic, FedAvg as its case of one inner step."""

import pytest
import torch
from oracles.sims import (
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

from posterity import methods
from posterity.core.passes import Training
from posterity.core.tree import tree_map, tree_rows
from posterity.methods.fedavg import FedAvg
from posterity.methods.pfedme import PFedMe

TRAINING = Training(lr=0.1, batch=4, epochs=2)
EXACT = {
    "lam": 15.0,
    "prox_steps": 16,
    "prox_lr": 2 / 35,
}  # slopes change by 16 and 19: an error shrinks by 3/35 a step


def reference(rounds, w, curvature, centre, copies, local, beta=1.0, lam=15.0, inner=5, prox_lr=0.01):
    """Algorithm 1 in plain numbers, on quadratics: w and the personal models after each round."""
    found, theta = [], [w] * len(curvature)
    for _ in range(rounds):
        ends = []
        for k, (a, c) in enumerate(zip(curvature, centre, strict=True)):
            mine = theta[k] = w
            for _ in range(local.epochs):
                theta[k] = mine
                for _ in range(inner):
                    theta[k] -= prox_lr * (a * (theta[k] - c) + lam * (theta[k] - mine))
                mine -= local.lr * lam * (mine - theta[k])
            ends.append(mine)
        mean = sum(n * end for n, end in zip(copies, ends, strict=True)) / sum(copies)
        w = (1 - beta) * w + beta * mean
        found.append((w, *theta))
    return found


@each_engine
def test_q2(engine):
    """The printed numbers to their last digit."""
    run = Run(PFedMe(full_batch(1, lr=0.01), **EXACT), q2(), scalar_model(), engine, at(0.0))
    assert [run.rounds(1).scalar() for _ in range(3)] == pytest.approx([0.0473684, 0.0937669, 0.1392152], abs=5e-8)


def test_q2_fixed_point():
    """Where Σ A (w − m) / (A + λ) = 0: 2.3132530, with personal models (A m + λ w) / (A + λ)."""
    w = (12 / 19) / (1 / 16 + 4 / 19)
    assert w == pytest.approx(2.3132530, abs=5e-8)
    run = Run(PFedMe(full_batch(1, lr=0.01), **EXACT), q2(), scalar_model(), initial=at(w)).rounds(2)
    assert run.scalar() == pytest.approx(w, abs=1e-10)
    assert run.personal() == pytest.approx([2.168675, 2.457831], abs=5e-7)
    assert run.personal() == pytest.approx([15 * w / 16, (12 + 15 * w) / 19], abs=1e-10)


@each_engine
@pytest.mark.parametrize("beta", [1.0, 0.5, 2.0])
def test_two_clients_in_plain_numbers(engine, beta):
    """Sizes 1 and 3, two batches a round, three inner steps that do not reach the minimiser."""
    shape = ([1.0, 2.0], [2.0, 5.0], [1, 3])
    local, inner = full_batch(2, lr=0.03), {"lam": 8.0, "prox_lr": 0.04}
    method = PFedMe(local, beta=beta, prox_steps=3, **inner)
    run = Run(method, quadratics(*shape), scalar_model(), engine, at(1.0))
    for expected in reference(3, 1.0, *shape, local, beta, inner=3, **inner):
        run.rounds(1)
        assert [run.scalar(), *run.personal()] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("how", [{}, {"momentum": 0.9, "weight_decay": 0.01}])
def test_one_inner_step_is_fedavg(how):
    """θ = w − η_p ∇f, so w moves by η λ η_p ∇f: FedAvg with that step, running statistics included.

    Momentum is that of the outer steps. Decay is λη_p times as strong in FedAvg's units, for λη_p scales its gradient.
    """
    federation = points((9, 5, 1))
    model = mlp(federation, norm=True, eps=1e-2)
    local, plain = Training(lr=0.5, batch=4, epochs=2, **how), dict(how)
    if how:
        plain["weight_decay"] = how["weight_decay"] / (10 * 0.02)
    ours = PFedMe(local, lam=10.0, prox_steps=1, prox_lr=0.02)
    runs = [Run(m, federation, model).rounds(2) for m in
            (ours, FedAvg(Training(lr=0.5 * 10 * 0.02, batch=4, epochs=2, **plain)))]  # fmt: skip
    assert worst(runs[0].state.params, runs[1].state.params) < 1e-11


def test_the_personal_model_is_renewed_by_every_round():
    """What FL-bench forgets: scored is what training left, not what the client began with."""
    federation = points((9, 5, 4))
    run, seen = Run(PFedMe(TRAINING, lam=5.0), federation, mlp(federation)), []
    for _ in range(3):
        seen.append(torch.cat(run.rounds(1).outputs("received")))
        for k in range(3):
            x = federation.x[federation.test.client(k)]
            logits = run.sim.model.logits(tree_rows(run.store.rows, k), x)
            assert torch.allclose(run.outputs("received")[k], logits.log_softmax(-1), atol=1e-12)
    assert float((seen[1] - seen[0]).abs().min()) > 1e-6
    assert float((seen[2] - seen[1]).abs().min()) > 1e-6


def test_an_absent_client_keeps_its_model():
    federation = points((9, 5, 4))
    run = Run(PFedMe(TRAINING), federation, mlp(federation)).rounds(1)
    before = tree_map(torch.clone, tree_rows(run.store.rows, 1))
    run.rounds(2, cohort=[0, 2])
    assert same_bits(before, tree_rows(run.store.rows, 1))


def test_a_newcomer_has_the_common_model_and_adapts_as_in_a_round():
    """One step: (A m + λ w) / (A + λ)."""
    run = Run(PFedMe(full_batch(1, lr=0.01), **EXACT), q2(), scalar_model(), initial=at(0.0)).rounds(2)
    w = run.scalar()
    received = [float(o[0, 0]) for o in run.outputs("received", newcomers=True)]
    adapted = [float(o[0, 0]) for o in run.outputs("adapted", epochs=1, newcomers=True)]
    assert received == pytest.approx([w, w], abs=1e-15)
    assert adapted == pytest.approx([15 * w / 16, (12 + 15 * w) / 19], abs=1e-12)


def test_running_statistics_have_no_step_of_the_server():
    """Their mean is taken, so that a variance stays one; and both models have the same."""
    federation = points((9, 5))
    model = mlp(federation, norm=True)
    one, three = (Run(PFedMe(TRAINING, beta=beta), federation, model).rounds(1) for beta in (1.0, 3.0))
    for name in model.buffers:
        assert torch.equal(one.state.params[name], three.state.params[name])
        assert not torch.equal(one.state.params[name], one.sim.initial[name])
        mean = (9 * one.store.rows[name][0] + 5 * one.store.rows[name][1]) / 14
        assert torch.allclose(one.state.params[name], mean, atol=1e-14)


def test_the_reported_loss_is_the_personal_models():
    """Before the last of its steps, without the pull: client 1 from w = 1 with steps of 0.1: θ = 0.9."""
    method = PFedMe(full_batch(1), lam=2.0, prox_steps=2, prox_lr=0.1)
    run = Run(method, quadratics([1.0], [0.0]), scalar_model(), initial=at(1.0)).rounds(1)
    assert run.logs[0].loss == pytest.approx(0.5 * 0.9**2, abs=1e-14)


def test_bytes_are_fedavgs():
    federation = points((5, 9))
    logs = [Run(m, federation, mlp(federation)).rounds(1).logs[0] for m in (PFedMe(), FedAvg())]
    assert logs[0].bytes_up == logs[1].bytes_up
    assert logs[0].bytes_down == logs[1].bytes_down


def test_the_papers_values():
    paper = methods.build("pfedme@paper")
    assert paper == PFedMe(Training(lr=0.005, steps=20, batch=20), 15.0, 5, 0.01, beta=1.0)


def test_bad_hyper_parameters():
    model = scalar_model()
    assert PFedMe().remarks(model) == ()
    assert "may overshoot" in PFedMe(lam=40.0).remarks(model)[0]
    assert "at most 1, not 1.5" in PFedMe(Training(lr=0.1)).remarks(model)[0]
    for field, value in (("lam", -1.0), ("prox_steps", 0), ("prox_lr", -0.1), ("beta", -1.0)):
        with pytest.raises(ValueError, match=rf"{field} must be at least \d; {value}"):
            PFedMe(**{field: value})


def test_every_inner_step_renews_running_statistics():
    """Without any movement three inner steps on all data are three epochs of FedAvg on all data."""
    federation = points((9, 5))
    model = mlp(federation, norm=True)
    runs = [Run(m, federation, model).rounds(1) for m in
            (PFedMe(full_batch(1, lr=0.0), prox_steps=3, prox_lr=0.0), FedAvg(full_batch(3, lr=0.0)))]  # fmt: skip
    assert worst(runs[0].state.params, runs[1].state.params) < 1e-12
    assert worst(runs[0].state.params, runs[0].sim.initial) > 1e-2
