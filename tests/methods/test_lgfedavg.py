"""LG-FedAvg: a shared head on personal bases, with or without a warm start."""

import pytest
import torch
from oracles.sims import DOUBLE, Run, each_engine, federate, mlp, points, same_bits, worst

from posterity import methods, models
from posterity.core.passes import Training
from posterity.core.tree import tree_map, tree_rows
from posterity.methods.fedavg import FedAvg
from posterity.methods.lgfedavg import LGFedAvg
from posterity.methods.local import Local

TRAINING = Training(lr=0.1, batch=4, epochs=2)
ONE = torch.ones(1, 1, dtype=DOUBLE)
BILINEAR = {"base.weight": ONE, "head.weight": ONE}


def bilinear():
    """f(x) = h·b·x."""
    net = torch.nn.Sequential()
    for part in ("base", "head"):
        net.add_module(part, torch.nn.Linear(1, 1, bias=False))
    return models.wrap(net, "head", 1, "regression", shape=(1,))


def pair():
    """Two clients at x = 1 with the targets 2 and 0, sizes 1 and 3."""
    data = [(ONE, 2 * ONE[0]), (ONE.repeat(3, 1), torch.zeros(3, dtype=DOUBLE))]
    return federate(data, test=[(ONE, ONE[0])] * 2)


def reference(warm, rounds, lr=0.1):
    """Plain numbers on `pair()`, one step a round: the head, the server's base, the clients' bases."""
    h, b, bases, target, share = 1.0, 1.0, [1.0, 1.0], (2.0, 0.0), (0.25, 0.75)
    for number in range(1, rounds + 1):
        heads, new = [], []
        for k in (0, 1):
            base = b if number <= warm + 1 else bases[k]
            error = h * base - target[k]
            heads.append(h - lr * error * base)
            new.append(base - lr * error * h)
        h, bases = sum(s * v for s, v in zip(share, heads, strict=True)), new
        if number <= warm:
            b = sum(s * v for s, v in zip(share, new, strict=True))
    return h, b, bases


@each_engine
def test_two_clients_by_hand(engine):
    """b = h = 1, one joint step of 0.1. Client 1: error −1, so b_1 = h_1 = 1.1; client 2: error 1, b_2 = h_2 = 0.9.

    Head (1.1 + 3·0.9) / 4 = 0.95; bases stay at home, and client 1 predicts 0.95·1.1·x when it has received the head.
    """
    run = Run(LGFedAvg(Training(lr=0.1)), pair(), bilinear(), engine, BILINEAR).rounds(1)
    assert float(run.state.params["head.weight"]) == pytest.approx(0.95, abs=1e-14)
    assert run.store.rows.base["base.weight"].flatten().tolist() == pytest.approx([1.1, 0.9], abs=1e-14)
    assert [float(o[0, 0]) for o in run.outputs("received")] == pytest.approx([1.045, 0.855], abs=1e-14)
    assert float(run.state.params["base.weight"]) == 1.0


@each_engine
@pytest.mark.parametrize("warm", [0, 1, 2, 3])
def test_rounds_of_the_warm_start(engine, warm):
    """Three rounds in plain numbers: each number of warm rounds ends elsewhere than the next."""
    run = Run(LGFedAvg(Training(lr=0.1), warm_rounds=warm), pair(), bilinear(), engine, BILINEAR).rounds(3)
    h, b, bases = reference(warm, 3)
    assert float(run.state.params["head.weight"]) == pytest.approx(h, abs=1e-14)
    assert float(run.state.params["base.weight"]) == pytest.approx(b, abs=1e-14)
    assert run.store.rows.base["base.weight"].flatten().tolist() == pytest.approx(bases, abs=1e-14)
    other = reference(warm + 1, 3)
    assert warm == 3 or abs(h - other[0]) + abs(b - other[1]) > 1e-4
    used = bases if warm < 3 else [b, b]  # until round R + 1 nobody has a base of its own
    assert [float(o[0, 0]) for o in run.outputs("received")] == pytest.approx([h * each for each in used], abs=1e-14)


def test_a_client_that_missed_the_start_begins_where_the_warm_start_ended():
    """Client 1 trains in round 1 (warm) and again in round 3; client 2 in round 2 alone. One step from (b, h) = w."""
    run = Run(LGFedAvg(Training(lr=0.1), warm_rounds=1), pair(), bilinear(), initial=BILINEAR).rounds(1)
    b = float(run.state.params["base.weight"])
    run.rounds(1, cohort=[1])
    h = float(run.state.params["head.weight"])
    run.rounds(1, cohort=[0])
    assert float(run.state.params["base.weight"]) == b
    assert float(run.store.rows.base["base.weight"][0]) == pytest.approx(b - 0.1 * h * (h * b - 2), abs=1e-14)


