"""FedBN: personal normalisation layers, and FedAvg where there are none."""

from collections import OrderedDict

import pytest
import torch
from oracles.sims import DOUBLE, ENGINES, Run, each_engine, federate, mlp, points, same_bits, worst
from torch import nn

from posterity import models
from posterity.core.passes import Training
from posterity.core.tree import tree_map, tree_rows
from posterity.laws import check
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedbn import FedBN
from posterity.methods.local import Local

TRAINING = Training(lr=0.1, batch=4, epochs=2)


def normed(eps=1e-2):
    """Batch norm with a name that says nothing, then the head."""
    net = nn.Sequential(OrderedDict(first=nn.BatchNorm1d(6, eps=eps), head=nn.Linear(6, 3)))
    return models.wrap(net, "head", 3, shape=(6,))


@each_engine
def test_without_norms_it_is_fedavg_bit_for_bit(engine):
    federation = points((9, 5, 1))
    runs = [Run(m, federation, mlp(federation), engine).rounds(3) for m in (FedBN(TRAINING), FedAvg(TRAINING))]
    assert same_bits(runs[0].state.params, runs[1].state.params)
    for point in ("received", "adapted", "trained"):
        assert same_bits(*(run.outputs(point) for run in runs))
    assert same_bits(*(run.outputs("received", newcomers=True) for run in runs))
    assert runs[0].logs[0].bytes_up == runs[1].logs[0].bytes_up


@each_engine
def test_two_clients_by_hand(engine):
    """f(x) = w·(g·u(x) + s) with batch norm u, g = w = 1, s = 0, eps 0; x = (0, 2), so u = (−1, 1) in the batch.

    Client 1 wants (−3, 3): errors (2, −2), ∂g = mean(e·w·u) = −2, ∂w = mean(e·g·u) = −2, ∂s = 0. One step of 0.1 gives
    g = w = 1.2. Client 2 wants (1, −1): errors (−2, 2), both gradients 2: g = w = 0.8. Sizes are equal: w = 1, and
    each keeps its g. Running statistics: mean 0.1·1, variance 0.9·1 + 0.1·2 (unbiased).
    """
    net = nn.Sequential(OrderedDict(scale=nn.BatchNorm1d(1, eps=0.0), head=nn.Linear(1, 1, bias=False)))
    model = models.wrap(net, "head", 1, "regression", shape=(1,))
    x = torch.tensor([[0.0], [2.0]], dtype=DOUBLE)
    data = [(x, torch.tensor([-3.0, 3.0], dtype=DOUBLE)), (x, torch.tensor([1.0, -1.0], dtype=DOUBLE))]
    initial = {**model.init(0, DOUBLE), "head.weight": torch.ones(1, 1, dtype=DOUBLE)}
    run = Run(FedBN(Training(lr=0.1)), federate(data, test=[(x, x[:, 0])] * 2), model, engine, initial).rounds(1)
    assert float(run.state.params["head.weight"]) == pytest.approx(1.0, abs=1e-14)
    norms = {n: v.flatten().tolist() for n, v in run.store.rows.norms.items()}
    assert norms["scale.weight"] == pytest.approx([1.2, 0.8], abs=1e-14)
    assert norms["scale.running_mean"] == pytest.approx([0.1, 0.1], abs=1e-14)
    assert norms["scale.running_var"] == pytest.approx([1.1, 1.1], abs=1e-14)
    expected = [g * (0.0 - 0.1) / 1.1**0.5 for g in (1.2, 0.8)]
    assert [float(o[0, 0]) for o in run.outputs("received")] == pytest.approx(expected, abs=1e-14)
    assert float(run.state.params["scale.weight"]) == 1.0  # the server never saw one


def test_norms_are_found_by_type_in_any_place():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
            self.other = nn.LayerNorm(4)
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.other(self.down(x)))

    federation = points((9, 5))
    model = models.wrap(Net(), "head", 3, shape=(6,))
    statistics = {"down.1.running_mean", "down.1.running_var"}
    names = {"down.1.weight", "down.1.bias", "other.weight", "other.bias"} | statistics
    run = Run(FedBN(TRAINING), federation, model).rounds(2)
    assert set(run.store.rows.norms) == names
    for name in names:
        assert torch.equal(run.state.params[name], run.sim.initial[name])
        assert not torch.equal(run.store.rows.norms[name][0], run.store.rows.norms[name][1])
    for name in set(model.leaves) - names:
        assert not torch.equal(run.state.params[name], run.sim.initial[name])


@each_engine
def test_a_client_resumes_from_its_own_layers(engine):
    """With a shared part that does not move (all leaves in norms), clients train as if alone."""
    net = nn.Sequential(OrderedDict(first=nn.BatchNorm1d(6, eps=1e-2), second=nn.BatchNorm1d(6, eps=1e-2)))
    model = models.wrap(net, "second", 6, shape=(6,))
    federation = points((9, 5, 4), classes=6)
    runs = [Run(m, federation, model, engine).rounds(3) for m in (FedBN(TRAINING), Local(TRAINING))]
    assert worst(runs[0].store.rows.norms, runs[1].store.rows) == 0


