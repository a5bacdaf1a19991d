"""Local training: everybody alone, nothing sent."""

import pytest
import torch
from oracles.sims import Run, at, each_engine, full_batch, mlp, points, q2, quadratics, same_bits, scalar_model

from posterity.core.passes import Training
from posterity.core.tree import tree_rows
from posterity.methods.local import Local


@each_engine
def test_q2_local_optima(engine):
    """With η = 0.2, 0.8^60 = 1.5e-6 and 0.2^60 = 0 remain of the way to (0, 3)."""
    run = Run(Local(full_batch(30, lr=0.2)), q2(), scalar_model(), engine, at(2.0)).rounds(2)
    assert run.personal() == pytest.approx([2 * 0.8**60, 3.0], abs=1e-12)
    assert run.scalar() == 2.0  # the server's model is the initial one for ever


@each_engine
def test_two_clients_by_hand(engine):
    """From 1 with η = 0.1: 1 → 1.1 → 1.19 towards 2 (A = 1), and 1 → 1.8 → 2.44 towards 5 (A = 2)."""
    run = Run(Local(full_batch(1)), quadratics([1.0, 2.0], [2.0, 5.0]), scalar_model(), engine, at(1.0)).rounds(2)
    assert run.personal() == pytest.approx([1.19, 2.44], abs=1e-12)


def test_nothing_is_sent():
    federation = points((5, 9, 2))
    log = Run(Local(), federation, mlp(federation)).rounds(1).logs[0]
    assert (log.bytes_up, log.bytes_down, log.accepted) == (0, 0, 3)


@each_engine
def test_other_clients_have_no_influence(engine):
    """Client 0's data are the same in both federations, the others' are not."""
    one, two = points((9, 5, 3)), points((9, 5, 3))
    two.x[two.train.client(1)] += 5
    runs = [Run(Local(Training(lr=0.1, batch=4)), f, mlp(one), engine).rounds(2) for f in (one, two)]
    records = [tree_rows(r.store.rows, 0) for r in runs]
    assert same_bits(*records)
    assert not same_bits(*[tree_rows(r.store.rows, 1) for r in runs])


def test_an_absent_client_keeps_its_model():
    federation = points((9, 5, 3))
    run = Run(Local(Training(lr=0.1, batch=4)), federation, mlp(federation)).rounds(1)
    before = {n: v.clone() for n, v in tree_rows(run.store.rows, 2).items()}
    run.rounds(1, cohort=[0, 1])
    assert same_bits(before, tree_rows(run.store.rows, 2))


def test_a_newcomer_starts_from_the_common_model():
    federation = points((9, 5))
    run = Run(Local(), federation, mlp(federation)).rounds(2)
    strange = run.outputs("received", newcomers=True)
    own, _ = run.sim.model(run.sim.initial, federation.x[federation.test.client(0)])
    assert torch.allclose(strange[0], own.log_softmax(-1), atol=1e-14)


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match="lr must be at least 0; -1"):
        Local(Training(lr=-1))
