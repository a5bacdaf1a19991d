"""pFedBayes: what is kept and sent, the server's mixing, predictions. The conjugate check is in tests/oracles."""

import pytest
import torch
from oracles.sims import WEIGHT, Run, at, mlp, points, q2, same_bits, scalar_model, worst

from posterity.core.hyperparameters import paper_values
from posterity.core.training import Training
from posterity.core.tree import tree_map, tree_rows
from posterity.methods.pfedbayes import RHO, PFedBayes

TRAINING = Training(lr=0.01, batch=4, optimiser="adam")


def test_the_copy_moves_towards_the_personal_gaussian():
    """Adam's first step is as long as its rate: the copies go 0.001 to where q_k went; the server has their mean."""
    method = PFedBayes(Training(lr=0.1, batch=10_000, optimiser="adam"), copy_lr=0.001, inner=1, spread=0.0)
    run = Run(method, q2(), scalar_model(), initial=at(1.0)).rounds(1)
    assert run.store.rows[WEIGHT].flatten().tolist() == pytest.approx([0.9, 1.1], abs=1e-6)
    assert run.scalar() == pytest.approx(1.0, abs=1e-9)  # one copy goes down, one up
    alone = Run(method, q2(), scalar_model(), initial=at(1.0)).rounds(1, cohort=[1])
    assert alone.scalar() == pytest.approx(1.001, abs=1e-8)


@pytest.mark.parametrize("beta", [0.0, 0.25, 1.0])
def test_the_server_mixes(beta):
    method = PFedBayes(Training(lr=0.1, batch=10_000, optimiser="adam"), copy_lr=0.001, inner=1, spread=0.0, beta=beta)
    run = Run(method, q2(), scalar_model(), initial=at(1.0)).rounds(1, cohort=[1])
    assert run.scalar() == pytest.approx(1 + beta * 0.001, abs=1e-8)
    assert float(run.state.rho[WEIGHT]) == pytest.approx(-3 + beta * 0.001, abs=1e-8)


def test_an_absent_client_keeps_its_gaussian():
    federation = points((5, 4))
    run = Run(PFedBayes(TRAINING), federation, mlp(federation)).rounds(1)
    before = [tree_map(torch.clone, tree_rows(run.store.rows, k)) for k in (0, 1)]
    run.rounds(1, cohort=[0])
    assert same_bits(before[1], tree_rows(run.store.rows, 1))
    assert worst(before[0], tree_rows(run.store.rows, 0)) > 1e-4


def test_bytes_are_twice_the_model_both_ways():
    """µ and ρ down; the copy's µ and ρ and a weight up. Buffers of batch norm travel once."""
    federation = points((2, 4))
    for norm in (False, True):
        log = Run(PFedBayes(), federation, mlp(federation, norm=norm), dtype=torch.float32).rounds(1).logs[0]
        d, buffers = 6 * 8 + 8 + 8 * 3 + 3 + (16 if norm else 0), 16 if norm else 0
        assert log.bytes_down == 2 * 4 * (2 * d + buffers)
        assert log.bytes_up == 2 * 4 * (2 * d + buffers + 1)


def test_predictions():
    """Means alone, or the mixture of draws, which is wider; a newcomer has the server's mean."""
    runs = [Run(PFedBayes(TRAINING, draws=d, rho=0.0), q2(), scalar_model(), initial=at(1.0)).rounds(1) for d in (0, 8)]
    mean, variance = runs[0].outputs("received")[1][0].tolist()
    assert (mean, variance) == (runs[0].store.rows[WEIGHT].flatten().tolist()[1], 1.0)
    assert runs[1].outputs("received")[1][0, 1] > 1.01
    assert [float(o[0, 0]) for o in runs[0].outputs("received", newcomers=True)] == [runs[0].scalar()] * 2


def test_noise_is_drawn_by_key():
    federation = points((5,))
    model = mlp(federation)
    initial = model.init(0, torch.float64)
    ends = [Run(PFedBayes(TRAINING, spread=s), federation, model, initial=initial, seed=k).rounds(1).store.rows
            for s, k in ((1.0, 0), (1.0, 0), (1.0, 1), (0.001, 0))]  # fmt: skip
    assert same_bits(ends[0], ends[1])
    assert worst(ends[0], ends[2]) > 1e-5
    assert worst(ends[0], ends[3]) > 1e-5
    assert any(n.startswith(RHO) for n in ends[0])


def test_the_values_of_the_paper():
    assert paper_values(PFedBayes) == {"local": Training(lr=1e-3, optimiser="adam", batch=100, steps=20)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"zeta": -1.0}, "zeta must be at least 0"),
        ({"inner": 0}, "inner must be at least 1"),
        ({"beta": 1.5}, "beta must be at least 0 and at most 1"),
        ({"spread": float("nan")}, "spread must be at least 0"),
        ({"copy_lr": -1.0}, "copy_lr must be at least 0"),
        ({"rho": 50.0}, "rho must be at least -20 and at most 20"),
        ({"draws": 1.5}, "draws takes a whole number"),
    ],
)
def test_bad_hyper_parameters(given, message):
    with pytest.raises(ValueError, match=message):
        PFedBayes(**given)