@each_engine
def test_the_warm_start_is_fedavg_bit_for_bit(engine):
    federation = points((9, 5, 1))
    model = mlp(federation, norm=True)
    runs = [Run(m, federation, model, engine).rounds(2) for m in (LGFedAvg(TRAINING, warm_rounds=2), FedAvg(TRAINING))]
    assert same_bits(runs[0].state.params, runs[1].state.params)
    outputs = [run.outputs("received") for run in runs]
    assert all(torch.equal(a, b) for a, b in zip(*outputs, strict=True))
    base, last = {n: runs[0].state.params[n] for n in model.base_names}, [run.rounds(1) for run in runs]
    assert same_bits(base, {n: last[0].state.params[n] for n in base})  # from now on it stays at home
    assert all(torch.equal(last[0].state.params[n], last[1].state.params[n]) for n in model.head_names)


def test_everything_shared_is_fedavg():
    """A network that is all head."""
    federation = points((9, 5, 1))
    model = models.build("linear", federation.shape, 3)
    runs = [Run(m, federation, model).rounds(3) for m in (LGFedAvg(TRAINING), FedAvg(TRAINING))]
    assert same_bits(runs[0].state.params, runs[1].state.params)
    assert "is FedAvg here, bit for bit" in LGFedAvg().remarks(model)[0]


def test_nothing_shared_is_local():
    """A head without leaves (Identity after the last layer)."""
    federation = points((9, 5, 1))
    net = torch.nn.Sequential()
    net.add_module("fc", torch.nn.Linear(6, 3))
    net.add_module("end", torch.nn.Identity())
    model = models.wrap(net, "end", 3, shape=(6,))
    runs = [Run(m, federation, model).rounds(3) for m in (LGFedAvg(TRAINING), Local(TRAINING))]
    assert same_bits(runs[0].store.rows.base, runs[1].store.rows)


def test_the_first_round_trains_what_fedavg_trains():
    """A common beginning: the bases are those of clients by themselves, the head is FedAvg's."""
    federation = points((9, 5, 1))
    model = mlp(federation, norm=True)
    ours, alone, mean = (
        Run(m, federation, model).rounds(1) for m in (LGFedAvg(TRAINING), Local(TRAINING), FedAvg(TRAINING))
    )
    assert same_bits(ours.store.rows.base, {n: alone.store.rows[n] for n in ours.store.rows.base})
    assert all(torch.equal(ours.state.params[n], mean.state.params[n]) for n in model.head_names)
    assert model.buffers <= set(ours.store.rows.base)  # batch norm belongs to the base
    assert LGFedAvg().remarks(model) == ()


@pytest.mark.parametrize("norm", [False, True])
def test_bytes_are_the_head_both_ways(norm):
    """d_h numbers down, d_h and the weight up; a warm start adds the base down always, and up in its rounds."""
    federation = points((5, 9, 4))
    model, d_h, d_b = mlp(federation, norm=norm), 8 * 3 + 3, 6 * 8 + 8 + (4 * 8 if norm else 0)
    log = Run(LGFedAvg(), federation, model, dtype=torch.float32).rounds(1).logs[0]
    assert log.bytes_down == 3 * 4 * d_h
    assert log.bytes_up == 3 * 4 * (d_h + 1)
    first, second = Run(LGFedAvg(warm_rounds=1), federation, model, dtype=torch.float32).rounds(2).logs
    assert first.bytes_down == second.bytes_down == 3 * 4 * (d_h + d_b)
    assert first.bytes_up == 3 * 4 * (d_h + 1 + d_b + 1)
    assert second.bytes_up == 3 * 4 * (d_h + 1 + 1)


def test_an_absent_client_keeps_its_base():
    federation = points((9, 5, 4))
    run = Run(LGFedAvg(TRAINING), federation, mlp(federation)).rounds(1)
    before = tree_map(torch.clone, tree_rows(run.store.rows, 1))
    run.rounds(2, cohort=[0, 2])
    assert same_bits(before, tree_rows(run.store.rows, 1))
    assert worst(tree_rows(run.store.rows, 0).base, before.base) > 1e-3


def test_newcomers_train_a_base_of_their_own():
    """From b = 1 and the server's head 0.95: one joint step for the target 2 gives (b, h) = (1.09975, 1.055)."""
    run = Run(LGFedAvg(Training(lr=0.1)), pair(), bilinear(), initial=BILINEAR).rounds(1)
    tuned = [float(o[0, 0]) for o in run.outputs("adapted", epochs=1, newcomers=True)]
    assert tuned[0] == pytest.approx(1.09975 * 1.055, abs=1e-13)
    assert [float(o[0, 0]) for o in run.outputs("received", newcomers=True)] == pytest.approx([0.95, 0.95], abs=1e-14)


def test_words():
    assert LGFedAvg().outside == "the server's head on the base that all clients begin with"
    assert methods.build("lgfedavg@paper") == LGFedAvg()


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match="warm_rounds must be at least 0; -1"):
        LGFedAvg(warm_rounds=-1)
    with pytest.raises(ValueError, match="warm_rounds takes a whole number"):
        LGFedAvg(warm_rounds=0.5)
