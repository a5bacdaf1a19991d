"""pFedBreD: the closed-form test bed, plain arithmetic for the three priors, pFedMe as a case of two of them."""

import pytest
import torch
from oracles.sims import (
    DOUBLE,
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
)

from posterity import methods
from posterity.core.passes import Training
from posterity.core.protocol import Batch
from posterity.core.tree import tree_map, tree_rows
from posterity.methods.fedavg import FedAvg
from posterity.methods.pfedbred import PRIORS, PFedBreD, second_batch
from posterity.methods.pfedme import PFedMe

each_prior = pytest.mark.parametrize("prior", PRIORS)
TRAINING = Training(lr=0.05, batch=4, epochs=2)
EXACT = {
    "lam": 15.0,
    "prox_steps": 16,
    "prox_lr": 2 / 35,
}  # slopes change by 16 and 19: an error shrinks by 3/35 a step
Q2 = {
    "lg": ([0.0378947, 0.0751421, 0.1117530], 2.2180505),
    "meg": ([0.0473684, 0.0933431, 0.1383662], 2.3097613),
    "mh": ([0.1031495, 0.2013555, 0.2952415], 2.3442562),
}


def theta_of(run):
    return run.store.rows["theta"][WEIGHT].flatten().tolist()


def reference(prior, rounds, w, curvature, centre, copies, local, how, beta=1.0):
    """The algorithm in plain numbers, on quadratics: w, then θ_k, after each round."""
    found, theta, last = [], [w] * len(curvature), [w] * len(curvature)
    for _ in range(rounds):
        ends = []
        for k, (a, c) in enumerate(zip(curvature, centre, strict=True)):
            mine = w
            for _ in range(local.epochs):
                if prior == "mh":
                    ahead = mine - how["alpha"] * a * (mine - c)
                    mine -= how["alpha"] * a * (ahead - c)
                pull = a * (mine - c) if prior == "lg" else last[k] - theta[k]
                mu = mine - how["eta_p"] * pull
                theta[k] = mu if prior == "lg" else mine
                for _ in range(how["prox_steps"]):
                    theta[k] -= how["prox_lr"] * (a * (theta[k] - c) + how["lam"] * (theta[k] - mu))
                mine -= local.lr * how["lam"] * (mu - theta[k])
            last[k] = mine
            ends.append(mine)
        mean = sum(n * end for n, end in zip(copies, ends, strict=True)) / sum(copies)
        w = (1 - beta) * w + beta * mean
        found.append((w, *theta))
    return found


@each_engine
@each_prior
def test_q2(engine, prior):
    """The printed numbers to their last digit; two copies of every sample, one for each batch of mh."""
    run = Run(PFedBreD(full_batch(1, lr=0.01), prior, **EXACT), q2(2), scalar_model(), engine, at(0.0))
    assert [run.rounds(1).scalar() for _ in range(3)] == pytest.approx(Q2[prior][0], abs=6e-8)


@each_prior
def test_q2_limits(prior):
    """In the limit nothing moves; found in plain numbers, which are those of the specification."""
    how = {"alpha": 0.01, "eta_p": 0.05, **EXACT}
    w, *theta = reference(prior, 2000, 0.0, [1.0, 4.0], [0.0, 3.0], [1, 1], full_batch(1, lr=0.01), how)[-1]
    assert w == pytest.approx(Q2[prior][1], abs=6e-8)
    if prior == "lg":
        assert theta == pytest.approx([1.975451, 2.506137], abs=6e-7)
        run = Run(PFedBreD(full_batch(1, lr=0.01), prior, **EXACT), q2(2), scalar_model(), initial=at(w)).rounds(1)
        assert run.scalar() == pytest.approx(w, abs=1e-10)
        assert theta_of(run) == pytest.approx(theta, abs=1e-10)


@each_engine
@each_prior
def test_two_clients_in_plain_numbers(engine, prior):
    """Sizes 2 and 6, two steps a round, inner steps that do not reach the minimiser, η_p and α large, β = ½."""
    shape = ([1.0, 2.0], [2.0, 5.0], [2, 6])
    local = full_batch(2, lr=0.03)
    how = {"lam": 8.0, "eta_p": 0.3, "alpha": 0.2, "prox_steps": 3, "prox_lr": 0.04}
    run = Run(PFedBreD(local, prior, beta=0.5, **how), quadratics(*shape), scalar_model(), engine, at(1.0))
    for expected in reference(prior, 3, 1.0, *shape, local, how, 0.5):
        run.rounds(1)
        assert [run.scalar(), *theta_of(run)] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("prior", ["lg", "meg"])
def test_without_a_step_to_the_prior_mean_it_is_pfedme_bit_for_bit(prior):
    """Running statistics included: lg's gradient leaves none behind."""
    federation = points((9, 5, 1))
    model = mlp(federation, norm=True)
    ours, theirs = PFedBreD(TRAINING, prior, eta_p=0.0, prox_steps=2), PFedMe(TRAINING, prox_steps=2)
    runs = [Run(m, federation, model).rounds(2) for m in (ours, theirs)]
    assert same_bits(runs[0].state.params, runs[1].state.params)
    assert same_bits(runs[0].store.rows["theta"], runs[1].store.rows)