def test_an_affine_map_of_the_inputs_is_absorbed():
    """Client 2's inputs are 3x − 5: after training, both say the same about the same sample; FedAvg does not."""
    federation = points((24,), held=6)
    x, y, test = federation.x[:24], federation.y[:24], federation.x[federation.test.rows]
    label = torch.zeros(len(test), dtype=torch.int64)
    both = federate([(x, y), (3 * x - 5, y)], 3, test=[(test, label), (3 * test - 5, label)])
    whole = Training(lr=0.1, batch=24, epochs=10)
    left, right = Run(FedBN(whole), both, normed(1e-12)).rounds(25).outputs("received")
    assert float((left - right).abs().max()) < 1e-8  # 0.9^250 of the first statistics is left
    left, right = Run(FedAvg(whole), both, normed(1e-12)).rounds(25).outputs("received")
    assert float((left - right).abs().max()) > 0.1


@each_engine
def test_a_newcomer_sets_its_statistics_from_its_own_data(engine):
    """`data`: mean and unbiased variance of its training samples; known clients stay as they are."""
    federation = points((9, 5, 12))
    run = Run(FedBN(TRAINING), federation, normed(), engine).rounds(2, cohort=[0, 1])
    state, x = run.state.params, federation.x[federation.train.client(2)]
    test = federation.x[federation.test.client(2)]
    h = (test - x.mean(0)) / torch.sqrt(x.var(0) + 1e-2)
    expected = torch.log_softmax(h @ state["head.weight"].T + state["head.bias"], -1)
    assert worst(run.outputs("received")[2], expected) < 1e-12
    assert worst(run.outputs("received", newcomers=True)[2], expected) < 1e-12
    plain = Run(FedBN(TRAINING, newcomers="initial"), federation, normed(), engine).rounds(2, cohort=[0, 1])
    assert same_bits(plain.outputs("received")[:2], run.outputs("received")[:2])
    h = test / (1 + 1e-2) ** 0.5
    expected = torch.log_softmax(h @ state["head.weight"].T + state["head.bias"], -1)
    assert worst(plain.outputs("received")[2], expected) < 1e-12
    assert same_bits(plain.outputs("trained"), run.outputs("trained"))  # what a round leaves is scored as it is
    tuned, alike = run.outputs("adapted", epochs=1), plain.outputs("adapted", epochs=1)
    assert same_bits(tuned[:2], alike[:2])
    assert worst(tuned[2], alike[2]) > 1e-2  # three steps leave 0.9³ of the first statistics


def test_a_newcomer_without_training_data_keeps_the_first_statistics():
    federation = points((9, 5, 0))
    for engine in ENGINES:
        runs = [Run(FedBN(TRAINING, newcomers=n), federation, normed(), engine).rounds(1, cohort=[0, 1])
                for n in ("data", "initial")]  # fmt: skip
        assert same_bits(*(run.outputs("received") for run in runs))


@each_engine
def test_a_newcomer_may_begin_with_the_mean_of_the_known(engine):
    federation = points((9, 3, 12))
    run = Run(FedBN(TRAINING, newcomers="mean"), federation, normed(), engine).rounds(2, cohort=[0, 1])
    for name, rows in run.store.rows.norms.items():
        expected = (9 * rows[0] + 3 * rows[1]) / 12
        assert worst(run.state.params[name], expected) < 1e-14
    own = Run(FedBN(TRAINING, newcomers="initial"), federation, normed(), engine).rounds(2, cohort=[0, 1])
    assert worst(tree_rows(run.store.rows, slice(2)), tree_rows(own.store.rows, slice(2))) == 0  # the known stay known
    scored = run.outputs("received", newcomers=True)
    for client in range(3):
        x = federation.x[federation.test.client(client)]
        expected = torch.log_softmax(run.sim.model.logits(run.state.params, x), -1)
        assert worst(scored[client], expected) < 1e-12


@pytest.mark.parametrize(("how", "away"), [({}, 32), ({"newcomers": "mean"}, 0)])
def test_bytes_are_the_shared_part_both_ways(how, away):
    federation = points((5, 9, 4))
    log = Run(FedBN(**how), federation, mlp(federation, norm=True), dtype=torch.float32).rounds(1).logs[0]
    d = 6 * 8 + 8 + 32 + 8 * 3 + 3 - away
    assert log.bytes_down == 3 * 4 * d
    assert log.bytes_up == 3 * 4 * (d + 1)


def test_one_client_is_centralised_training():
    federation = points((17,))
    model = mlp(federation, norm=True)
    mine = Run(FedBN(TRAINING), federation, model).rounds(3)
    alone = Run(Local(TRAINING), federation, model).rounds(3)
    whole = {**mine.state.params, **tree_rows(mine.store.rows, 0).norms}
    assert worst(whole, tree_rows(alone.store.rows, 0)) < 1e-13


def test_an_absent_client_keeps_its_layers():
    federation = points((9, 5, 4))
    run = Run(FedBN(TRAINING), federation, mlp(federation, norm=True)).rounds(1)
    before = tree_map(torch.clone, tree_rows(run.store.rows, 1))
    run.rounds(2, cohort=[0, 2])
    assert same_bits(before, tree_rows(run.store.rows, 1))


@pytest.mark.everything
def test_laws():
    broken = [v for v in check(FedBN(Training(lr=0.05, batch=4)), "mlp_bn") if not v.held]
    assert not broken, "\n".join(f"{v.law}: {v.detail}" for v in broken)


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match=r"newcomers = 'zero' is unknown"):
        FedBN(newcomers="zero")
