"""FedProto: prototypes by hand, the pull, what the nearest one predicts, its reductions, records and bytes."""

import pytest
import torch
from oracles.sims import DOUBLE, ENGINES, Run, each_engine, federate, mlp, points, q2, same_bits, scalar_model, worst

from posterity import models
from posterity.core.passes import Training
from posterity.core.tree import tree_map, tree_rows
from posterity.methods.fedproto import FedProto, Shared, closeness
from posterity.methods.local import Local
from posterity.settings.hyperparameters import paper_values

TRAINING = Training(lr=0.1, batch=4, epochs=2)


def rows(*values):
    return torch.tensor(values, dtype=DOUBLE)


def on_a_line(method, engine=ENGINES[1]):
    """Features are the input itself. Client 0 has a sample of class 0 at 0, client 1 three around 2 and one of class 2.

    Nobody has class 1 or class 3.
    """
    data = [(rows([0.0]), torch.tensor([0])), (rows([1.0], [2.0], [3.0], [7.0]), torch.tensor([0, 0, 0, 2]))]
    federation = federate(data, 4, test=[(rows([0.5], [5.0]), torch.tensor([0, 2]))] * 2)
    return Run(method, federation, models.build("linear", (1,), 4), engine)


@each_engine
@pytest.mark.parametrize(("weighting", "expected"), [("uniform", 1.0), ("counts", 1.5)])
def test_two_clients_by_hand(engine, weighting, expected):
    """Class means 0 and 2 with counts 1 and 3: 1.0 if clients count, 1.5 if samples do; one client alone says 7."""
    run = on_a_line(FedProto(TRAINING, weighting=weighting), engine).rounds(1)
    assert run.state.prototypes.flatten().tolist() == pytest.approx([expected, 0, 7, 0], abs=1e-14)
    assert run.state.known.tolist() == [1, 0, 1, 0]
    run.rounds(1, cohort=[0])  # class 2 is absent and keeps its prototype
    assert run.state.prototypes.flatten().tolist() == pytest.approx([0, 0, 7, 0], abs=1e-14)
    assert run.state.known.tolist() == [1, 0, 1, 0]


@each_engine
def test_the_nearest_prototype_predicts(engine):
    """P = (1, –, 7, –): x = 0.5 has −½·(0.25, 42.25), x = 5 has −½·(16, 4); unknown ones hardly less than the far."""
    run = on_a_line(FedProto(TRAINING), engine).rounds(1)
    first, second = run.outputs("received")[0]
    far, near = -21.125 - 22.125e-6, -8 - 9e-6
    low, high = rows(-0.125, far, -21.125, far), rows(-8.0, near, -2.0, near)
    assert worst({"": first}, {"": torch.log_softmax(low, 0)}) < 1e-12
    assert worst({"": second}, {"": torch.log_softmax(high, 0)}) < 1e-12
    assert (int(first.argmax()), int(second.argmax())) == (0, 2)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_the_only_class_that_is_known_is_the_nearest(dtype):
    """At any distance, and on its prototype."""
    shared = Shared(torch.zeros(4, 2, dtype=dtype), torch.tensor([0, 0, 1, 0], dtype=dtype))
    score = closeness(torch.tensor([[0, 0], [1, 2], [300, 1]], dtype=dtype), shared)
    assert score.argmax(-1).tolist() == [2, 2, 2]


def test_without_prototypes_the_head_predicts():
    runs = [on_a_line(FedProto(TRAINING, predicts=p)) for p in ("prototypes", "head")]
    assert all(torch.equal(a, b) for a, b in zip(*(run.outputs("received") for run in runs), strict=True))
    after = [run.rounds(1).outputs("received") for run in runs]
    assert all(not torch.equal(a, b) for a, b in zip(*after, strict=True))
    alone = on_a_line(Local(TRAINING)).rounds(1).outputs("received")
    assert all(torch.equal(a, b) for a, b in zip(after[1], alone, strict=True))
    nobody = Shared(rows([1.0], [2.0]), rows(0.0, 0.0))
    assert not bool(closeness(rows([0.5]), nobody).isnan().any())


