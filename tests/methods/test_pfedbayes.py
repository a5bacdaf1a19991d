"""pFedBayes: rounds by hand, what is kept and sent, the server's mixing, predictions. Oracles have the rest."""

import math

import pytest
import torch
from oracles.sims import WEIGHT, Run, at, mlp, points, q2, quadratics, same_bits, scalar_model, worst

from posterity.core.passes import Training
from posterity.core.tree import tree_map, tree_rows
from posterity.methods.pfedbayes import RHO, PFedBayes
from posterity.settings.hyperparameters import paper_values

TRAINING = Training(lr=0.01, batch=4)
CURVATURES, CENTRES, SIZES = (1.0, 4.0), (0.0, 3.0), (1, 4)
ADAM = Training(lr=0.1, batch=10_000, optimiser="adam")


def by_hand(k, q, copy, lr, zeta, inner, copy_lr):
    """A visit of client k without noise: personal and copied (mean, ρ)."""
    soft, slope = (lambda r: math.log1p(math.exp(r))), (lambda r: 1 / (1 + math.exp(-r)) / math.log1p(math.exp(r)))

    def length(rho, ratio, a):
        return a * slope(rho) * (ratio - 1) / (1 + 2 * a * slope(rho) ** 2 * max(ratio, 1))

    (m, r), (mp, rp), a = q, copy, lr * zeta / SIZES[k]
    for _ in range(inner):
        m -= lr * CURVATURES[k] * (m - CENTRES[k])
        pull = a / soft(rp) ** 2
        m, r = (m + pull * mp) / (1 + pull), r - length(r, soft(r) ** 2 / soft(rp) ** 2, a)
    pull, ratio = copy_lr / soft(rp) ** 2, (soft(r) ** 2 + (m - mp) ** 2) / soft(rp) ** 2
    return (m, r), ((mp + pull * m) / (1 + pull), rp + length(rp, ratio, copy_lr))


def test_three_rounds_by_hand():
    """Two clients, ζ = 3, two inner steps; the second is absent from round 2 and goes on from what it kept."""
    how = {"zeta": 3.0, "inner": 2, "copy_lr": 0.002}
    method = PFedBayes(Training(lr=0.1, batch=10_000), spread=0.0, **how)
    run = Run(method, quadratics(CURVATURES, CENTRES, SIZES), scalar_model(), initial=at(1.0))
    server, kept = (1.0, -3.0), {}
    for cohort in ([0, 1], [0], [0, 1]):
        run.rounds(1, cohort=cohort)
        done = {k: by_hand(k, kept.get(k, server), server, 0.1, **how) for k in cohort}
        kept |= {k: q for k, (q, _) in done.items()}
        server = tuple(sum(copy[i] for _, copy in done.values()) / len(done) for i in (0, 1))
        assert (run.scalar(), float(run.state.rho[WEIGHT])) == pytest.approx(server, abs=1e-12)
        for n, i in ((WEIGHT, 0), (RHO + WEIGHT, 1)):
            expected = [kept[k][i] for k in sorted(kept)]
            assert run.store.rows[n].flatten().tolist()[: len(kept)] == pytest.approx(expected, abs=1e-12)


def test_the_copy_moves_towards_the_personal_gaussian():
    """Adam's first step is as long as its rate: the copies go 0.001 to where q_k went; the server has their mean."""
    method = PFedBayes(ADAM, solver="gradient", copy_lr=0.001, inner=1, spread=0.0)
    run = Run(method, q2(), scalar_model(), initial=at(1.0)).rounds(1)
    assert run.store.rows[WEIGHT].flatten().tolist() == pytest.approx([0.9, 1.1], abs=1e-6)
    assert run.scalar() == pytest.approx(1.0, abs=1e-9)  # one copy goes down, one up
    alone = Run(method, q2(), scalar_model(), initial=at(1.0)).rounds(1, cohort=[1])
    assert alone.scalar() == pytest.approx(1.001, abs=1e-8)


@pytest.mark.parametrize("beta", [0.0, 0.25, 1.0])
def test_the_server_mixes(beta):
    method = PFedBayes(ADAM, solver="gradient", copy_lr=0.001, inner=1, spread=0.0, beta=beta)
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


def test_every_inner_step_has_a_draw_of_its_own():
    """Of a loss that is the weight itself ρ goes along ε: two short steps along one draw would be twice as long."""
    moved = []
    for inner in (1, 2):
        slope = lambda params, batch, here: (params[WEIGHT].sum(), {})  # noqa: E731
        method = PFedBayes(Training(lr=1e-4, batch=10_000), zeta=0.0, inner=inner, loss=slope)
        rows = Run(method, q2(), scalar_model(), initial=at(1.0)).rounds(1).store.rows
        moved.append(float(rows[RHO + WEIGHT].flatten()[0]) + 3)
    assert abs(moved[1] / moved[0] - 2) > 0.1


def test_the_values_of_the_paper():
    local = Training(lr=1e-3, optimiser="adam", batch=100, steps=20)
    assert paper_values(PFedBayes) == {"local": local, "zeta": 10.0, "solver": "gradient"}


def test_gradient_steps_weigh_the_divergence_by_zeta_over_n():
    """SGD, two steps from a common start: the second sees ζ/n · gap/σ² (n = 1 and 4); the copy stays."""
    method = PFedBayes(Training(lr=1e-3, batch=10_000), zeta=2.0, solver="gradient", copy_lr=0.0, inner=2, spread=0.0)
    run = Run(method, quadratics(CURVATURES, CENTRES, SIZES), scalar_model(), initial=at(1.0)).rounds(1)
    variance, ends = math.log1p(math.exp(-3.0)) ** 2, []
    for curvature, centre, n in zip(CURVATURES, CENTRES, SIZES, strict=True):
        once = 1.0 - 1e-3 * curvature * (1.0 - centre)
        ends.append(once - 1e-3 * (curvature * (once - centre) + 2.0 / n * (once - 1.0) / variance))
    assert run.store.rows[WEIGHT].flatten().tolist() == pytest.approx(ends, abs=1e-12)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"zeta": -1.0}, "zeta must be at least 0"),
        ({"inner": 0}, "inner must be at least 1"),
        ({"beta": 1.5}, "beta must be at least 0 and at most 1"),
        ({"spread": float("nan")}, "spread must be a finite number; nan"),
        ({"copy_lr": -1.0}, "copy_lr must be at least 0"),
        ({"rho": 50.0}, "rho must be at least -20 and at most 20"),
        ({"solver": "newton"}, "solver"),
        ({"draws": 1.5}, "draws takes a whole number"),
    ],
)
def test_bad_hyper_parameters(given, message):
    with pytest.raises(ValueError, match=message):
        PFedBayes(**given)
