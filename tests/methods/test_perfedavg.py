"""Per-FedAvg: Q2's numbers for every Hessian-vector product, and the halved one of a released code as a mutant."""

import pytest
import torch
from oracles.sims import Run, at, each_engine, full_batch, mlp, points, q2, quadratics, scalar_model, worst

from posterity.core.passes import Training
from posterity.methods.maml import MAML
from posterity.methods.perfedavg import ORDERS, PerFedAvg

NUMBERS = {"difference": (0.216, 1.92), "exact": (0.216, 1.92), "none": (0.36, 2.1818181818)}


@each_engine
@pytest.mark.parametrize("hvp", ORDERS)
def test_q2(engine, hvp):
    method = PerFedAvg(full_batch(1), 0.1, hvp)
    once, fixed = NUMBERS[hvp]
    assert Run(method, q2(3), scalar_model(), engine, at(0.0)).rounds(1).scalar() == pytest.approx(once, abs=1e-10)
    assert Run(method, q2(3), scalar_model(), engine, at(fixed)).rounds(1).scalar() == pytest.approx(fixed, abs=1e-9)


def test_the_product_is_not_halved():
    """MetaVD's release gives A(1 − αA)(1 − αA/2)(θ − m), at rest at 2.0757: here that is no fixed point."""
    method = PerFedAvg(full_batch(1, lr=0.8), 0.1)
    run = Run(method, q2(3), scalar_model(), initial=at(2.0756757)).rounds(12)
    assert run.scalar() == pytest.approx(1.92, abs=1e-8)


@pytest.mark.parametrize("delta", [1e-4, 1e-2, 1.0])
def test_the_difference_is_exact_on_quadratics(delta):
    runs = [PerFedAvg(full_batch(2), 0.1, "difference", delta), PerFedAvg(full_batch(2), 0.1, "exact")]
    left, right = (Run(m, q2(3), scalar_model(), initial=at(1.0)).rounds(2).scalar() for m in runs)
    assert left == pytest.approx(right, abs=1e-9)


@pytest.mark.parametrize("inner", [1, 2])
def test_the_difference_approaches_the_exact_product_on_a_network(inner):
    """With identical support and third batches (all rows equal) the error of a central difference falls with δ²."""
    federation = points((6,))
    rows = federation.train.rows
    federation.x[rows], federation.y[rows] = federation.x[rows[0]].clone(), federation.y[rows[0]].clone()
    model = mlp(federation)
    exact = Run(PerFedAvg(full_batch(1), 0.5, "exact", inner=inner), federation, model).rounds(1).state.params
    gaps = []
    for delta in (1e-1, 1e-2, 1e-4):
        method = PerFedAvg(full_batch(1), 0.5, "difference", delta, inner)
        gaps.append(worst(Run(method, federation, model).rounds(1).state.params, exact))
    assert gaps[2] < 1e-8
    assert gaps[1] < gaps[0] / 50


@pytest.mark.parametrize(("hvp", "batches"), [("difference", 3), ("exact", 2), ("none", 2)])
def test_a_meta_step_takes_as_many_batches_as_it_uses(hvp, batches):
    assert PerFedAvg(Training(batch=20), hvp=hvp).passes()[0].batch == 20 * batches


@each_engine
@pytest.mark.parametrize("hvp", ["difference", "exact"])
def test_two_inner_steps(engine, hvp):
    """The products of both inner steps: A(1 − αA)⁴(θ − m), so 0.07776 from 0 as MAML's."""
    run = Run(PerFedAvg(full_batch(1), 0.1, hvp, inner=2), q2(3), scalar_model(), engine, at(0.0)).rounds(1)
    assert run.scalar() == pytest.approx(0.07776, abs=1e-9)


@each_engine
def test_two_clients_by_hand_count_equally(engine):
    """Sizes 9 and 3, one FO step from 0: only client 2 moves, by 0.1·7.2 = 0.72; the plain mean is 0.36."""
    federation = quadratics([1.0, 4.0], [0.0, 3.0], [9, 3])
    run = Run(PerFedAvg(full_batch(1), 0.1, "none"), federation, scalar_model(), engine, at(0.0)).rounds(1)
    assert run.scalar() == pytest.approx(0.36, abs=1e-12)


@each_engine
def test_two_clients_by_hand_count_by_their_samples(engine):
    """The same with `balance = samples`: a quarter of 0.72."""
    federation = quadratics([1.0, 4.0], [0.0, 3.0], [9, 3])
    method = PerFedAvg(full_batch(1), 0.1, "none", balance="samples")
    assert Run(method, federation, scalar_model(), engine, at(0.0)).rounds(1).scalar() == pytest.approx(0.18, abs=1e-12)


