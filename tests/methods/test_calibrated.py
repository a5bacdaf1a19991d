"""Calibration: one inverse temperature per client, from its validation part."""

import numpy as np
import pytest
import torch
from oracles.sims import DOUBLE, ENGINES, Run, at, each_engine, federate, mlp, points, scalar_model
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from posterity.core.passes import Training
from posterity.methods.fedavg import FedAvg
from posterity.methods.wrappers.calibrated import Calibrated, fit_inverse_temperature, fit_precision
from posterity.methods.wrappers.ft import FineTuned

TRAINING = Training(lr=0.3, batch=4, epochs=3)


def pair(engine=ENGINES[1], **how):
    federation = points((12, 8), held=25)
    plain, calibrated = FineTuned(FedAvg(TRAINING), 3), Calibrated(FineTuned(FedAvg(TRAINING), 3), **how)
    return federation, *(Run(m, federation, mlp(federation), engine).rounds(1) for m in (plain, calibrated))


def nll(outputs, federation, part):
    return [float(-o.gather(1, federation.y[part.client(k)][:, None]).mean()) for k, o in enumerate(outputs)]


@pytest.mark.parametrize("width", [0.3, 1.0, 100.0])
@pytest.mark.parametrize("sharpness", [0.2, 1.0, 6.0])
def test_beta_minimises_the_penalised_loss(width, sharpness):
    """Against scipy's minimiser of Σ −log softmax(βl)[y] + (β − 1)²/(2s²), on twelve samples of four classes."""
    generator = torch.Generator().manual_seed(int(10 * sharpness))
    logits = sharpness * torch.randn(12, 4, generator=generator, dtype=DOUBLE)
    y = torch.distributions.Categorical(logits=logits / sharpness).sample()
    beta = float(fit_inverse_temperature(logits.log_softmax(-1), y, torch.ones(12, dtype=DOUBLE), width))

    def objective(b):
        return -log_softmax(b * logits.numpy(), -1)[np.arange(12), y.numpy()].sum() + (b - 1) ** 2 / (2 * width**2)

    found = minimize_scalar(objective, bounds=(0.01, 100), method="bounded", options={"xatol": 1e-10})
    assert beta == pytest.approx(found.x, rel=1e-6, abs=1e-6)


def test_two_classes_by_hand():
    """Two samples with log-odds +a and −a for their class: the slope is a·(σ(βa) − σ(−βa)) + (β − 1)/s².

    One sample is right and one is wrong. With a = 2 and s = 1 the slope is 2σ(2β) − 2σ(−2β) + β − 1, and since
    σ(2β) − σ(−2β) = tanh β, β solves β + 2·tanh β = 1.
    """
    log_prob = torch.tensor([[2.0, 0.0], [2.0, 0.0]], dtype=DOUBLE).log_softmax(-1)
    beta = float(fit_inverse_temperature(log_prob, torch.tensor([0, 1]), torch.ones(2, dtype=DOUBLE), 1.0))
    assert beta + 2 * np.tanh(beta) == pytest.approx(1.0, abs=1e-12)


def test_no_evidence_leaves_one():
    log_prob, y = torch.randn(5, 3, dtype=DOUBLE).log_softmax(-1), torch.zeros(5, dtype=torch.int64)
    assert float(fit_inverse_temperature(log_prob, y, torch.zeros(5, dtype=DOUBLE), 1.0)) == pytest.approx(1, abs=1e-12)


@each_engine
def test_accuracy_stays_and_validation_loss_falls(engine):
    federation, plain, calibrated = pair(engine)
    for part in (federation.test, federation.validation):
        before, after = (r.outputs("adapted", part) for r in (plain, calibrated))
        assert all(torch.equal(a.argmax(-1), b.argmax(-1)) for a, b in zip(before, after, strict=True))
    scored = [nll(out, federation, federation.validation) for out in (before, after)]
    assert all(b <= a for a, b in zip(*scored, strict=True))
    assert min(b - a for a, b in zip(*scored, strict=True)) < -0.01
    assert all(torch.allclose(o.exp().sum(-1), torch.ones(len(o), dtype=DOUBLE), atol=1e-12) for o in after)


def test_the_test_part_is_never_read():
    federation, _, calibrated = pair()
    before = calibrated.outputs("adapted", federation.validation)
    federation.x[federation.test.rows] = 1e6
    federation.y[federation.test.rows] = 0
    after = Run(calibrated.sim.method, federation, calibrated.sim.model).rounds(1)
    assert all(torch.equal(a, b) for a, b in zip(before, after.outputs("adapted", federation.validation), strict=True))