def test_the_pull_is_a_mean_over_features_of_known_classes():
    shared = Shared(rows([1.0, 1.0], [0.0, 4.0]), rows(1.0, 0.0))
    found = FedProto().pull(rows([3.0, 2.0], [9.0, 9.0]), torch.tensor([0, 1]), shared)
    assert found.tolist() == [2.5, 0.0]  # (4 + 1) / 2, and nothing for a class that nobody has reported


@each_engine
def test_without_pull_every_client_is_alone(engine):
    """Bit for bit, running statistics included: the pass over the features moves nothing."""
    federation = points((9, 1, 5))
    model = mlp(federation, norm=True, eps=1e-2)
    runs = [Run(m, federation, model, engine).rounds(2) for m in (FedProto(TRAINING, lam=0.0), Local(TRAINING))]
    assert same_bits(runs[0].store.rows, runs[1].store.rows)


def test_the_first_round_is_local_and_the_second_is_not():
    federation = points((9, 5))
    runs = [Run(m, federation, mlp(federation)).rounds(1) for m in (FedProto(TRAINING), Local(TRAINING))]
    assert same_bits(runs[0].store.rows, runs[1].store.rows)
    assert runs[0].logs[0].loss == runs[1].logs[0].loss
    later = [run.rounds(1) for run in runs]
    assert worst(later[0].store.rows, later[1].store.rows) > 1e-3


def test_prototypes_are_of_the_trained_network_in_evaluation_mode():
    federation = points((9, 5))
    model = mlp(federation, norm=True)
    run = Run(FedProto(TRAINING), federation, model).rounds(1)
    means = []
    for k in (0, 1):
        mine = federation.train.client(k)
        z, _ = model.features(tree_rows(run.store.rows, k), federation.x[mine])
        means.append([z[federation.y[mine] == c].mean(0) for c in range(3)])
    for c in range(3):
        known = [m[c] for m in means if not bool(m[c].isnan().any())]
        assert float((run.state.prototypes[c] - sum(known) / len(known)).abs().max()) < 1e-13


def test_an_absent_client_keeps_its_network():
    federation = points((9, 5, 4))
    run = Run(FedProto(TRAINING), federation, mlp(federation)).rounds(1)
    before = tree_map(torch.clone, tree_rows(run.store.rows, 1))
    run.rounds(2, cohort=[0, 2])
    assert same_bits(before, tree_rows(run.store.rows, 1))
    assert same_bits(run.state.params, run.sim.initial)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_are_the_prototypes_both_ways(dtype):
    """C·d numbers and one for each class: whether it is known, and its weight. The network stays at home."""
    federation = points((5, 9, 4))
    log = Run(FedProto(), federation, mlp(federation), dtype=dtype).rounds(1).logs[0]
    assert log.bytes_down == log.bytes_up == 3 * (3 * 8 + 3) * dtype.itemsize


def test_a_newcomer_begins_with_the_first_network():
    federation = points((9, 5))
    run = Run(FedProto(TRAINING, predicts="head"), federation, mlp(federation)).rounds(2)
    found = run.outputs("received", newcomers=True)[0]
    logits = run.sim.model.logits(run.sim.initial, federation.x[federation.test.client(0)])
    assert worst({"": found}, {"": torch.log_softmax(logits, -1)}) < 1e-12


def test_bad_hyper_parameters_and_tasks():
    with pytest.raises(ValueError, match="lam must be at least 0; -1"):
        FedProto(lam=-1.0)
    with pytest.raises(ValueError, match="weighting = 'size' is unknown"):
        FedProto(weighting="size")
    with pytest.raises(ValueError, match="predicts = 'both' is unknown"):
        FedProto(predicts="both")
    with pytest.raises(ValueError, match=r"this task is regression\. Use local or fedper"):
        Run(FedProto(), q2(), scalar_model())


def test_the_values_of_the_paper():
    assert paper_values(FedProto) == {"local": Training(momentum=0.5), "weighting": "counts"}
