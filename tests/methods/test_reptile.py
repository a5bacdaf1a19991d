"""Reptile: the closed-form test bed, server momentum by hand, and FedAvg as a special case."""

import pytest
import torch
from oracles.sims import Run, at, each_engine, full_batch, mlp, points, q2, quadratics, same_bits, scalar_model

from posterity.core.passes import Training
from posterity.methods.fedavg import FedAvg
from posterity.methods.reptile import Reptile

FIXED = 2.0775070396  # FedAvg's with five steps


@each_engine
def test_q2(engine):
    run = Run(Reptile(full_batch(5), 0.9, 0.0), q2(), scalar_model(), engine, at(0.0))
    seen = [run.rounds(1).scalar() for _ in range(3)]
    assert seen == pytest.approx([1.245024, 1.7439206796, 1.9438348153], abs=1e-10)
    there = Run(Reptile(full_batch(5), 0.9, 0.0), q2(), scalar_model(), engine, at(FIXED)).rounds(1)
    assert there.scalar() == pytest.approx(FIXED, abs=1e-10)


@each_engine
def test_two_clients_by_hand_with_momentum(engine):
    """One step of 0.1 from w: the mean update is ½(−0.1w) + ½(−0.4)(w − 3) = 0.6 − 0.25w. η_s = 1, μ = ½.

    w = 0: v = 0.6, w = 0.6. Then 0.6 − 0.15 = 0.45, v = 0.3 + 0.45 = 0.75, w = 1.35.
    """
    run = Run(Reptile(full_batch(1), 1.0, 0.5), q2(), scalar_model(), engine, at(0.0))
    assert [run.rounds(1).scalar() for _ in range(2)] == pytest.approx([0.6, 1.35], abs=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_clip_shortens_the_mean_update(momentum):
    """The update of 0.6 is cut to 0.2 (to 1e-6, as in torch)."""
    run = Run(Reptile(full_batch(1), 1.0, momentum, 0.2), q2(), scalar_model(), initial=at(0.0)).rounds(1)
    assert run.scalar() == pytest.approx(0.2, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_step_one_without_momentum_is_fedavg(dtype):
    federation, training = points((9, 5, 1)), Training(lr=0.1, batch=4)
    for norm in (False, True):
        model = mlp(federation, norm=norm)
        plain = Run(FedAvg(training), federation, model, dtype=dtype).rounds(2)
        meta = Run(Reptile(training, 1.0, 0.0), federation, model, dtype=dtype).rounds(2)
        assert same_bits(plain.state.params, meta.state.params)


def test_momentum_leaves_running_statistics_alone():
    federation = points((9, 5))
    run = Run(Reptile(Training(batch=4)), federation, mlp(federation, norm=True)).rounds(2)
    assert set(run.state.velocity) == run.sim.model.trainable
    variances = [p for n, p in run.state.params.items() if n.endswith("running_var")]
    assert variances
    assert all(bool((v > 0).all()) for v in variances)


@each_engine
def test_adaptation_is_one_step_of_the_batch(engine):
    """From 1 on two quadratics of 70 samples: one step of 64 equal samples each, 1.1 and 1.8; two if asked for."""
    federation = quadratics([1.0, 2.0], [2.0, 5.0], [70, 70])
    run = Run(Reptile(Training(lr=0.1, batch=1)), federation, scalar_model(), engine, at(1.0))
    assert [float(o[0, 0]) for o in run.outputs("adapted")] == pytest.approx([1.1, 1.8], abs=1e-12)
    assert [float(o[0, 0]) for o in run.outputs("adapted", epochs=2)] == pytest.approx([1.19, 2.44], abs=1e-12)
    whole = Run(Reptile(Training(lr=0.1), adapt_steps=None), federation, scalar_model(), engine, at(1.0))
    assert [float(o[0, 0]) for o in whole.outputs("adapted")] == pytest.approx([1.19, 2.44], abs=1e-12)  # 64 and 6
    assert [float(o[0, 0]) for o in run.outputs("received")] == [1.0, 1.0]


def test_bytes_are_fedavgs():
    federation = points((5, 9, 2))
    logs = [Run(m, federation, mlp(federation)).rounds(1).logs[0] for m in (Reptile(), FedAvg())]
    assert (logs[0].bytes_up, logs[0].bytes_down) == (logs[1].bytes_up, logs[1].bytes_down)


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match="server_momentum must be at least 0 and at most 1"):
        Reptile(server_momentum=2.0)
    with pytest.raises(ValueError, match="adapt_steps must be at least 1"):
        Reptile(adapt_steps=0)
