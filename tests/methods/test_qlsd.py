"""QLSD: its bytes, its draws, the samples that it keeps. The specification's numbers are in tests/oracles."""

import pytest
import torch
from oracles.sims import DOUBLE, WEIGHT, Run, at, federate, full_batch, mlp, points, q2, same_bits, scalar_model, worst

from posterity import methods
from posterity.core.passes import Training
from posterity.core.random import make_key
from posterity.laws import check
from posterity.methods.qlsd import QLSD, code_bytes, quantised, without_rounding
from posterity.settings.hyperparameters import paper_values

TRAINING = Training(lr=0.1, batch=4)


def gamma_bits(level: int) -> int:
    """Elias' gamma code of level + 1 as a text, and a sign where there is one."""
    number = bin(level + 1)[2:]
    return len("0" * (len(number) - 1) + number) + (level > 0)


def test_the_code_of_levels():
    levels = [0, 1, 2, 3, 6, 7, 8, 126, 127, 255, 256]
    for some in ([0], levels, levels[3:7]):
        expected = -(-sum(map(gamma_bits, some)) // 8)
        assert int(code_bytes(torch.tensor(some, dtype=DOUBLE), 256)) == expected
    assert int(code_bytes(torch.tensor([0.0, 1.0]), 1)) == 1  # 1 + 4 bits


def test_bytes():
    """Down the model; up a norm a tensor, the code of its levels, and a weight: about a byte a number at s = 2⁸."""
    federation = points((5, 9, 4))
    model = mlp(federation, norm=True)
    d, buffers, tensors = 6 * 8 + 8 + 8 * 3 + 3 + 16, 16, 6
    plain = Run(QLSD(TRAINING, levels=0), federation, model, dtype=torch.float32).rounds(1).logs[0]
    assert plain.bytes_down == 3 * 4 * (d + buffers)
    assert plain.bytes_up == 3 * 4 * (d + buffers + 2)
    log = Run(QLSD(TRAINING), federation, model, dtype=torch.float32).rounds(1).logs[0]
    assert log.bytes_down == plain.bytes_down
    code = log.bytes_up - 3 * 4 * (buffers + 2 + tensors)
    assert 0.5 * d < code / 3 < 1.5 * d
    one = Run(QLSD(TRAINING, levels=1), federation, model, dtype=torch.float32).rounds(1).logs[0]
    assert one.bytes_up < log.bytes_up


def test_bytes_of_one_number():
    """s = 1: the only number has level 1, four bits with its sign, so a byte; and the norm and the weight."""
    log = Run(QLSD(full_batch(1), levels=1), q2(), scalar_model(), initial=at(1.0, torch.float32), dtype=torch.float32)
    assert log.rounds(1).logs[0].bytes_up == 2 * (1 + 4 + 4)


def test_buffers_do_not_disturb_the_total():
    """`combine` reads what it is handed, and writes nothing to it."""
    broken = [v for v in check(QLSD(TRAINING), "mlp_bn", ("runs", "purity")) if not v.held]
    assert not broken, broken[0].detail


def test_a_long_vector_costs_less_than_a_byte_a_number():
    """10,000 numbers at s = 2⁸: levels are near 2.6, and the code takes between 2 and 8 bits for each."""
    v = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    assert 2_500 < int(code_bytes(quantised(v, 256, make_key(0))[1], 256)) < 10_000


def test_a_bias_before_batch_norm_is_sent_as_zeros():
    """Its gradient is 0, and what is computed is rounding; a small gradient that is one goes as it is."""
    big, eps = torch.tensor([3.0, 4.0]), torch.finfo(torch.float32).eps
    slope = {"weight": big, "small": torch.tensor([1e-5]), "bias": torch.tensor([5 * eps, -5 * eps])}
    sent = without_rounding(slope)
    assert torch.equal(sent["weight"], big)
    assert torch.equal(sent["small"], slope["small"])
    assert torch.equal(sent["bias"], torch.zeros(2))


def test_roundings_are_drawn_by_key():
    """The same seed rounds alike, another one otherwise; two clients with the same data are rounded each by itself."""
    federation = points((6,))
    method, model = QLSD(full_batch(1), levels=2, temperature=0.0), mlp(federation)
    initial = model.init(0, DOUBLE)
    ends = [Run(method, federation, model, initial=initial, seed=s).rounds(1).state.params for s in (0, 0, 1)]
    assert same_bits(ends[0], ends[1])
    assert worst(ends[0], ends[2]) > 1e-6
    x, y = federation.x[:6], federation.y[:6]
    alone, pair = (Run(method, federate([(x, y)] * k, 3), model, initial=initial).rounds(1) for k in (1, 2))
    assert worst(alone.state.params, pair.state.params) > 1e-6  # the mean of one rounding twice would be that one


def test_noise_is_of_the_server_alone():
    """Where the slopes cancel, θ moves by √(2γT) ξ: T = 4 doubles the way of T = 1."""
    ways = []
    for temperature in (1.0, 4.0):
        method = QLSD(full_batch(1, 0.5), temperature=temperature, prior=0.0)
        ways.append(Run(method, q2(), scalar_model(), initial=at(2.4)).rounds(1).scalar() - 2.4)
    assert ways[1] == pytest.approx(2 * ways[0], abs=1e-12)
    assert abs(ways[0]) > 1e-3


def test_kept_samples_by_hand():
    """burn = 1, thin = 2, M = 2: samples of rounds 3, 5, 7, …; the newest stands in while there are fewer."""
    method = QLSD(average=2, burn=1, thin=2)
    slots, seen = torch.zeros(2, dtype=DOUBLE), []
    for r in range(1, 8):
        slots = method.remembered(slots, torch.tensor(float(r), dtype=DOUBLE), r)
        seen.append(slots.tolist())
    assert seen == [[1, 1], [2, 2], [3, 3], [3, 4], [3, 5], [3, 5], [7, 5]]


def test_predictions_average_kept_samples():
    """Two samples: the mean of their predictions, and their distance in the variance; after training one alone."""
    run = Run(QLSD(full_batch(1), average=2, step=0.05), q2(), scalar_model(), initial=at(0.0)).rounds(2)
    a, b = run.state.past[WEIGHT].flatten().tolist()
    assert a != b
    assert b == run.scalar()
    for newcomers in (False, True):
        mean, variance = run.outputs("received", newcomers=newcomers)[0][0].tolist()
        assert mean == pytest.approx((a + b) / 2, abs=1e-14)
        assert variance == pytest.approx(1 + ((a - b) / 2) ** 2, abs=1e-14)
    assert run.outputs("trained")[0][0].tolist() == [b, 1.0]
    log = run.rounds(1).logs[-1]
    assert log.bytes_down == 2 * 8 * 3  # θ and two samples for two clients


def test_fine_tuning_starts_at_the_last_sample():
    run = Run(QLSD(full_batch(5), step=0.05), q2(), scalar_model(), initial=at(0.0)).rounds(2)
    expected = run.scalar() * 0.9**3
    assert float(run.outputs("adapted", epochs=3)[0][0, 0]) == pytest.approx(expected, abs=1e-13)


def test_buffers_are_averaged_and_have_no_noise():
    federation = points((9, 5))
    model = mlp(federation, norm=True)
    runs = [Run(QLSD(TRAINING, temperature=t), federation, model).rounds(1) for t in (0.0, 1.0)]
    for name in model.buffers:
        assert torch.equal(runs[0].state.params[name], runs[1].state.params[name])
        assert not torch.equal(runs[0].state.params[name], runs[0].sim.initial[name])


def test_the_values_of_the_paper():
    assert paper_values(QLSD) == {"local": Training(batch=64), "step": 1e-5, "prior": 200.0}
    assert methods.build("qlsd@paper").step == 1e-5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"step": -1.0}, "step must be at least 0; -1"),
        ({"levels": -1}, "levels must be at least 0"),
        ({"levels": 0.5}, "levels takes a whole number"),
        ({"prior": float("nan")}, "prior must be a finite number; nan"),
        ({"temperature": -0.1}, "temperature must be at least 0"),
        ({"average": 0}, "average must be at least 1"),
        ({"burn": -1}, "burn must be at least 0"),
        ({"thin": 0}, "thin must be at least 1"),
    ],
)
def test_bad_hyper_parameters(given, message):
    with pytest.raises(ValueError, match=message):
        QLSD(**given)
