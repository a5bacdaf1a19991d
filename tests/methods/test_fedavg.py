"""FedAvg: the closed-form test bed, its reductions, its bytes."""

from dataclasses import replace

import pytest
import torch
from oracles.sims import Run, at, each_engine, full_batch, mlp, points, q2, quadratics, scalar_model, worst

from posterity.core.passes import Training
from posterity.core.tree import tree_rows
from posterity.methods.fedavg import FedAvg
from posterity.methods.local import Local

FIXED = 2.0775070396  # Σ p c m / Σ p c with c = 1 − (1 − ηA)^5: c = (0.40951, 0.92224), m = (0, 3)


@each_engine
def test_q2_one_step(engine):
    """θ_1 = 0, θ_2 = 0 − 0.1·4·(0 − 3) = 1.2, mean 0.6."""
    run = Run(FedAvg(full_batch(1)), q2(), scalar_model(), engine, at(0.0)).rounds(1)
    assert run.scalar() == pytest.approx(0.6, abs=1e-12)
    there = Run(FedAvg(full_batch(1)), q2(), scalar_model(), engine, at(2.4)).rounds(1)
    assert there.scalar() == pytest.approx(2.4, abs=1e-12)  # the fixed point


@each_engine
def test_q2_five_steps(engine):
    run = Run(FedAvg(full_batch(5)), q2(), scalar_model(), engine, at(0.0))
    seen = [run.rounds(1).scalar() for _ in range(3)]
    assert seen == pytest.approx([1.38336, 1.84557516, 2.0000128003], abs=1e-10)
    there = Run(FedAvg(full_batch(5)), q2(), scalar_model(), engine, at(FIXED)).rounds(1)
    assert there.scalar() == pytest.approx(FIXED, abs=1e-10)


def test_q2_fixed_point_of_fifty_steps():
    run = Run(FedAvg(full_batch(50)), q2(), scalar_model(), initial=at(1.5)).rounds(3)
    assert run.scalar() == pytest.approx(1.5038753, abs=1e-7)  # each round leaves 0.5·0.9^50 of the way, or 0.003


@each_engine
def test_two_clients_by_hand(engine):
    """Sizes 3 and 1, one step of 0.1 from 1: θ_1 = 1 − 0.1·1·(1 − 2) = 1.1, θ_2 = 1 − 0.1·2·(1 − 5) = 1.8.

    The mean by size is (3·1.1 + 1.8) / 4 = 1.275; a server step of ½ goes half of the way from 1: 1.1375.
    """
    federation = quadratics([1.0, 2.0], [2.0, 5.0], [3, 1])
    for server_lr, expected in ((1.0, 1.275), (0.5, 1.1375)):
        method = FedAvg(full_batch(1), server_lr=server_lr)
        assert Run(method, federation, scalar_model(), engine, at(1.0)).rounds(1).scalar() == pytest.approx(
            expected, abs=1e-12
        )


def test_one_client_trains_as_if_alone():
    """K = 1: averaging is the identity, so the server follows Local's only client (bit for bit in float32)."""
    federation, training = points((19,)), Training(lr=0.1, batch=4, epochs=2)
    for dtype, most in ((torch.float32, 0.0), (torch.float64, 1e-14)):
        alone = Run(Local(training), federation, mlp(federation), dtype=dtype).rounds(2)
        shared = Run(FedAvg(training), federation, mlp(federation), dtype=dtype).rounds(2)
        assert worst(shared.state.params, tree_rows(alone.store.rows, 0)) <= most


def test_identical_clients_are_left_alone():
    """Three clients with the same samples, full batches: the mean is each one's result."""
    one = points((8,))
    rows = one.train.rows
    several = type(one)(**{**one.__dict__, "train": type(one.train)(rows.repeat(3), torch.arange(4) * 8),
                           "validation": type(one.train)(rows[:0], torch.zeros(4, dtype=torch.int64)),
                           "test": type(one.train)(rows[:0], torch.zeros(4, dtype=torch.int64)),
                           "members": 3, "names": ("a", "b", "c")})  # fmt: skip
    left = Run(FedAvg(full_batch(3)), several, mlp(one)).rounds(2)
    right = Run(FedAvg(full_batch(3)), one, mlp(one)).rounds(2)
    assert worst(left.state.params, right.state.params) < 1e-13


def test_one_full_step_is_centralised_descent():
    """E = 1 with full batches equals one step on Σ p_k f_k, the mean loss of the pooled samples."""
    federation = points((5, 9, 2))
    pooled = type(federation)(**{**federation.__dict__, "train": type(federation.train)(
        federation.train.rows, torch.tensor([0, 16])), "members": 1, "names": ("all",)})  # fmt: skip
    left = Run(FedAvg(full_batch(1)), federation, mlp(federation)).rounds(1)
    right = Run(FedAvg(full_batch(1)), pooled, mlp(federation)).rounds(1)
    assert worst(left.state.params, right.state.params) < 1e-14


def test_a_client_with_hardly_any_weight_hardly_counts():
    """0.3-4: p_k → 0 leaves the others' mean. Sizes 1000 and 1 bring it within 1/1001 of the large client."""
    run = Run(FedAvg(full_batch(1)), quadratics([1.0, 4.0], [0.0, 3.0], [1000, 1]), scalar_model(), initial=at(0.0))
    assert run.rounds(1).scalar() == pytest.approx(1.2 / 1001, abs=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes(dtype):
    """d numbers down; d numbers and the weight up."""
    federation = points((5, 9, 2))
    model = mlp(federation)
    log = Run(FedAvg(), federation, model, dtype=dtype).rounds(1).logs[0]
    size = dtype.itemsize
    assert log.bytes_down == 3 * model.size * size
    assert log.bytes_up == 3 * (model.size + 1) * size


def test_running_statistics_are_averaged_too():
    federation = points((8, 8))
    run = Run(FedAvg(full_batch(1)), federation, mlp(federation, norm=True)).rounds(1)
    fresh = run.sim.initial
    moved = [n for n in run.sim.model.buffers if not torch.equal(fresh[n], run.state.params[n])]
    assert sorted(moved) == sorted(run.sim.model.buffers)


def test_running_statistics_have_no_step_of_the_server():
    """They are the mean of the clients' for every η_s: a step of 1.5 beyond small features would end below 0."""
    federation = points((9, 5, 7))
    small = replace(federation, x=federation.x * 0.05)
    runs = [Run(FedAvg(Training(lr=0.1, batch=4), server_lr=lr), small, mlp(small, norm=True)).rounds(1)
            for lr in (1.0, 1.5)]  # fmt: skip
    ends = [run.state.params for run in runs]
    moved = [worst({n: ends[0][n]}, {n: ends[1][n]}) > 0 for n in ends[0]]
    still = [n not in runs[0].sim.model.buffers for n in ends[0]]
    assert moved == still
    assert all(torch.isfinite(output).all() for output in runs[1].outputs("received"))


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match="server_lr takes a number"):
        FedAvg(server_lr="fast")
