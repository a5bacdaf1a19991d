"""FedEP: burn-in, sites, floors, bytes. The specification's numbers are in tests/oracles."""

import pytest
import torch
from oracles.sims import DOUBLE, Run, at, full_batch, mlp, points, q2, same_bits, scalar_model, worst

from posterity import methods
from posterity.core.gaussian import Gaussian
from posterity.core.messages import Mean, fold_stack
from posterity.core.passes import Training
from posterity.core.protocol import Now
from posterity.core.tree import tree_map, tree_rows
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedep import FedEP, State, common, cut, laplace, taken_out
from posterity.settings.hyperparameters import paper_values

TRAINING = Training(lr=0.1, batch=4, epochs=2)
PLAIN = {"server_lr": 1.0, "server_momentum": 0.0}
NOW = Now(1, 1, torch.zeros(2, dtype=torch.int64), 2)


def test_burn_in_is_fedavg():
    federation = points((5, 1))
    model = mlp(federation, norm=True)
    runs = [Run(m, federation, model).rounds(1) for m in (FedEP(TRAINING, burn_rounds=1, **PLAIN), FedAvg(TRAINING))]
    assert worst(runs[0].state.params, runs[1].state.params) < 1e-12
    assert not runs[0].store.rows.met.any()
    ends = [run.rounds(1).state.params for run in runs]
    assert worst(*ends) > 1e-4  # and the second round is not
    assert runs[0].store.rows.met.all()


def test_q_is_the_product_of_the_sites():
    """With everybody there, from the first round of EP on, momentum included: no prior, so Σ_k (η_k, Λ_k) = (η, Λ)."""
    federation = points((5, 4))
    method = FedEP(TRAINING, precision="laplace", fisher_epochs=1, burn_rounds=0)
    run = Run(method, federation, mlp(federation)).rounds(2)
    product = tree_map(lambda leaf: leaf.sum(0), run.store.rows.factors)
    size = max(float(f.shift.abs().max()) for f in product.values())
    assert worst(product, common(run.state)) < 1e-12 * max(1.0, size)
    assert worst(run.state.precision, tree_map(lambda p: torch.full_like(p, 0.05 * 9), run.state.precision)) > 0.01


def test_an_absent_client_keeps_its_site():
    federation = points((5, 4))
    run = Run(FedEP(TRAINING, burn_rounds=0), federation, mlp(federation)).rounds(1)
    before = [tree_map(torch.clone, tree_rows(run.store.rows, k)) for k in (0, 1)]
    run.rounds(1, cohort=[0])
    assert same_bits(before[1], tree_rows(run.store.rows, 1))
    assert worst(before[0], tree_rows(run.store.rows, 0)) > 1e-6


def test_a_precision_that_would_fall_too_low_stops_and_keeps_its_mean():
    """Λ = 1 with a change of −3 and a floor of 0.01 · λ̄N = 0.05: Λ = 0.05 and µ stays; the neighbour goes to 4/2."""
    two, zero = torch.tensor([7.0, 1.0], dtype=DOUBLE), torch.tensor(0.0, dtype=DOUBLE)
    state = State({"w": two}, {"w": torch.ones(2, dtype=DOUBLE)}, (), {}, zero, torch.tensor(100.0, dtype=DOUBLE), 1)
    sent = {"w": Gaussian(torch.tensor([[-3.0, 1.0]], dtype=DOUBLE), torch.tensor([[5.0, 3.0]], dtype=DOUBLE))}
    method = FedEP(sites=False, burn_rounds=0, **PLAIN)
    after = method.combine(state, fold_stack({"change": Mean(torch.ones(1, dtype=DOUBLE), sent)}), NOW)
    assert after.params["w"].tolist() == [7.0, 2.0]
    assert after.precision["w"].tolist() == pytest.approx([0.05, 2.0], abs=1e-15)


def test_an_improper_cavity_is_cut():
    site = {"w": Gaussian(torch.tensor([3.0, 0.5]), torch.tensor([1.0, 1.0]))}
    cavity = taken_out({"w": Gaussian(torch.ones(2), torch.zeros(2))}, site)["w"]
    assert cavity.precision.tolist() == [0.0, 0.5]
    assert cavity.shift.tolist() == [-1.0, -1.0]