def test_validation_labels_do_change_it():
    """The counterpart of the test above: it does read the validation part."""
    federation, _, calibrated = pair()
    before = calibrated.outputs("adapted")
    federation.y[federation.validation.rows] = 0
    after = Run(calibrated.sim.method, federation, calibrated.sim.model).rounds(1).outputs("adapted")
    assert not torch.equal(before[0], after[0])


def test_a_narrow_prior_leaves_the_inner_prediction():
    _, plain, calibrated = pair(width=1e-7)
    for a, b in zip(plain.outputs("adapted"), calibrated.outputs("adapted"), strict=True):
        assert torch.allclose(a, b, atol=1e-9)


def test_a_client_without_validation_samples_is_left_alone():
    federation = points((9, 5), held=0)
    plain, calibrated = (Run(m, federation, mlp(federation)).rounds(1) for m in (FedAvg(), Calibrated(FedAvg())))
    for a, b in zip(plain.outputs("received", federation.train), calibrated.outputs("received", federation.train),
                    strict=True):  # fmt: skip
        assert torch.allclose(a, b, atol=1e-12)


def test_training_and_bytes_are_the_inner_methods():
    _, plain, calibrated = pair()
    assert calibrated.sim.method.label == "FedAvg-FT (calibrated)"
    assert torch.equal(plain.state.params["head.weight"], calibrated.state.params["head.weight"])
    assert plain.logs[0].bytes_up == calibrated.logs[0].bytes_up


def test_precision_by_hand():
    """Residuals 1, −1, 2 of targets 0, 2, 4, variance 1, ν = 1: β = (3 + 1) / (6 + 8/3); padding counts nothing."""
    y = torch.tensor([0.0, 2.0, 4.0, 99.0], dtype=DOUBLE)
    mean, mask = y - torch.tensor([1.0, -1.0, 2.0, 7.0]), torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=DOUBLE)
    one = torch.ones(4, dtype=DOUBLE)
    assert float(fit_precision(mean, one, y, mask, 1.0)) == pytest.approx(4 / (6 + 8 / 3), rel=1e-14)
    assert float(fit_precision(mean, one, y, mask, 1e6)) == pytest.approx(3 / 6, rel=1e-9)  # the most likely one
    assert float(fit_precision(mean, one, y, mask, 1e-6)) == pytest.approx(3 / 8, rel=1e-9)  # a constant's
    for few in (0, 1):
        assert float(fit_precision(mean, one, y, mask * (torch.arange(4) < few), 1.0)) == 1
    assert float(fit_precision(y, one, 0 * y, 0 * mask, 1.0)) == 1
    assert float(fit_precision(0 * y, one, 0 * y, mask, 1.0)) == 1  # nothing to be off from


def test_precision_knows_no_unit():
    """In thousandths, the standard deviation is a thousand times as large."""
    generator = torch.Generator().manual_seed(0)
    y, mean = torch.randn(2, 9, generator=generator, dtype=DOUBLE)
    one, sds = torch.ones(9, dtype=DOUBLE), []
    for unit in (1.0, 1000.0):
        sds.append(float(fit_precision(unit * mean, one, unit * y, one, 1.0) ** -0.5))
    assert sds[1] == pytest.approx(1000 * sds[0], rel=1e-12)


@each_engine
def test_regression_learns_how_far_off_it_is(engine):
    """Means stay; the negative log-density of test rows falls from that of the variance 1; both by another way."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, 3, 30, 1, generator=generator, dtype=DOUBLE)
    y = 2 * x[..., 0] + 0.1 * torch.randn(2, 3, 30, generator=generator, dtype=DOUBLE)
    parts = [[(x[k, p], y[k, p]) for k in range(2)] for p in range(3)]
    federation = federate(parts[0], 0, parts[1], parts[2])
    methods = FedAvg(TRAINING), Calibrated(FedAvg(TRAINING), width=1e6)
    plain, fitted = (Run(m, federation, scalar_model(), engine, initial=at(0.0)).rounds(4) for m in methods)
    for k, (before, after) in enumerate(zip(plain.outputs("received"), fitted.outputs("received"), strict=True)):
        assert torch.equal(before[:, 0], after[:, 0])
        assert (before[:, 1] == 1).all()
        slope = float(fitted.state.params["head.weight"])
        off = (slope * x[k, 1, :, 0] - y[k, 1]) ** 2
        assert float((after[:, 1] - off.mean()).abs().max()) < 1e-9
        truth = federation.y[federation.test.client(k)]
        losses = [-torch.distributions.Normal(o[:, 0], o[:, 1].sqrt()).log_prob(truth).mean() for o in (before, after)]
        assert losses[1] < losses[0] - 1


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match="width must be above 0; 0"):
        Calibrated(FedAvg(), width=0.0)