def test_the_two_batches_of_mh():
    """Rows by turns; padding goes to neither; a single sample is taken for both."""
    x = torch.arange(5, dtype=DOUBLE)[:, None]
    mask = torch.tensor([1, 1, 1, 1, 0], dtype=DOUBLE)
    second = second_batch(Batch(x, torch.arange(5), mask))
    assert (second.x[:, 0].tolist(), second.y.tolist(), second.mask.tolist()) == ([1, 3], [1, 3], [1, 1])
    for rows in (1, 5):
        mask = torch.tensor([1, 0, 0, 0, 0], dtype=DOUBLE)[:rows]
        only = second_batch(Batch(x[:rows], torch.arange(rows), mask))
        assert (only.x[0, 0], only.y[0], only.mask[0]) == (0, 0, 1)
        assert only.mask.sum() == 1


def test_mh_takes_two_batches_for_a_step():
    """17 samples in batches of 4: three steps, of 8, 8 and 1."""
    federation = points((17,))
    (each,) = PFedBreD(Training(batch=4)).passes()
    assert each.batch == 8
    run = Run(PFedBreD(Training(batch=4)), federation, mlp(federation)).rounds(1)
    assert run.logs[0].loss > 0
    assert [p.batch for m in ("lg", "meg") for p in PFedBreD(Training(batch=4), m).passes()] == [4, 4]


def test_a_single_sample_trains_the_personal_model():
    run = Run(PFedBreD(full_batch(1, lr=0.01), **EXACT), quadratics([4.0], [3.0]), scalar_model(), initial=at(0.0))
    run.rounds(1)
    assert theta_of(run) == pytest.approx([12 / 19], abs=1e-12)  # (c) did nothing
    assert run.scalar() == pytest.approx(0.15 * 12 / 19, abs=1e-12)


@each_prior
def test_an_absent_client_keeps_its_models(prior):
    federation = points((9, 5, 4))
    run = Run(PFedBreD(TRAINING, prior, prox_steps=1), federation, mlp(federation)).rounds(1)
    assert set(run.store.rows) == ({"theta"} if prior == "lg" else {"theta", "last"})
    before = tree_map(torch.clone, tree_rows(run.store.rows, 1))
    run.rounds(1, cohort=[0, 2])
    assert same_bits(before, tree_rows(run.store.rows, 1))


def test_a_newcomer_has_the_common_model_and_adapts_as_in_a_round():
    """µ = w at first contact, so one step of meg ends at (A m + λ w) / (A + λ)."""
    run = Run(PFedBreD(full_batch(1, lr=0.01), "meg", **EXACT), q2(), scalar_model(), initial=at(0.0)).rounds(2)
    w = run.scalar()
    received = [float(o[0, 0]) for o in run.outputs("received", newcomers=True)]
    adapted = [float(o[0, 0]) for o in run.outputs("adapted", epochs=1, newcomers=True)]
    assert received == pytest.approx([w, w], abs=1e-15)
    assert adapted == pytest.approx([15 * w / 16, (12 + 15 * w) / 19], abs=1e-12)
    assert [float(o[0, 0]) for o in run.outputs("received")] == pytest.approx(theta_of(run), abs=1e-15)


def test_running_statistics_have_no_step_of_the_server():
    federation = points((9, 5))
    model = mlp(federation, norm=True)
    one, three = (Run(PFedBreD(TRAINING, beta=b, prox_steps=1), federation, model).rounds(1) for b in (1.0, 3.0))
    for name in model.buffers:
        assert torch.equal(one.state.params[name], three.state.params[name])
        assert not torch.equal(one.state.params[name], one.sim.initial[name])


def test_bytes_are_fedavgs():
    federation = points((5, 9))
    logs = [Run(m, federation, mlp(federation)).rounds(1).logs[0] for m in (PFedBreD(prox_steps=1), FedAvg())]
    assert logs[0].bytes_up == logs[1].bytes_up
    assert logs[0].bytes_down == logs[1].bytes_down


def test_bad_hyper_parameters():
    paper = methods.build("pfedbred@paper")
    assert paper == PFedBreD(Training(lr=0.01, steps=20, batch=20), "mh", 15.0, 0.05, 0.01, 5, 0.01, 1.0)
    model = scalar_model()
    assert PFedBreD().remarks(model) == PFedBreD(eta_p=0.0).remarks(model) == ()
    assert "at most 1, not 2" in PFedBreD(lam=40.0).remarks(model)[0]
    assert "at most 1, not 3" in PFedBreD(Training(lr=0.2)).remarks(model)[0]
    for field, value in (("lam", -1.0), ("eta_p", -1.0), ("alpha", -1.0), ("prox_lr", -1.0), ("beta", -1.0)):
        with pytest.raises(ValueError, match=rf"{field} must be at least 0; {value}"):
            PFedBreD(**{field: value})
    with pytest.raises(ValueError, match=r"prox_steps must be at least 1; 0"):
        PFedBreD(prox_steps=0)
    with pytest.raises(ValueError, match=r"prior = 'kl' is unknown"):
        PFedBreD(prior="kl")
