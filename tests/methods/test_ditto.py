"""Ditto: FedAvg for all, and a model for each that is held near it."""

from dataclasses import dataclass

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

from posterity.core.passes import Training
from posterity.core.protocol import Pass
from posterity.core.tree import tree_map, tree_rows
from posterity.methods.ditto import Ditto
from posterity.methods.fedavg import FedAvg
from posterity.methods.local import Local

TRAINING = Training(lr=0.1, batch=4, epochs=2, momentum=0.9)


@dataclass(frozen=True)
class Later(Local):
    """Local training as the second pass of a visit, so that it draws its batches as Ditto's personal model does."""

    def passes(self):
        return Pass(lambda carry, batch, here: carry, learns=False), *super().passes()


@each_engine
def test_q2_at_the_optimum_of_the_sum(engine):
    """argmin ½A(v − m)² + ½(v − 2.4)² = (A m + 2.4) / (A + 1): 1.2 and 2.88; solved to 1e-12 by 80 steps of 0.3."""
    method = Ditto(full_batch(1, lr=0.3), lam=1.0, personal_epochs=80)
    run = Run(method, q2(), scalar_model(), engine, at(2.4)).rounds(1)
    assert run.personal() == pytest.approx([1.2, 2.88], abs=1e-12)
    assert run.scalar() == pytest.approx(2.4, abs=1e-12)  # slopes 2.4 and −2.4: FedAvg stays
    assert [float(o[0, 0]) for o in run.outputs("received")] == pytest.approx([1.2, 2.88], abs=1e-12)


def test_q2_is_fedavg_for_the_common_model():
    run = Run(Ditto(full_batch(5), lam=2.0), q2(), scalar_model(), initial=at(0.0))
    assert [run.rounds(1).scalar() for _ in range(3)] == pytest.approx([1.38336, 1.84557516, 2.0000128003], abs=1e-10)


@each_engine
def test_two_clients_by_hand(engine):
    """Sizes 1 and 3, steps of 0.1 from 1, λ = 2, the common model one step, the personal two.

    Client 1 (A = 1, to 2): θ = 1.1;  v: 1 → 1.1 → 1.1 − 0.1·((1.1 − 2) + 2·0.1) = 1.17.
    Client 2 (A = 2, to 5): θ = 1.8;  v: 1 → 1.8 → 1.8 − 0.1·(2·(1.8 − 5) + 2·0.8) = 2.28.
    w = (1.1 + 3·1.8) / 4 = 1.625, and in the second round v is pulled to it and not to where it began:
    v_1: 1.17 − 0.1·((1.17 − 2) + 2·(1.17 − 1.625)) = 1.344, then 1.344 − 0.1·(−0.656 + 2·(−0.281)) = 1.4658.
    """
    federation = quadratics([1.0, 2.0], [2.0, 5.0], [1, 3])
    method = Ditto(full_batch(1), lam=2.0, personal_epochs=2)
    run = Run(method, federation, scalar_model(), engine, at(1.0)).rounds(1)
    assert run.scalar() == pytest.approx(1.625, abs=1e-12)
    assert run.personal() == pytest.approx([1.17, 2.28], abs=1e-12)
    assert run.rounds(1).personal()[0] == pytest.approx(1.4658, abs=1e-12)


@each_engine
@pytest.mark.parametrize("norm", [False, True])
def test_the_common_model_is_fedavgs_bit_for_bit(engine, norm):
    """Also with momentum: no optimiser is shared."""
    federation = points((9, 5, 1))
    model = mlp(federation, norm=norm)
    runs = [Run(m, federation, model, engine).rounds(3) for m in (Ditto(TRAINING, lam=0.7), FedAvg(TRAINING))]
    assert same_bits(runs[0].state.params, runs[1].state.params)
    assert worst(tree_rows(runs[0].store.rows, 0), runs[0].state.params) > 1e-3


@each_engine
@pytest.mark.parametrize("norm", [False, True])
def test_without_pull_it_is_local_training_bit_for_bit(engine, norm):
    federation = points((9, 5, 1))
    model = mlp(federation, norm=norm)
    methods = Ditto(TRAINING, lam=0.0, personal_epochs=2), Later(TRAINING)
    runs = [Run(m, federation, model, engine).rounds(3) for m in methods]
    assert same_bits(runs[0].store.rows, runs[1].store.rows)


def test_a_strong_pull_is_fedavg():
    """Exact solves with λ = 1e8 stay within |∇f| / λ of the broadcast; the step 1/λ solves them."""
    method = Ditto(full_batch(1, lr=1e-8), lam=1e8, personal_epochs=3)
    run = Run(method, q2(), scalar_model(), initial=at(0.5)).rounds(1)
    assert run.personal() == pytest.approx([0.5, 0.5], abs=1e-6)
    assert run.personal()[1] != 0.5


def test_epochs_of_the_personal_model():
    """One more epoch is one more step; `steps` of the training counts for the common model alone."""
    for local in (full_batch(1), Training(lr=0.1, batch=10_000, steps=1)):
        for epochs, end in ((1, 1.1), (2, 1.18)):
            method = Ditto(local, lam=1.0, personal_epochs=epochs)
            run = Run(method, quadratics([1.0], [2.0]), scalar_model(), initial=at(1.0)).rounds(1)
            assert run.personal()[0] == pytest.approx(end, abs=1e-12)
            assert run.scalar() == pytest.approx(1.1, abs=1e-12)


def test_running_statistics_are_not_pulled():
    federation = points((8, 8))
    runs = [Run(Ditto(full_batch(1), lam=lam), federation, mlp(federation, norm=True)).rounds(1) for lam in (0.0, 1e3)]
    buffers = [{n: r.store.rows[n] for n in r.sim.model.buffers} for r in runs]
    assert buffers[0]
    assert worst(*buffers) == 0


def test_an_absent_client_keeps_its_model():
    federation = points((9, 5, 4))
    run = Run(Ditto(TRAINING), federation, mlp(federation)).rounds(1)
    before = tree_map(torch.clone, tree_rows(run.store.rows, 1))
    run.rounds(2, cohort=[0, 2])
    assert same_bits(before, tree_rows(run.store.rows, 1))


def test_a_newcomer_has_the_common_model_and_adapts_a_model_of_its_own():
    """From w towards its own minimum, held by the pull: (A m + λ w) / (A + λ)."""
    run = Run(Ditto(full_batch(5, lr=0.3), lam=1.0), q2(), scalar_model(), initial=at(0.0)).rounds(2)
    w = run.scalar()
    received = [float(o[0, 0]) for o in run.outputs("received", newcomers=True)]
    adapted = [float(o[0, 0]) for o in run.outputs("adapted", epochs=80, newcomers=True)]
    assert received == pytest.approx([w, w], abs=1e-15)
    assert adapted == pytest.approx([w / 2, (12 + w) / 5], abs=1e-12)


def test_bytes_are_fedavgs():
    federation = points((5, 9))
    logs = [Run(m, federation, mlp(federation)).rounds(1).logs[0] for m in (Ditto(), FedAvg())]
    assert logs[0].bytes_up == logs[1].bytes_up
    assert logs[0].bytes_down == logs[1].bytes_down


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match=r"lam must be at least 0; -1"):
        Ditto(lam=-1.0)
    with pytest.raises(ValueError, match=r"personal_epochs must be at least 1; 0"):
        Ditto(personal_epochs=0)
