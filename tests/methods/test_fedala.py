"""FedALA: the weights of its last layers in plain numbers, its limits FedAvg and Local, its share of samples."""

from dataclasses import replace

import pytest
import torch
from oracles.sims import (
    DOUBLE,
    ENGINES,
    WEIGHT,
    Run,
    at,
    each_engine,
    federate,
    full_batch,
    mlp,
    points,
    q2,
    same_bits,
    scalar_model,
    worst,
)

from posterity.core.common import count_labels
from posterity.core.passes import Training, gather
from posterity.core.tree import tree_map, tree_rows
from posterity.methods import build
from posterity.methods.fedala import FedALA, last_layers
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedper import FedPer
from posterity.methods.local import Local

TRAINING = Training(lr=0.1, batch=4, epochs=2)


def reference(rounds, first_epochs=1, weight_lr=0.1, steps=5, lr=0.1):
    """On Q2 in plain numbers: w, the θ_k and the W_k after some rounds; an epoch is one step."""
    curvature, centre, w, mine, weight = (1.0, 4.0), (0.0, 3.0), 0.0, [0.0, 0.0], [1.0, 1.0]
    for number in range(1, rounds + 1):
        for k in (0, 1):
            apart = w - mine[k]
            for _ in range(first_epochs if number <= 2 else 1):
                slope = curvature[k] * (mine[k] + apart * weight[k] - centre[k]) * apart
                weight[k] = min(1.0, max(0.0, weight[k] - weight_lr * slope))
            mine[k] += apart * weight[k]
            for _ in range(steps):
                mine[k] -= lr * curvature[k] * (mine[k] - centre[k])
        w = sum(mine) / 2
    return w, mine, weight


@each_engine
@pytest.mark.parametrize("first_epochs", [1, 3])
def test_q2_in_plain_numbers(engine, first_epochs):
    """One layer, one number. The second round is the first in which θ_k is not w; from the third there is one epoch."""
    method = FedALA(full_batch(5), weight_lr=0.1, first_epochs=first_epochs)
    run = Run(method, q2(), scalar_model(), engine, at(0.0))
    for rounds in (1, 2, 3, 4):
        w, mine, weight = reference(rounds, first_epochs)
        assert run.rounds(1).scalar() == pytest.approx(w, abs=1e-12)
        rows = run.store.rows
        assert rows.model[WEIGHT].flatten().tolist() == pytest.approx(mine, abs=1e-12)
        assert rows.weights[WEIGHT].flatten().tolist() == pytest.approx(weight, abs=1e-12)
        received = [mine[k] + (w - mine[k]) * weight[k] for k in (0, 1)]
        assert [float(o[0, 0]) for o in run.outputs("received")] == pytest.approx(received, abs=1e-12)
        if rounds == 1:
            assert weight == [1.0, 1.0]
    assert 0 < weight[0] < 1
    assert (weight[1] == 0) == (first_epochs == 3)  # stopped by the bound


def test_the_number_of_first_epochs_counts_at_the_second_visit():
    """By hand for two clients: neighbours end apart after round 2, and not after round 1."""
    ends = {}
    for epochs in (1, 2, 3):
        run = Run(FedALA(full_batch(5), weight_lr=0.1, first_epochs=epochs), q2(), scalar_model(), initial=at(0.0))
        first = run.rounds(1).scalar()
        ends[epochs] = run.rounds(1).store.rows.weights[WEIGHT].flatten().tolist()
        assert first == pytest.approx(1.38336, abs=1e-12)
        assert ends[epochs] == pytest.approx(reference(2, epochs, 0.1)[2], abs=1e-12)
    assert len({tuple(end) for end in ends.values()}) == 3


class Idle(FedAvg):
    """FedAvg that walks over its data once before: the order of samples knows which pass it is."""

    def passes(self):
        return gather("count", count_labels), self.local.descend(self.loss)


@each_engine
def test_weights_of_one_are_fedavg(engine):
    """W begins at 1 and stays there if it does not learn."""
    federation = points((9, 5, 1))
    methods = FedALA(TRAINING, layers=2, weight_lr=0.0), Idle(TRAINING)
    runs = [Run(m, federation, mlp(federation, norm=True), engine).rounds(2) for m in methods]
    assert same_bits(runs[0].state, runs[1].state)
    assert all(torch.equal(a, b) for a, b in zip(*(run.outputs("received") for run in runs), strict=True))


class Zero(FedALA):
    """W = 0 and at rest."""

    def join(self, here):
        mine = FedALA.join(self, here)
        return replace(mine, weights=tree_map(torch.zeros_like, mine.weights))


class Count:
    def passes(self):
        return gather("count", count_labels), self.local.descend()


class IdleLocal(Count, Local):
    pass


class IdlePer(Count, FedPer):
    pass


def test_weights_of_zero_are_local_in_these_layers():
    """All layers: Local, bit for bit; the last layer: FedPer, whose heads stay at home."""
    federation = points((9, 5, 1))
    model = mlp(federation)
    zero = Run(Zero(TRAINING, layers=2, weight_lr=0.0), federation, model).rounds(2)
    alone = Run(IdleLocal(TRAINING), federation, model).rounds(2)
    assert same_bits(zero.store.rows.model, dict(alone.store.rows))
    head = Run(Zero(TRAINING, layers=1, weight_lr=0.0), federation, model).rounds(2)
    per = Run(IdlePer(TRAINING), federation, model).rounds(2)
    assert same_bits(head.store.rows.model, dict(per.store.rows))
    assert all(torch.equal(head.state.params[n], per.state.params[n]) for n in model.base_names)


