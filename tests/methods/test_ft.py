"""Fine-tuning: at scoring only, on the client's training part, and forgotten."""

import pytest
import torch
from oracles.sims import Run, at, each_engine, full_batch, mlp, points, q2, quadratics, same_bits, scalar_model

from posterity.core.passes import Training
from posterity.methods.fedavg import FedAvg
from posterity.methods.reptile import Reptile
from posterity.methods.wrappers.ft import FineTuned

TRAINING = Training(lr=0.1, batch=4)


def predictions(run):
    """θ of every client: the mean predicted at x = 1."""
    return [float(out[0, 0]) for out in run.outputs(run.sim.method.scored)]


@each_engine
def test_q2_five_steps_from_the_fixed_point(engine):
    method = FineTuned(FedAvg(full_batch(1)), epochs=5)
    run = Run(method, q2(), scalar_model(), engine, at(2.0775070396))
    assert predictions(run) == pytest.approx([1.2267471, 2.9282669], abs=1e-7)


@each_engine
def test_two_clients_by_hand(engine):
    """From 1: two steps of 0.1 towards 2 (A = 1) are 1.1, 1.19; towards 5 (A = 2) they are 1.8, 2.44."""
    method = FineTuned(FedAvg(full_batch(7)), epochs=2)
    run = Run(method, quadratics([1.0, 2.0], [2.0, 5.0]), scalar_model(), engine, at(1.0))
    assert predictions(run) == pytest.approx([1.19, 2.44], abs=1e-12)


@each_engine
@pytest.mark.parametrize(("epochs", "adapt_steps", "steps"), [(1, None, 3), (1, 1, 1), (2, 1, 2), (1, 5, 5), (0, 4, 0)])
def test_steps_instead_of_epochs(engine, epochs, adapt_steps, steps):
    """Three equal rows in batches of one: an epoch has three steps. From 1 towards 2, 1 − 0.9^s of the way."""
    training = Training(lr=0.1, batch=1)
    method = FineTuned(FedAvg(training), epochs=epochs, adapt_steps=adapt_steps)
    run = Run(method, quadratics([1.0], [2.0], [3]), scalar_model(), engine, at(1.0))
    assert predictions(run) == pytest.approx([2 - 0.9**steps], abs=1e-12)


def test_steps_of_its_own_come_before_the_methods():
    """Reptile takes one step for an epoch; two of fine-tuning are two."""
    method = FineTuned(Reptile(Training(lr=0.1, batch=1)), adapt_steps=2)
    run = Run(method, quadratics([1.0], [2.0], [3]), scalar_model(), initial=at(1.0))
    assert predictions(run) == pytest.approx([2 - 0.9**2], abs=1e-12)


def test_much_fine_tuning_finds_the_local_optima():
    run = Run(FineTuned(FedAvg(full_batch(1, lr=0.25)), epochs=60), q2(), scalar_model(), initial=at(1.0))
    assert predictions(run) == pytest.approx([0.0, 3.0], abs=1e-7)


@each_engine
def test_no_epochs_are_fedavg(engine):
    federation = points((9, 5, 1))
    plain = Run(FedAvg(TRAINING), federation, mlp(federation), engine).rounds(2)
    tuned = Run(FineTuned(FedAvg(TRAINING), epochs=0), federation, mlp(federation), engine).rounds(2)
    for a, b in zip(plain.outputs("received"), tuned.outputs("adapted"), strict=True):
        assert torch.equal(a, b)


def test_training_is_untouched_by_scoring():
    federation = points((9, 5, 1))
    plain = Run(FedAvg(TRAINING), federation, mlp(federation)).rounds(2)
    tuned = Run(FineTuned(FedAvg(TRAINING), epochs=2), federation, mlp(federation)).rounds(1)
    first = tuned.outputs("adapted")
    again = tuned.outputs("adapted")
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert same_bits(plain.state.params, tuned.rounds(1).state.params)


def test_it_never_reads_held_out_samples():
    federation = points((9, 5, 4))
    run = Run(FineTuned(FedAvg(TRAINING)), federation, mlp(federation)).rounds(1)
    before = run.outputs("adapted", federation.train)
    for part in (federation.test, federation.validation):
        federation.y[part.rows] = (federation.y[part.rows] + 1) % 3
    other = Run(FineTuned(FedAvg(TRAINING)), federation, mlp(federation)).rounds(1)
    assert all(torch.equal(a, b) for a, b in zip(before, other.outputs("adapted", federation.train), strict=True))


def test_bytes_and_label_are_the_inner_methods():
    federation = points((5, 9))
    runs = [Run(m, federation, mlp(federation)).rounds(1) for m in (FineTuned(FedAvg()), FedAvg())]
    assert runs[0].logs[0].bytes_up == runs[1].logs[0].bytes_up
    assert runs[0].logs[0].bytes_down == runs[1].logs[0].bytes_down
    assert runs[0].sim.method.label == "FedAvg-FT"


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match="epochs must be at least 0; -1"):
        FineTuned(FedAvg(), epochs=-1)
    with pytest.raises(ValueError, match="adapt_steps must be at least 1; 0"):
        FineTuned(FedAvg(), adapt_steps=0)
