"""FedPer: a shared base, personal heads."""

from dataclasses import replace

import pytest
import torch
from oracles.sims import DOUBLE, Run, each_engine, federate, mlp, points, same_bits, worst

from posterity import models
from posterity.core.passes import Training, base, descend
from posterity.core.tree import tree_rows
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedper import FedPer, split
from posterity.methods.local import Local

TRAINING = Training(lr=0.1, batch=4, epochs=2)


@each_engine
def test_two_clients_by_hand(engine):
    """f(x) = h·b·x with b = h = 1; samples (1, 2) and (1, 0), sizes 1 and 3; one joint step of 0.1.

    Client 1: error 1 − 2 = −1, both gradients −1, so b_1 = h_1 = 1.1. Client 2: error 1, so b_2 = h_2 = 0.9.
    Base (1.1 + 3·0.9) / 4 = 0.95; heads stay at home, and client 1 predicts 1.1·0.95·x when it has received the base.
    """
    net = torch.nn.Sequential()
    net.add_module("base", torch.nn.Linear(1, 1, bias=False))
    net.add_module("head", torch.nn.Linear(1, 1, bias=False))
    model = models.wrap(net, "head", 1, "regression", shape=(1,))
    one = torch.ones(1, 1, dtype=DOUBLE)
    data = [(one, 2 * one[0]), (one.repeat(3, 1), torch.zeros(3, dtype=DOUBLE))]
    initial = {"base.weight": one, "head.weight": one}
    run = Run(FedPer(Training(lr=0.1)), federate(data, test=[(one, one[0])] * 2), model, engine, initial).rounds(1)
    assert float(run.state.params["base.weight"]) == pytest.approx(0.95, abs=1e-14)
    assert run.store.rows["head.weight"].flatten().tolist() == pytest.approx([1.1, 0.9], abs=1e-14)
    assert [float(o[0, 0]) for o in run.outputs("received")] == pytest.approx([1.045, 0.855], abs=1e-14)
    assert float(run.state.params["head.weight"]) == 1.0


@each_engine
def test_everything_personal_is_local(engine):
    """A network that is all head: nothing is averaged."""
    federation = points((9, 5, 1))
    model = models.build("linear", federation.shape, 3)
    runs = [Run(m, federation, model, engine).rounds(3) for m in (FedPer(TRAINING), Local(TRAINING))]
    assert same_bits(runs[0].store.rows, runs[1].store.rows)
    assert runs[0].logs[0].bytes_down == 0


def test_a_frozen_head_gives_fedavg_on_the_base():
    class Frozen(FedPer):
        def passes(self):
            return (descend(self.loss, self.local.make_optimiser(), base, **self.local.schedule()),)

    class Still(FedAvg):
        def passes(self):
            return (descend(self.loss, self.local.make_optimiser(), base, **self.local.schedule()),)

    federation = points((9, 5, 1))
    runs = [Run(m, federation, mlp(federation)).rounds(3) for m in (Frozen(TRAINING), Still(TRAINING))]
    assert same_bits(runs[0].state.params, runs[1].state.params)


def test_nothing_personal_is_fedavg():
    """A head without leaves (Identity after the last layer) leaves nothing at home."""
    federation = points((9, 5, 1))
    net = torch.nn.Sequential()
    net.add_module("fc", torch.nn.Linear(6, 3))
    net.add_module("end", torch.nn.Identity())
    model = models.wrap(net, "end", 3, shape=(6,))
    runs = [Run(m, federation, model).rounds(3) for m in (FedPer(TRAINING), FedAvg(TRAINING))]
    assert same_bits(runs[0].state.params, runs[1].state.params)


def test_one_client_is_centralised_training():
    federation = points((17,))
    model = mlp(federation)
    shared = Run(FedPer(TRAINING), federation, model).rounds(3)
    alone = Run(Local(TRAINING), federation, model).rounds(3)
    whole = {**split(shared.state.params, model.head_names)[0], **tree_rows(shared.store.rows, 0)}
    assert worst(whole, tree_rows(alone.store.rows, 0)) < 1e-13


@pytest.mark.parametrize("norm", [False, True])
def test_bytes_are_the_base_both_ways(norm):
    """d_b numbers (batch-norm buffers of the base included) down, d_b and the weight up."""
    federation = points((5, 9, 4))
    model = mlp(federation, norm=norm)
    log = Run(FedPer(), federation, model, dtype=torch.float32).rounds(1).logs[0]
    d_b = 6 * 8 + 8 + (4 * 8 if norm else 0)
    assert log.bytes_down == 3 * 4 * d_b
    assert log.bytes_up == 3 * 4 * (d_b + 1)


def test_an_absent_client_keeps_its_head():
    federation = points((9, 5, 4))
    run = Run(FedPer(TRAINING), federation, mlp(federation)).rounds(1)
    before = {n: v.clone() for n, v in tree_rows(run.store.rows, 1).items()}
    run.rounds(2, cohort=[0, 2])
    assert same_bits(before, tree_rows(run.store.rows, 1))


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match="epochs must be at least 1; 0"):
        FedPer(replace(TRAINING, epochs=0))