def test_only_the_last_layers_are_mixed_and_their_slopes_are_the_losses():
    """One full batch, s = 1: W − η_W ∇f ⊙ (w − θ_k), by autograd at θ̂ = w below and θ̂ = w above (W = 1)."""
    federation = points((9, 5))
    model = mlp(federation)
    method = FedALA(full_batch(1), share=1.0, weight_lr=0.5)
    run = Run(method, federation, model).rounds(1)
    w, mine = run.state.params, tree_map(torch.clone, tree_rows(run.store.rows, 0)).model
    assert set(mine) == set(model.head_names)
    x, y = (part[federation.train.client(0)] for part in (federation.x, federation.y))
    slope = torch.func.grad(lambda p: torch.nn.functional.cross_entropy(model.logits(p, x), y))(w)
    weights = {n: (1 - 0.5 * slope[n] * (w[n] - mine[n])).clamp(0, 1) for n in mine}
    run.rounds(1)
    assert worst(tree_rows(run.store.rows, 0).weights, weights) < 1e-13
    assert min(float(v.min()) for v in weights.values()) < 1
    assert [float(v.max()) for v in weights.values()] == [1.0, 1.0]


def uneven():
    """Client 1 has x = 1 five times with the targets 1, 2, 4, 8, 16; client 2 the one sample (1, 0)."""
    one = torch.ones(5, 1, dtype=DOUBLE)
    data = [(one, 2.0 ** torch.arange(5, dtype=DOUBLE)), (one[:1], torch.zeros(1, dtype=DOUBLE))]
    return federate(data, test=[(one[:1], torch.zeros(1, dtype=DOUBLE))] * 2)


def after_half(method, engine=ENGINES[1]):
    """How W moved from ½ in one visit with θ_k = 0 and w = 1, in steps of η_W."""
    run = Run(method, uneven(), scalar_model(), engine, at(0.0)).rounds(1)
    run.store.rows.weights[WEIGHT][:] = 0.5
    run.state = replace(run.state, params=at(1.0))
    return (float(run.rounds(1, [0]).store.rows.weights[WEIGHT][0]) - 0.5) / method.weight_lr


@each_engine
@pytest.mark.parametrize(("share", "used"), [(0.8, 4), (0.5, 3), (1.0, 5), (0.01, 1)])
def test_the_share_of_samples(engine, share, used):
    """The mean target of the samples used is read off W; the sum of their targets says how many there were: ⌈5 s⌉."""
    mean = 0.5 + after_half(FedALA(full_batch(1, 0.0), share=share, weight_lr=1e-3), engine)
    total = mean * used
    assert total == pytest.approx(round(total), abs=1e-9)
    assert round(total).bit_count() == used


def test_the_share_counts_over_batches():
    """n = 5 in batches of 2 with s = 0.8: two whole batches learn, the last one rests, so four targets are summed."""
    moved = after_half(FedALA(Training(lr=0.0, batch=2), share=0.8, weight_lr=1e-4))
    total = 2 * (moved + 1)  # two means of two targets, at θ̂ = ½ and a little beyond
    assert total == pytest.approx(round(total), abs=0.01)
    assert round(total) <= 30
    assert round(total).bit_count() == 4


def test_which_layers_are_the_last():
    federation = points((9, 5))
    model = mlp(federation, hidden=(8, 7), norm=True)
    assert last_layers(model, 1) == ["head.weight", "head.bias"]
    everything = [n for n in model.leaves if n in model.trainable]
    assert last_layers(model, 99) == everything
    counts = [len(last_layers(model, p)) for p in range(1, 6)]
    assert counts == [2, 4, 6, 8, 10]
    assert everything[-4:] == last_layers(model, 2)


def test_newcomers_predict_with_the_servers_model():
    federation = points((9, 5, 4))
    run = Run(FedALA(TRAINING), federation, mlp(federation)).rounds(2, [0, 1])
    x = federation.x[federation.test.client(2)]
    expected = torch.log_softmax(run.sim.model.logits(run.state.params, x), -1)
    assert worst(run.outputs("received", newcomers=True)[2], expected) < 1e-14
    assert worst(run.outputs("received")[0][:1], run.outputs("received", newcomers=True)[0][:1]) > 1e-6


def test_an_absent_client_keeps_its_record():
    federation = points((9, 5, 4))
    run = Run(FedALA(TRAINING), federation, mlp(federation)).rounds(2)
    before = tree_map(torch.clone, tree_rows(run.store.rows, 1))
    moved = tree_map(torch.clone, tree_rows(run.store.rows, 0))
    run.rounds(1, cohort=[0, 2])
    assert same_bits(before, tree_rows(run.store.rows, 1))
    assert worst(moved.weights, tree_rows(run.store.rows, 0).weights) > 1e-6
    assert run.store.rows.visits.tolist() == [3, 2, 3]


def test_bytes_are_fedavgs():
    federation = points((5, 9, 4))
    logs = [Run(m, federation, mlp(federation), dtype=torch.float32).rounds(1).logs[0] for m in (FedALA(), FedAvg())]
    assert (logs[0].bytes_up, logs[0].bytes_down) == (logs[1].bytes_up, logs[1].bytes_down)


def test_the_papers_values():
    local = Training(lr=0.005, epochs=1, batch=10)
    assert build("fedala@paper") == FedALA(local, layers=1, weight_lr=1.0, share=0.8, first_epochs=11)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"layers": 0}, "layers must be at least 1"),
        ({"weight_lr": -1.0}, "weight_lr must be at least 0"),
        ({"share": 0.0}, "share must be above 0 and at most 1; 0.0 was given"),
        ({"share": 1.2}, "share must be above 0 and at most 1"),
        ({"share": float("nan")}, "share must be a finite number; nan"),
        ({"first_epochs": 0}, "first_epochs must be at least 1"),
    ],
)
def test_bad_hyper_parameters(given, message):
    with pytest.raises(ValueError, match=message):
        FedALA(**given)
