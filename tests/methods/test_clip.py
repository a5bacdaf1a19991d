"""+clip: nothing shortened is the parent bit for bit; kinds, weights, and that every method says what it sends."""

import math

import pytest
import torch
from oracles.sims import DOUBLE, ENGINES, Run, each_engine, mlp, points, same_bits

from posterity import methods
from posterity.core import LogMean, Mean, Sum, Training
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedmap import FedMAP
from posterity.methods.fedpa import FedPA
from posterity.methods.fedper import FedPer
from posterity.methods.local import Local
from posterity.methods.reptile import Reptile
from posterity.methods.scaffold import SCAFFOLD
from posterity.methods.wrappers.clip import Clip, broadcast, check_kind, length, origin, shortened
from posterity.methods.wrappers.snip import Snip

TRAINING = Training(lr=0.1, batch=4)
HOSTS = [FedAvg(TRAINING), SCAFFOLD(TRAINING), FedPA(TRAINING), FedPer(TRAINING), Reptile(TRAINING), Local(TRAINING),
         Snip(FedAvg(TRAINING))]  # fmt: skip


@each_engine
@pytest.mark.parametrize("host", HOSTS, ids=lambda h: h.label)
def test_an_infinite_bound_is_the_parent(engine, host):
    federation = points((9, 5, 3))
    plain, run = (Run(m, federation, mlp(federation), engine).rounds(2) for m in (host, Clip(host, math.inf)))
    assert same_bits(plain.state, run.state)
    assert same_bits(plain.store.rows, run.store.rows)
    assert all(log.report["shortened"] == 0 for log in run.logs)
    assert set(run.logs[0].report) == {*plain.logs[0].report, "shortened"}


def test_it_costs_one_number():
    federation = points((9, 5, 3))
    plain, run = (Run(m, federation, mlp(federation)).rounds(1).logs[0] for m in (FedAvg(), Clip(FedAvg())))
    assert run.bytes_up - plain.bytes_up == 3 * 8
    assert run.bytes_down == plain.bytes_down


def test_a_bound_of_zero_stands_still():
    federation = points((9, 5, 3))
    run = Run(Clip(FedAvg(TRAINING), 0.0), federation, mlp(federation)).rounds(1)
    assert same_bits(run.state.params, run.sim.initial)
    assert run.logs[0].report["shortened"] == 3


def test_the_length_of_numbers_whose_squares_are_too_large():
    assert float(length({"a": torch.tensor([3e30]), "b": torch.tensor([[4e30, 0.0]])})) == pytest.approx(5e30)
    assert float(length({"a": torch.zeros(3)})) == 0
    assert math.isnan(float(length({"a": torch.tensor([1.0, math.nan])})))


def test_a_vector_by_hand():
    """(3, 4) from (0, 0) is of length 5: at most 1 leaves (0.6, 0.8); from (3, 3) its length is 1."""
    value, over = shortened(torch.tensor([3.0, 4.0], dtype=DOUBLE), torch.zeros(2, dtype=DOUBLE), 1.0)
    assert value.tolist() == pytest.approx([0.6, 0.8])
    assert bool(over)
    value, over = shortened(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 3.0]), 1.0)
    assert value.tolist() == [3.0, 4.0]
    assert not bool(over)
    value, over = shortened(torch.tensor([math.inf, 1.0]), torch.zeros(2), 1.0)
    assert math.isinf(float(value[0]))  # it is refused, as without the wrapper
    value, _ = shortened(torch.tensor([math.nan, 1.0]), torch.zeros(2), 1.0)
    assert math.isnan(float(value[0]))


def test_what_is_measured_from_where():
    known = {"w": torch.ones(2), "v": torch.ones(3)}
    mean = Mean(torch.tensor(1.0), {"w": torch.zeros(2), "v": torch.zeros(2), "own": torch.zeros(1)})
    start = origin(mean, known)
    assert start["w"].tolist() == [1, 1]
    assert start["v"].tolist() == [0, 0]  # another shape: not that leaf
    assert start["own"].tolist() == [0]
    assert origin(Sum({"w": torch.zeros(2)}), known)["w"].tolist() == [0, 0]
    assert broadcast(()) == {}


@pytest.mark.parametrize("name", sorted(methods.available()))
def test_every_method_says_what_is_a_difference(name):
    """Who does not move is where the broadcast is: a mean that is not there then holds no parameters."""
    still = {"alpha": 0.0} if name == "pfedbred" else {}  # a step of its own
    training = {"lr": 0.0 if name not in ("scaffold", "feddc") else 1e-12}
    method = Clip(methods.build(name, still, training))
    seen = {}

    def part(key, given, here):
        named = isinstance(given, Mean) and isinstance(given.value, dict)
        of_leaves = named and all(n in broadcast(here.shared) for n in given.value)
        if of_leaves and key not in method.inner.differences:
            seen[key] = shortened(given.value, origin(given, broadcast(here.shared)), 1e-3)[1]
        return given, torch.zeros((), dtype=torch.bool)

    object.__setattr__(method, "part", part)
    federation = points((9,))
    try:
        Run(method, federation, mlp(federation), ENGINES[0]).rounds(1)
    except ValueError as error:
        pytest.skip(f"{name} refuses these clients: {error}")
    far = [key for key, over in seen.items() if bool(over)]
    assert not far, f"{name} sends {far} as means of how far leaves moved: say so in its `differences`"


def test_kinds_that_have_no_length_are_refused_by_name():
    federation = points((9, 5, 3))
    with pytest.raises(ValueError, match="'params' as a LogMean"):
        Run(Clip(FedMAP(TRAINING, weighting="likelihood")), federation, mlp(federation)).rounds(1)
    with pytest.raises(ValueError, match="'a' as a Mean"):
        check_kind("a", Mean({"w": torch.ones(2)}, {"w": torch.ones(2)}), "+clip")
    with pytest.raises(ValueError, match="'a' as a Sum"):
        check_kind("a", Sum(torch.arange(3)), "+clip")
    with pytest.raises(ValueError, match=r"\+dp bounds .* 'a' as a LogMean"):
        check_kind("a", LogMean(torch.zeros(()), torch.ones(2)), "+dp")


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match="bound must be at least 0"):
        Clip(FedAvg(), -1.0)
    with pytest.raises(ValueError, match="bound must be a finite number; nan was given"):
        Clip(FedAvg(), math.nan)
    with pytest.raises(ValueError, match="sum_bound must be at least 0"):
        Clip(FedAvg(), sum_bound=-1.0)
