"""FedLA: the specification's numbers (baselines, §4.4 and Q2), and several rounds in plain arithmetic."""

import pytest
import torch

from posterity.core.messages import Mean, fold_stack
from posterity.core.passes import Training
from posterity.core.protocol import Now
from posterity.methods.fedla import FedLA, State

from .sims import DOUBLE, ORACLE, STACKED, WEIGHT, Run, at, full_batch, q2, quadratics, scalar_model

NOW = Now(1, 1, torch.zeros(2, dtype=torch.int64), 2)


def number(value: float):
    return {WEIGHT: torch.full((1, 1), value, dtype=DOUBLE)}


def joined(method, means, precisions, weights):
    """The server's step on clients with these Laplace approximations."""
    least = method.eps if method.fallback else 0.0
    weight, theta, omega = (torch.tensor(v, dtype=DOUBLE) for v in (weights, means, precisions))
    tree = {"precision": {WEIGHT: omega}, "shift": {WEIGHT: (omega + least) * theta}, "rest": {}}
    return method.combine(State(number(0.0), number(0.0)), fold_stack({"laplace": Mean(weight, tree)}), NOW)


@pytest.mark.parametrize(("fallback", "expected"), [(False, 2.3999904), (True, 2.3999964)])
def test_o01_q2_with_the_exact_precisions(fallback, expected):
    """To the printed seven digits: (0·1 + 3·4)/(1 + 4 + 2ε), and with ε for both clients (12 + 3ε)/(5 + 2ε)."""
    after = joined(FedLA(fallback=fallback), [0.0, 3.0], [1.0, 4.0], [1.0, 1.0])
    assert float(after.params[WEIGHT]) == pytest.approx(expected, abs=5e-8)
    assert float(after.precision[WEIGHT]) == pytest.approx(2.5, abs=1e-15)


def test_o02_equal_precisions_are_fedavg():
    """Σ p θ for sizes 3 and 1; the printed rule has it up to ε."""
    assert float(joined(FedLA(), [1.0, 5.0], [7.0, 7.0], [3.0, 1.0]).params[WEIGHT]) == pytest.approx(2.0, abs=1e-15)
    assert float(joined(FedLA(), [1.0, 5.0], [0.0, 0.0], [3.0, 1.0]).params[WEIGHT]) == pytest.approx(2.0, abs=1e-15)
    printed = joined(FedLA(fallback=False), [1.0, 5.0], [7.0, 7.0], [3.0, 1.0])
    assert float(printed.params[WEIGHT]) == pytest.approx(2.0 * 7 / (7 + 1e-5), abs=1e-15)
    nothing = joined(FedLA(fallback=False), [1.0, 5.0], [0.0, 0.0], [3.0, 1.0])
    assert float(nothing.params[WEIGHT]) == 0.0  # no curvature: the printed rule forgets the number


@pytest.mark.parametrize(("importance", "round"), [(1.0, 1), (3.0, 3)])
def test_o03_the_client_solves_the_penalised_problem(importance, round):
    """Ω = 2.5, w = 2.4, λ/r = 1: minima at 6/3.5 and 18/6.5. A step of 0.2 leaves 0.3 of the way, 18 of them 4e-10."""
    run = Run(FedLA(full_batch(18, 0.2), importance=importance), q2(), scalar_model(), initial=at(2.4))
    run.state, run.played = State(number(2.4), number(2.5)), round  # scored clients are told the round that was last
    ends = [float(o[0, 0]) for o in run.outputs("trained")]
    assert ends == pytest.approx([1.7142857, 2.7692308], abs=5e-8)


def reference(rounds, steps, lr, importance, eps=1e-5, weights=(0.5, 0.5), fallback=True):
    """FedLA on Q2 in plain numbers: w and Ω after each round."""
    w, omega, found = 0.0, 0.0, []
    for r in range(1, rounds + 1):
        sums = [0.0, 0.0]
        for a, c, p in ((1.0, 0.0, weights[0]), (4.0, 3.0, weights[1])):
            theta, precision = w, omega
            for _ in range(steps):
                slope = a * (theta - c)
                precision += slope**2
                theta -= lr * (slope + importance / r * omega * (theta - w))
            sums[0] += p * (precision + (eps if fallback else 0.0)) * theta
            sums[1] += p * precision
        w, omega = sums[0] / (sums[1] + eps), sums[1]
        found.append((w, omega))
    return found


@pytest.mark.parametrize(
    ("importance", "fallback", "engine"), [(0.0, True, STACKED), (0.5, True, ORACLE), (0.5, False, STACKED)]
)
def test_o04_three_rounds_of_plain_arithmetic(importance, fallback, engine):
    """Sizes 1 and 3, so p = (¼, ¾); Ω grows by the squares of the data's slopes alone, and λ/r counts rounds from 1."""
    method = FedLA(full_batch(4, 0.02), importance=importance, fallback=fallback)
    run = Run(method, quadratics([1.0, 4.0], [0.0, 3.0], [1, 3]), scalar_model(), engine, at(0.0))
    for w, omega in reference(3, 4, 0.02, importance, weights=(0.25, 0.75), fallback=fallback):
        assert run.rounds(1).scalar() == pytest.approx(w, abs=1e-12)
        assert float(run.state.precision[WEIGHT]) == pytest.approx(omega, rel=1e-12)


def test_o05_batches_count_by_their_share_of_the_samples():
    """Three samples, batches of two: with a step size of 0 both slopes are 2·4·(1 − 3)/2 = −8, Ω = (2 + 1)/3 · 8²."""
    method = FedLA(Training(lr=0.0, batch=2, epochs=2))
    run = Run(method, quadratics([4.0], [3.0], [3]), scalar_model(), initial=at(1.0)).rounds(1)
    assert float(run.state.precision[WEIGHT]) == pytest.approx(2 * 64.0, abs=1e-12)