def test_tilted_precisions_by_hand():
    """Each line says what it should be."""
    cavity = {"a": torch.ones(2, dtype=DOUBLE), "b": torch.ones(3, dtype=DOUBLE)}
    found = {"a": torch.tensor([0.0, 0.0], dtype=DOUBLE), "b": torch.tensor([0.0, 0.0, 10.0], dtype=DOUBLE)}
    assert cut(found)["b"][2] == 10.0  # mean 2, deviation 4: up to 10
    many = {"a": torch.cat([torch.zeros(99, dtype=DOUBLE), torch.full((1,), 100.0, dtype=DOUBLE)])}
    assert float(cut(many)["a"].max()) == pytest.approx(1 + 2 * 99**0.5, abs=1e-12)  # mean 1, variance 99
    tilted = laplace(cavity, found, torch.tensor(0.5, dtype=DOUBLE), 2.0)
    assert tilted["b"].tolist() == pytest.approx([2.0, 2.0, 22.0], abs=1e-14)  # 1 + 2 (F + 0.5)


@pytest.mark.parametrize("sites", [True, False])
def test_bytes_are_twice_the_model_both_ways_and_with_sites_three_times_down(sites):
    """µ, Λ, N and with sites the first µ down; Δη, ΔΛ and a weight up, and another with the buffers, sent once."""
    federation = points((2, 4, 1))
    for norm in (False, True):
        log = Run(FedEP(sites=sites), federation, mlp(federation, norm=norm), dtype=torch.float32).rounds(1).logs[0]
        d, buffers = 6 * 8 + 8 + 8 * 3 + 3 + (16 if norm else 0), 16 if norm else 0
        assert log.bytes_down == 3 * 4 * ((2 + sites) * d + buffers + 1)
        assert log.bytes_up == 3 * 4 * (2 * d + buffers + 1 + norm)


def test_fine_tuning_looks_for_the_clients_own_minimum():
    run = Run(FedEP(full_batch(2), burn_rounds=0), q2(), scalar_model(), initial=at(1.0)).rounds(1)
    mu = run.scalar()
    tuned = [float(o[0, 0]) for o in run.outputs("adapted", epochs=3)]
    assert tuned == pytest.approx([mu * 0.9**3, 3 + (mu - 3) * 0.6**3], abs=1e-12)
    assert [float(o[0, 0]) for o in run.outputs("received", newcomers=True)] == [mu] * 2


def test_the_values_of_the_paper():
    paper = {"local": Training(0.01, 10, batch=20, momentum=0.9), "clip": 100.0, "burn_rounds": 400}
    assert paper_values(FedEP) == paper
    assert methods.build("fedep@paper", {"sites": False}).clip == 100.0


@pytest.mark.parametrize(("clip", "expected"), [(None, 1.35), (0.5, 1.0)])
def test_a_long_change_is_clipped(clip, expected):
    """Λ = 100, and a step from 1 ends at 0.9 and 1.8: changes of −10 and 80, or −½ and ½ if none may be longer."""
    method = FedEP(full_batch(1), sites=False, identity=50.0, clip=clip, burn_rounds=0, **PLAIN)
    run = Run(method, q2(), scalar_model(), initial=at(1.0)).rounds(1)
    assert run.scalar() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"identity": 0.0}, r"identity must be above 0; 0\.0 was given"),
        ({"floor": float("nan")}, "floor must be a finite number; nan"),
        ({"precision": "exact"}, "precision = 'exact' is unknown"),
        ({"fisher_epochs": 0}, "fisher_epochs must be at least 1"),
        ({"damping": -0.1}, "damping must be at least 0"),
        ({"clip": -1.0}, "clip must be at least 0"),
        ({"scale": -1.0}, "scale must be at least 0"),
        ({"burn_rounds": 1.5}, "burn_rounds takes a whole number"),
        ({"server_momentum": 1.0}, "server_momentum must be at least 0 and below 1"),
        ({"sites": "some"}, "sites takes true or false"),
    ],
)
def test_bad_hyper_parameters(given, message):
    with pytest.raises(ValueError, match=message):
        FedEP(**given)