def test_by_samples_and_with_exact_products_it_is_maml():
    federation, training = points((6, 9, 3)), Training(lr=0.1, batch=2)
    left = Run(PerFedAvg(training, 0.1, "exact", balance="samples"), federation, mlp(federation)).rounds(2)
    plain = MAML(training, 0.1, queries=1, server_lr=1.0, server_momentum=0.0)
    right = Run(plain, federation, mlp(federation)).rounds(2)
    assert worst(left.state.params, right.state.params) < 1e-14


@each_engine
def test_each_part_is_clipped_by_itself(engine):
    """½·4(θ − 3)² from 0: θ′ = 0.5 as −12 is shortened to 5, v = −10 and the product −40 to 5 each: 0.1 (5 − 0.1·5)."""
    method = PerFedAvg(full_batch(1), 0.1, "difference", part_clip=5.0)
    run = Run(method, quadratics([4.0], [3.0], [3]), scalar_model(), engine, at(0.0)).rounds(1)
    assert run.scalar() == pytest.approx(0.45, abs=1e-6)


def test_adapted_models():
    run = Run(PerFedAvg(full_batch(1), 0.1), q2(3), scalar_model(), initial=at(1.92))
    assert [float(o[0, 0]) for o in run.outputs("adapted")] == pytest.approx([1.728, 2.352], abs=1e-12)


@each_engine
def test_adaptation_is_one_fast_step_of_its_batch(engine):
    """From 1 on two quadratics of 70 samples: a step of 0.1, whatever β; two of them in an epoch of 64 and 6."""
    federation, local = quadratics([1.0, 2.0], [2.0, 5.0], [70, 70]), Training(lr=0.7, batch=1)
    one, whole = (Run(PerFedAvg(local, 0.1, adapt_steps=n), federation, scalar_model(), engine, at(1.0))
                  for n in (1, None))  # fmt: skip
    assert [float(o[0, 0]) for o in one.outputs("adapted")] == pytest.approx([1.1, 1.8], abs=1e-12)
    assert [float(o[0, 0]) for o in whole.outputs("adapted")] == pytest.approx([1.19, 2.44], abs=1e-12)


def test_the_servers_step_momentum_and_clip():
    """0.216 from 0, halved; then v = 0.9·0.216 + the next update, halved too; and 0.216 shortened to 0.1."""
    method = PerFedAvg(full_batch(1), 0.1, "exact", server_lr=0.5, server_momentum=0.9)
    run = Run(method, q2(3), scalar_model(), initial=at(0.0))
    first, second = (run.rounds(1).scalar() for _ in range(2))
    update = 0.05 * (-0.81 * first + 1.44 * (3 - first))  # ½·β Σ A(1 − αA)²(m − θ)
    assert first == pytest.approx(0.108, abs=1e-12)
    assert second == pytest.approx(first + 0.5 * (0.9 * 0.216 + update), abs=1e-10)
    short = PerFedAvg(full_batch(1), 0.1, "exact", server_clip=0.1)
    assert Run(short, q2(3), scalar_model(), initial=at(0.0)).rounds(1).scalar() == pytest.approx(0.1, abs=1e-6)


def test_equal_sizes_and_exact_products_are_maml():
    federation, training = points((6, 6, 6)), Training(lr=0.1, batch=2)
    left = Run(PerFedAvg(training, 0.1, "exact"), federation, mlp(federation)).rounds(2)
    plain = MAML(training, 0.1, queries=1, server_lr=1.0, server_momentum=0.0)
    right = Run(plain, federation, mlp(federation)).rounds(2)
    assert worst(left.state.params, right.state.params) < 1e-14


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes(dtype):
    federation = points((5, 9, 2))
    model = mlp(federation)
    log = Run(PerFedAvg(), federation, model, dtype=dtype).rounds(1).logs[0]
    assert log.bytes_down == 3 * model.size * dtype.itemsize
    assert log.bytes_up == 3 * (model.size + 1) * dtype.itemsize


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match="delta must be above 0"):
        PerFedAvg(delta=0.0)
    with pytest.raises(ValueError, match="hvp = 'half' is unknown"):
        PerFedAvg(hvp="half")
    with pytest.raises(ValueError, match="balance = 'rows' is unknown"):
        PerFedAvg(balance="rows")
