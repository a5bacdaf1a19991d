"""MAML: Q2's numbers and fixed points through the engines, differences, and what it becomes without a fast step."""

import pytest
import torch
from oracles.sims import (
    WEIGHT,
    Run,
    at,
    each_engine,
    federate,
    full_batch,
    mlp,
    points,
    q2,
    quadratics,
    scalar_model,
    worst,
)

from posterity.core import normal
from posterity.core.passes import Training
from posterity.methods.fedavg import FedAvg
from posterity.methods.maml import MAML
from posterity.methods.reptile import Reptile

PLAIN = {"server_lr": 1.0, "server_momentum": 0.0}
NUMBERS = {"exact": (0.216, 1.92), "first": (0.36, 2.1818181818)}  # one round from 0, fixed point


@each_engine
@pytest.mark.parametrize("order", NUMBERS)
def test_q2(engine, order):
    method = MAML(full_batch(1), 0.1, order, **PLAIN)
    once, fixed = NUMBERS[order]
    assert Run(method, q2(3), scalar_model(), engine, at(0.0)).rounds(1).scalar() == pytest.approx(once, abs=1e-10)
    assert Run(method, q2(3), scalar_model(), engine, at(fixed)).rounds(1).scalar() == pytest.approx(fixed, abs=1e-9)


@pytest.mark.parametrize("order", NUMBERS)
def test_q2_converges(order):
    """γ = 0.8: the error shrinks by 1 − 0.4 Σ A(1 − αA)² = 0.1 a round (first order: −0.32)."""
    run = Run(MAML(full_batch(1, lr=0.8), 0.1, order, **PLAIN), q2(3), scalar_model(), initial=at(0.0)).rounds(20)
    assert run.scalar() == pytest.approx(NUMBERS[order][1], abs=1e-8)


@each_engine
def test_two_clients_by_hand_adapted(engine):
    """One step of 0.1 from 1.92: 1.92 − 0.192 = 1.728 and 1.92 − 0.4 (1.92 − 3) = 2.352."""
    run = Run(MAML(full_batch(1), 0.1, **PLAIN), q2(3), scalar_model(), engine, at(1.92))
    assert [float(o[0, 0]) for o in run.outputs("adapted")] == pytest.approx([1.728, 2.352], abs=1e-12)


def test_no_fast_step_is_fedavg_with_the_meta_step():
    """α = 0 with equal rows: the query's gradient is the whole batch's."""
    left = Run(MAML(full_batch(3), 0.0, **PLAIN), q2(3), scalar_model(), initial=at(0.0)).rounds(2)
    right = Run(FedAvg(full_batch(3)), q2(3), scalar_model(), initial=at(0.0)).rounds(2)
    assert left.scalar() == pytest.approx(right.scalar(), abs=1e-12)


@each_engine
@pytest.mark.parametrize("order", NUMBERS)
def test_a_clipped_inner_step(engine, order):
    """½·4(θ − 3)² from 0: the gradient −12 is shortened to 5, θ′ = θ + 0.5, and the step is 0.1·4·2.5 = 1."""
    method = MAML(full_batch(1), 0.1, order, part_clip=5.0, **PLAIN)
    run = Run(method, quadratics([4.0], [3.0], [3]), scalar_model(), engine, at(0.0)).rounds(1)
    assert run.scalar() == pytest.approx(1.0, abs=1e-6)


@each_engine
def test_two_inner_steps(engine):
    """A(1 − αA)⁴(θ − m): from 0 client 2 moves by 0.1·4·0.6⁴·3 = 0.15552, at rest at 3·0.5184/(0.6561 + 0.5184)."""
    method = MAML(full_batch(1), 0.1, inner=2, **PLAIN)
    assert Run(method, q2(3), scalar_model(), engine, at(0.0)).rounds(1).scalar() == pytest.approx(0.07776, abs=1e-10)
    fixed = 3 * 0.5184 / 1.1745
    assert Run(method, q2(3), scalar_model(), engine, at(fixed)).rounds(1).scalar() == pytest.approx(fixed, abs=1e-9)


def test_a_meta_step_takes_a_support_and_its_queries():
    """B samples for the support and 2B for the query; B and B if one query is asked for."""
    assert MAML(Training(batch=20)).passes()[0].batch == 60
    assert MAML(Training(batch=20), queries=1).passes()[0].batch == 40


def test_a_client_of_one_sample_has_no_query():
    federation = points((1, 1))
    run = Run(MAML(Training(lr=0.5), 0.1, **PLAIN), federation, mlp(federation))
    assert worst(run.rounds(1).state.params, run.sim.initial) == 0


