"""FedLA: its reductions, its bytes, what precisions cover. The specification's numbers are in tests/oracles."""

import pytest
import torch
from oracles.sims import Run, at, full_batch, mlp, points, q2, same_bits, scalar_model, worst

from posterity import methods
from posterity.core.passes import Training
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedla import FedLA
from posterity.settings.hyperparameters import paper_values

TRAINING = Training(lr=0.1, batch=4, epochs=2)


def test_one_client_is_fedavg_without_the_pull():
    """K = 1 and λ = 0: the mean of one, whatever its precision."""
    federation = points((9,))
    runs = [Run(m, federation, mlp(federation, norm=True)).rounds(2)
            for m in (FedLA(TRAINING, importance=0.0), FedAvg(TRAINING))]  # fmt: skip
    assert worst(runs[0].state.params, runs[1].state.params) < 1e-13


def test_clients_of_a_round_without_the_pull_train_as_fedavgs():
    """The first round has no precision yet, so its clients are FedAvg's for any λ, bit for bit."""
    federation = points((9, 5, 4))
    model = mlp(federation, norm=True)
    ends = [Run(m, federation, model).outputs("trained")
            for m in (FedLA(TRAINING, importance=0.0), FedLA(TRAINING, importance=7.0), FedAvg(TRAINING))]  # fmt: skip
    assert same_bits(ends[0], ends[2])
    assert worst(ends[1], ends[2]) < 1e-13


def test_dead_units_are_averaged_and_not_forgotten():
    """A hidden unit that is never active has no curvature: ours keeps its weights, the printed rule makes them 0."""
    federation = points((9, 5))
    model = mlp(federation)
    initial = model.init(0, torch.float64)
    bias = next(n for n in initial if initial[n].shape == (8,))
    initial[bias] = torch.full_like(initial[bias], -100.0)
    ours, printed = (
        Run(FedLA(TRAINING, fallback=f), federation, model, initial=initial).rounds(1) for f in (True, False)
    )
    assert torch.allclose(ours.state.params[bias], initial[bias], rtol=1e-12)
    assert not printed.state.params[bias].any()


def test_precisions_leave_buffers_out():
    federation = points((9, 5))
    model = mlp(federation, norm=True)
    run, plain = (Run(m, federation, model).rounds(1) for m in (FedLA(TRAINING), FedAvg(TRAINING)))
    assert set(run.state.precision) == model.trainable
    for name in model.buffers:  # the first round's clients are FedAvg's, and so are their statistics
        assert torch.allclose(run.state.params[name], plain.state.params[name], atol=1e-14)


def test_bytes_are_twice_the_model_both_ways():
    """w and Ω down; Ω_k, Ω_k ⊙ θ_k and the weight up. Buffers of batch norm travel once."""
    federation = points((5, 9, 4))
    for norm in (False, True):
        log = Run(FedLA(), federation, mlp(federation, norm=norm), dtype=torch.float32).rounds(1).logs[0]
        d, buffers = 6 * 8 + 8 + 8 * 3 + 3 + (16 if norm else 0), 16 if norm else 0
        assert log.bytes_down == 3 * 4 * (2 * d + buffers)
        assert log.bytes_up == 3 * 4 * (2 * d + buffers + 1)


def test_fine_tuning_looks_for_the_clients_own_minimum():
    run = Run(FedLA(full_batch(5), importance=5.0), q2(), scalar_model(), initial=at(0.0)).rounds(3)
    assert [float(o[0, 0]) for o in run.outputs("adapted", epochs=100)] == pytest.approx([0.0, 3.0], abs=1e-4)
    assert [float(o[0, 0]) for o in run.outputs("received", newcomers=True)] == [run.scalar()] * 2


def test_the_values_of_the_paper():
    assert paper_values(FedLA) == {"local": Training(0.01, 40, batch=32, clip=10.0), "fallback": False}
    assert methods.build("fedla@paper").fallback is False


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"importance": -1.0}, "importance must be at least 0; -1"),
        ({"importance": float("nan")}, "importance must be a finite number; nan"),
        ({"eps": 0.0}, r"eps must be above 0; 0\.0 was given"),
        ({"eps": float("nan")}, "eps must be a finite number; nan"),
        ({"fallback": "perhaps"}, "fallback takes true or false"),
    ],
)
def test_bad_hyper_parameters(given, message):
    with pytest.raises(ValueError, match=message):
        FedLA(**given)
