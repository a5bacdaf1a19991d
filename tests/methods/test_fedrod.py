"""FedROD: the balanced softmax in numbers, what each loss may move, its reductions, records and bytes."""

import math

import pytest
import torch
from oracles.sims import (
    DOUBLE,
    Run,
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

from posterity.core.passes import Training
from posterity.core.tree import tree_map, tree_rows
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedrod import BIAS, HEAD, WEIGHT, FedROD, balanced
from posterity.settings.hyperparameters import paper_values

TRAINING = Training(lr=0.1, batch=4, epochs=2)


def test_the_worked_example():
    """Logits (1, 2, 0), counts (10, 1, 5), y = 0: 1.4076060 without, 0.3755335 with the counts."""
    logits, counts, y = torch.tensor([[1.0, 2.0, 0.0]], dtype=DOUBLE), torch.tensor([10.0, 1.0, 5.0]), torch.tensor([0])
    entropy = torch.nn.functional.cross_entropy
    assert float(entropy(balanced(logits, counts, 0.0), y)) == pytest.approx(1.4076060, abs=1e-7)
    assert float(entropy(balanced(logits, counts.double(), 1.0), y)) == pytest.approx(0.3755335, abs=1e-7)
    direct = math.log(10 * math.e + math.e**2 + 5) - math.log(10 * math.e)
    assert float(entropy(balanced(logits, counts.double(), 1.0), y)) == pytest.approx(direct, abs=1e-14)


def test_a_class_that_the_client_lacks_counts_as_one():
    """log 0 would forbid it: nothing is infinite, and a count of 0 is a count of 1."""
    logits = torch.tensor([[1.0, 2.0, 0.0]], dtype=DOUBLE)
    left, right = (balanced(logits, torch.tensor([3.0, n, 2.0], dtype=DOUBLE), 1.0) for n in (0.0, 1.0))
    assert torch.equal(left, right)
    assert bool(left.isfinite().all())
    halves = balanced(logits, torch.tensor([4.0, 1.0, 9.0], dtype=DOUBLE), 0.5) - logits
    assert halves[0].tolist() == pytest.approx([math.log(2), 0, math.log(3)], abs=1e-15)  # γ is a power


def twins(counts=(2, 2, 2)):
    """Two clients with the same class counts, other inputs."""
    y = torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])
    draw = torch.Generator().manual_seed(1)
    data = [(torch.randn(len(y), 6, generator=draw, dtype=DOUBLE), y) for _ in range(2)]
    return federate(data, len(counts), test=data)


@each_engine
def test_without_gamma_the_generic_model_is_fedavgs(engine):
    """Bit for bit, in the same order of samples, running statistics included."""
    federation = points((9, 1, 5))
    model = mlp(federation, norm=True, eps=1e-2)
    runs = [Run(m, federation, model, engine).rounds(2) for m in (FedROD(TRAINING, 0.0), FedAvg(TRAINING))]
    assert same_bits(runs[0].state.params, runs[1].state.params)
    assert float(runs[0].store.rows[WEIGHT].abs().max()) > 1e-3


@each_engine
def test_equal_counts_are_no_counts(engine):
    """Balanced softmax of a balanced client is cross-entropy, to rounding; of an unbalanced one it is not."""
    for counts, equal in (((2, 2, 2), True), ((4, 1, 1), False)):
        federation = twins(counts)
        runs = [Run(m, federation, mlp(federation), engine).rounds(2)
                for m in (FedROD(full_batch(2)), FedAvg(full_batch(2)))]  # fmt: skip
        gap = worst(runs[0].state.params, runs[1].state.params)
        assert gap < 1e-13 if equal else gap > 1e-3


def test_the_head_at_zero_predicts_as_the_generic_model():
    federation = points((9, 5))
    federation_model = mlp(federation)
    fresh = [Run(FedROD(TRAINING, predicts=p), federation, federation_model) for p in ("personal", "generic")]
    for left, right in zip(*(run.outputs("received") for run in fresh), strict=True):
        assert torch.equal(left, right)
    trained = [run.rounds(1) for run in fresh]
    assert same_bits(trained[0].state, trained[1].state)
    gaps = [float((a - b).abs().max()) for a, b in zip(*(run.outputs("received") for run in trained), strict=True)]
    assert min(gaps) > 1e-3
    late = [run.outputs("received", newcomers=True) for run in trained]  # a newcomer has no head yet
    assert all(torch.equal(a, b) for a, b in zip(*late, strict=True))


def test_the_personal_loss_does_not_move_the_generic_model():
    """Another personal head, the same (b, h): the head's own loss is another one, and no gradient leaves it."""
    federation = points((9, 5))
    runs = [Run(FedROD(TRAINING), federation, mlp(federation)).rounds(1) for _ in range(2)]
    runs[1].store.rows = {n: 3.0 * v for n, v in runs[1].store.rows.items()}  # a sum would move all logits alike
    for run in runs:
        run.rounds(1)
    assert worst(runs[0].state.params, runs[1].state.params) < 1e-12
    assert abs(runs[0].logs[1].loss - runs[1].logs[1].loss) > 1e-3


def test_an_absent_client_keeps_its_head():
    federation = points((9, 5, 4))
    run = Run(FedROD(TRAINING), federation, mlp(federation)).rounds(1)
    before = tree_map(torch.clone, tree_rows(run.store.rows, 1))
    run.rounds(2, cohort=[0, 2])
    assert same_bits(before, tree_rows(run.store.rows, 1))
    assert list(before) == list(HEAD)


@pytest.mark.parametrize("norm", [False, True])
def test_bytes_are_those_of_fedavg(norm):
    """The model down, the model and a weight up; the head never."""
    federation = points((5, 9, 4))
    logs = [Run(m, federation, mlp(federation, norm=norm), dtype=torch.float32).rounds(1).logs[0]
            for m in (FedROD(), FedAvg())]  # fmt: skip
    d = 6 * 8 + 8 + 8 * 3 + 3 + (32 if norm else 0)
    assert (logs[0].bytes_down, logs[0].bytes_up) == (logs[1].bytes_down, logs[1].bytes_up) == (12 * d, 12 * (d + 1))


def test_fine_tuning_moves_both_parts():
    federation = points((9, 5))
    run = Run(FedROD(TRAINING), federation, mlp(federation)).rounds(1)
    received, adapted = run.outputs("received"), run.outputs("adapted", epochs=3)
    assert min(float((a - b).abs().max()) for a, b in zip(received, adapted, strict=True)) > 1e-3


def test_bad_hyper_parameters_and_tasks():
    with pytest.raises(ValueError, match="gamma must be at least 0; -1"):
        FedROD(gamma=-1.0)
    with pytest.raises(ValueError, match="predicts = 'both' is unknown"):
        FedROD(predicts="both")
    with pytest.raises(ValueError, match=r"this task is regression\. Use fedper"):
        Run(FedROD(), q2(), scalar_model())
    assert BIAS in HEAD


def test_the_values_of_the_paper():
    assert paper_values(FedROD) == {"local": Training(epochs=5, momentum=0.9)}