def test_server_is_reptiles():
    """Momentum: 0.216, then v = 0.9·0.216 + the gradient step from there."""
    run = Run(MAML(full_batch(1), 0.1, server_lr=1.0), q2(3), scalar_model(), initial=at(0.0))
    first, second = (run.rounds(1).scalar() for _ in range(2))
    step = 0.05 * (-0.81 * first + 1.44 * (3 - first))  # ½·γ Σ A(1 − αA)²(m − θ)
    assert first == pytest.approx(0.216, abs=1e-12)
    assert second == pytest.approx(first + 0.9 * 0.216 + step, abs=1e-10)


def test_the_servers_step_and_clip():
    """Half of 0.216, and 0.216 shortened to 0.1 (to 1e-6, as in torch); without momentum no velocity is kept."""
    half = Run(MAML(full_batch(1), 0.1, server_lr=0.5), q2(3), scalar_model(), initial=at(0.0))
    assert half.rounds(1).scalar() == pytest.approx(0.108, abs=1e-12)
    short = Run(MAML(full_batch(1), 0.1, server_lr=1.0, server_clip=0.1), q2(3), scalar_model(), initial=at(0.0))
    assert short.rounds(1).scalar() == pytest.approx(0.1, abs=1e-6)
    assert Run(MAML(**PLAIN), q2(3), scalar_model()).state.velocity == {}


@each_engine
def test_adaptation_is_one_fast_step_of_its_batch(engine):
    """From 1 on two quadratics of 70 samples: steps of 0.1, whatever γ; an epoch of 64 and 6 has two of them."""
    federation, local = quadratics([1.0, 2.0], [2.0, 5.0], [70, 70]), Training(lr=0.7, batch=1)
    adapted = {}
    for name, how in {"one": {}, "whole": {"adapt_steps": None}}.items():
        run = Run(MAML(local, 0.1, **how), federation, scalar_model(), engine, at(1.0))
        adapted[name] = [[float(o[0, 0]) for o in run.outputs("adapted", epochs=e)] for e in (1, 2)]
    assert adapted["one"][0] == pytest.approx([1.1, 1.8], abs=1e-12)
    assert adapted["one"][1] == adapted["whole"][0] == pytest.approx([1.19, 2.44], abs=1e-12)
    short = Run(MAML(Training(clip=0.5), 0.1), federation, scalar_model(), engine, at(1.0))
    assert [float(o[0, 0]) for o in short.outputs("adapted")] == pytest.approx([1.05, 1.05], abs=1e-6)


@pytest.mark.parametrize("order", NUMBERS)
def test_the_query_is_not_the_support(order):
    """½(θ − 0)² and ½(θ − 3)² in either part: from 1, θ′ = 0.9 and 1 + 0.21 c, or θ′ = 1.2 and 1 − 0.12 c."""
    one, zero = torch.ones(2, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    federation = federate([(one, torch.tensor([0.0, 3.0], dtype=torch.float64))], test=[(one[:1], zero)])
    method = MAML(full_batch(1), 0.1, order, queries=1, **PLAIN)
    found = Run(method, federation, scalar_model(), initial=at(1.0)).rounds(1).scalar()
    chain = 1.0 if order == "first" else 0.9  # c = 1 − α
    assert min(abs(found - (1 + 0.21 * chain)), abs(found - (1 - 0.12 * chain))) < 1e-12


def test_inner_steps_draw_by_themselves():
    """ε_s θ for the support, ½θ² + ε_q θ for the query; α = 1: the slope is θ − ε_s + ε_q, and θ if they are equal."""

    def drawn(params, batch, here):
        return (params[WEIGHT] * normal(here.key, (1,), torch.float64)).sum(), {}

    def query(params, batch, here):
        return 0.5 * (params[WEIGHT] ** 2).sum() + drawn(params, batch, here)[0], {}

    method = MAML(full_batch(1), 1.0, "first", **PLAIN, loss=query, support_loss=drawn)
    found = Run(method, q2(3), scalar_model(), initial=at(1.0)).rounds(1).scalar()
    assert abs(found - 0.9) > 1e-3


def test_bytes_are_reptiles():
    federation = points((5, 9, 2))
    logs = [Run(m, federation, mlp(federation)).rounds(1).logs[0] for m in (MAML(), Reptile())]
    assert (logs[0].bytes_up, logs[0].bytes_down) == (logs[1].bytes_up, logs[1].bytes_down)


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match="order = 'second' is unknown: possible: exact, first"):
        MAML(order="second")
    with pytest.raises(ValueError, match="fast must be at least 0"):
        MAML(fast=-0.1)
    with pytest.raises(ValueError, match="queries must be at least 1"):
        MAML(queries=0)
    with pytest.raises(ValueError, match="server_momentum must be at least 0 and at most 1"):
        MAML(server_momentum=1.5)
