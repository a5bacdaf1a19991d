"""FedProx: FedAvg with a leash."""

import pytest
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
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedprox import FedProx


@each_engine
def test_q2(engine):
    run = Run(FedProx(full_batch(5), mu=1.0), q2(), scalar_model(), engine, at(0.0))
    seen = [run.rounds(1).scalar() for _ in range(3)]
    assert seen == pytest.approx([1.1625, 1.67913825, 1.9087426211], abs=1e-10)


def test_q2_fixed_point_of_exact_solves():
    """Σ p A m / (A + µ) ÷ Σ p A / (A + µ) with µ = 1: (4·3/5) / (1/2 + 4/5) = 2.4 / 1.3."""
    run = Run(FedProx(full_batch(40, lr=0.25), mu=1.0), q2(), scalar_model(), initial=at(2.4 / 1.3)).rounds(1)
    assert run.scalar() == pytest.approx(1.8461538461538, abs=1e-8)


@each_engine
def test_two_clients_by_hand(engine):
    """µ = 2, η = 0.1, two steps from w = 1, one client pulls to 2 with A = 1, the other (thrice as large) to 5, A = 2.

    Client 1: 1 → 1.1 → 1.1 − 0.1·((1.1 − 2) + 2·0.1) = 1.17.
    Client 2: 1 → 1.8 → 1.8 − 0.1·(2·(1.8 − 5) + 2·0.8) = 2.28.
    Mean (1.17 + 3·2.28) / 4 = 2.0025.
    """
    run = Run(FedProx(full_batch(2), mu=2.0), quadratics([1.0, 2.0], [2.0, 5.0], [1, 3]), scalar_model(), engine, at(1))
    assert run.rounds(1).scalar() == pytest.approx(2.0025, abs=1e-12)


@each_engine
@pytest.mark.parametrize("norm", [False, True])
def test_without_pull_it_is_fedavg_bit_for_bit(engine, norm):
    federation, training = points((9, 5, 1)), Training(lr=0.1, batch=4, epochs=2, momentum=0.9)
    runs = [Run(m, federation, mlp(federation, norm=norm), engine).rounds(3) for m in
            (FedProx(training, mu=0.0), FedAvg(training))]  # fmt: skip
    assert same_bits(runs[0].state.params, runs[1].state.params)


@each_engine
def test_fine_tuning_has_no_pull(engine):
    """Plain descent from the broadcast 1 to the clients' own minima: 1 → 0.9 → 0.81, and 3 − 2·0.6² = 2.28."""
    run = Run(FedProx(full_batch(2), mu=50.0), q2(), scalar_model(), engine, at(1.0))
    tuned = [float(o[0, 0]) for o in run.outputs("adapted", epochs=2)]
    assert tuned == pytest.approx([0.9**2, 3 - 2 * 0.6**2], abs=1e-12)


def test_a_strong_pull_keeps_everybody_at_the_broadcast():
    """Exact solves with µ = 1e8 move by at most |∇f| / µ; the step 1/µ solves them."""
    run = Run(FedProx(full_batch(3, lr=1e-8), mu=1e8), q2(), scalar_model(), initial=at(0.5)).rounds(1)
    assert run.scalar() == pytest.approx(0.5, abs=1e-6)
    assert run.scalar() != 0.5


def test_running_statistics_are_not_pulled():
    """With batch norm the buffers after one step are FedAvg's: the penalty covers trainable leaves only."""
    federation = points((8, 8))
    runs = [Run(m, federation, mlp(federation, norm=True)).rounds(1) for m in
            (FedProx(full_batch(1), mu=1e3), FedAvg(full_batch(1)))]  # fmt: skip
    buffers = [{n: r.state.params[n] for n in r.sim.model.buffers} for r in runs]
    assert buffers[0]
    assert worst(*buffers) == 0


def test_bytes_are_fedavgs():
    federation = points((5, 9))
    logs = [Run(m, federation, mlp(federation)).rounds(1).logs[0] for m in (FedProx(), FedAvg())]
    assert logs[0].bytes_up == logs[1].bytes_up
    assert logs[0].bytes_down == logs[1].bytes_down


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match="mu must be at least 0; -1"):
        FedProx(mu=-1.0)
    with pytest.raises(ValueError, match="mu takes a number"):
        FedProx(mu="strong")
