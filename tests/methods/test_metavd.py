"""MetaVD through the engines: two clients by hand, what is sent, what is kept, noise at test, newcomers, errors."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from oracles.worlds import DOUBLE, ENGINES, Run, at, full_batch, mlp, points, quadratics, scalar_model, worst

from posterity import models
from posterity.core import dropout
from posterity.core.draw import fold, make_key, normal
from posterity.core.training import Training
from posterity.engine.round import personal_model
from posterity.methods import build
from posterity.methods.fedavg import FedAvg
from posterity.methods.local import Local
from posterity.methods.maml import MAML
from posterity.methods.perfedavg import PerFedAvg
from posterity.methods.reptile import Reptile
from posterity.methods.wrappers.metavd import RHO, MetaVD
from posterity.models.noisy import Noisy, linear_layer

each_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)
TRAINING = Training(lr=0.1, batch=4)
SMALL = {"width": 5, "depth": 2}
TABLE = {"family": "ensemble", "layer": "head", "draws": 0, "hyper_lr": 1.0, "hyper_decay": 0.0}


def with_table(run, variances):
    """The run whose clients have these variances: a table of log v + 8.5."""
    table = torch.tensor(variances, dtype=DOUBLE).log()[:, None] + 8.5
    run.state = replace(run.state, source=replace(run.state.source, embedding=table))
    return run


@each_engine
def test_two_clients_by_hand(engine):
    """Sizes 3 and 1, one step of 0.1 from 1: 1.1 and 1.8. Weights .75/.1 = 7.5 and .25/.4 = .625: 9.375/8.125."""
    federation = quadratics([1.0, 2.0], [2.0, 5.0], [3, 1])
    method = MetaVD(FedAvg(full_batch(1)), beta=0.0, **TABLE)
    run = with_table(Run(method, federation, scalar_model(), engine, at(1.0)), [0.1, 0.4]).rounds(1)
    assert run.scalar() == pytest.approx(9.375 / 8.125, abs=1e-12)


@each_engine
def test_the_divergence_moves_the_noise_and_not_the_weight(engine):
    """K = 1, θ = 1: ρ rises by lr·β·½ θ²/(θ² + v) = .1·2·½/1.1 and /1.4, times g = ¾, ¼ in the server's table."""
    federation = quadratics([1.0, 2.0], [2.0, 5.0], [3, 1])
    method = MetaVD(FedAvg(full_batch(1)), beta=2.0, anneal=0, **TABLE)
    run = with_table(Run(method, federation, scalar_model(), engine, at(1.0)), [0.1, 0.4])
    before = run.state.source.embedding.clone()
    run.rounds(1)
    found = (run.state.source.embedding - before).flatten().tolist()
    assert found == pytest.approx([0.75 * 0.1 / 1.1, 0.25 * 0.1 / 1.4], abs=1e-12)
    weights = [g / (v * torch.tensor(0.1 / (1 + v)).double().exp()) for g, v in ((0.75, 0.1), (0.25, 0.4))]
    assert run.scalar() == pytest.approx(float((1.1 * weights[0] + 1.8 * weights[1]) / sum(weights)), abs=1e-7)


def test_elbo_weighs_the_divergence_by_the_size():
    """kl = elbo: K/n instead of β, so 1/3 and 1 for sizes 3 and 1."""
    federation = quadratics([1.0, 2.0], [2.0, 5.0], [3, 1])
    run = Run(MetaVD(FedAvg(full_batch(1)), kl="elbo", anneal=0, **TABLE), federation, scalar_model(), initial=at(1.0))
    before = with_table(run, [0.1, 0.4]).state.source.embedding.clone()
    found = (run.rounds(1).state.source.embedding - before).flatten().tolist()
    assert found == pytest.approx([0.75 * 0.05 / 1.1 / 3, 0.25 * 0.05 / 1.4], abs=1e-12)


def test_naive_noise_is_averaged():
    """family = naive: one ρ for all moves by Σ g Δρ."""
    federation = quadratics([1.0, 2.0], [2.0, 5.0], [3, 1])
    method = MetaVD(FedAvg(full_batch(1)), beta=2.0, anneal=0, **{**TABLE, "family": "naive"})
    run = Run(method, federation, scalar_model(), initial=at(1.0)).rounds(1)
    assert float(run.state.source.net["rho"]) == pytest.approx(0.1 / (1 + math.exp(-8.5)), abs=1e-12)


def test_report():
    """Nothing moves: ρ is the floor and θ the start."""
    federation = points((5, 3))
    method = MetaVD(FedAvg(Training(lr=0.0)), family="ensemble", draws=0, beta=0.0)
    run = Run(method, federation, mlp(federation)).rounds(1)
    odds = run.world.initial["base.fc1.weight"] ** 2 * torch.tensor(8.5).double().exp()
    assert run.logs[0].report["kl"] == pytest.approx(float(0.5 * torch.log1p(odds).mean()), abs=1e-12)
    assert run.logs[0].report["dropout_rate"] == pytest.approx(float((1 / (1 + odds)).mean()), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes(dtype):
    """d + K numbers down; d + K, two weights and the client's number up. The hyper-network stays at home."""
    federation = points((5, 9, 2))
    model = mlp(federation)
    run = Run(MetaVD(FedAvg(), **SMALL), federation, model, dtype=dtype).rounds(1)
    noise = run.state.params["base.fc1.weight"].numel()
    assert run.logs[0].bytes_down == 3 * (model.size + noise) * dtype.itemsize
    assert run.logs[0].bytes_up == 3 * ((model.size + noise + 2) * dtype.itemsize + 8)


def numbers(*widths):
    """Weights and biases of a fully connected network."""
    return sum((before + 1) * after for before, after in pairwise(widths))


def test_sizes_of_the_paper():
    """372,234 and 383,844 parameters; 6,672,168 of the hyper-network and 2,600 of embeddings; ρ 8.8 % of θ."""
    assert models.build("metavd_cnn", (3, 32, 32), 100).size == 383_844
    model = models.build("metavd_cnn", (3, 32, 32), 10)
    assert model.size == 372_234
    assert linear_layer(model) == "base.fc2"
    weight = model.init(0)["base.fc2.weight"]
    assert numbers(26, 200, 200, 200, weight.numel()) == 6_672_168
    small = MetaVD(FedAvg(), width=7).predictor.first(weight[:2], 100, make_key(0))
    assert small.embedding.shape == (100, 26)
    assert sum(p.numel() for p in small.net.values()) == numbers(26, 7, 7, 7, 512)
    assert weight.numel() / model.size == pytest.approx(0.088, abs=1e-3)
    with pytest.raises(ValueError, match="at least 8×8"):
        models.build("metavd_cnn", (1, 4, 4), 10)


# --- noise -----------------------------------------------------------------------------------------------------------
def test_draws_are_averaged_at_the_logits():
    federation = points((5,))
    model = mlp(federation)
    params, x, key = model.init(0, DOUBLE), federation.x[:4], make_key(3)
    spread = torch.full_like(params["base.fc1.weight"], 0.3)
    one = [Noisy(model, "base.fc1", spread, fold(key, 0), 1)(params, x)[0]]
    noise = [normal(fold(key, i), (4, 8), DOUBLE) * (x**2 @ spread.T).sqrt() for i in range(3)]
    by_hand = [model(params, x, around={"base.fc1": lambda z, out, e=e: out + e})[0] for e in noise]
    torch.testing.assert_close(Noisy(model, "base.fc1", spread, key, 3)(params, x)[0], torch.stack(by_hand).mean(0))
    assert not torch.equal(one[0], by_hand[0])


def test_noise_and_divergence_change_training():
    federation = points((9, 5, 3))
    quiet = Run(MetaVD(FedAvg(TRAINING), draws=0, beta=0.0, **SMALL), federation, mlp(federation)).rounds(1)
    for how in ({"draws": 1, "beta": 0.0}, {"draws": 3, "beta": 0.0}, {"draws": 0, "beta": 10.0, "anneal": 0}):
        other = Run(MetaVD(FedAvg(TRAINING), **how, **SMALL), federation, mlp(federation)).rounds(1)
        assert worst(other.state, quiet.state) > 1e-9


@pytest.mark.parametrize("host", [FedAvg, Reptile, MAML, PerFedAvg])
def test_hosts_keep_their_scoring(host):
    method = MetaVD(host(TRAINING))
    assert method.scored == host.scored
    assert method.label == f"{host.label}+MetaVD"


@pytest.mark.parametrize("noise", ["floor", "personal"])
def test_personal_noise_at_test_is_a_choice(noise):
    """Drawn predictions see ρ of the client or the floor; the mean weights see neither."""
    federation = points((9, 5, 3))
    run = Run(MetaVD(FedAvg(TRAINING), test_noise=noise, test_draws=4, **SMALL), federation, mlp(federation)).rounds(1)
    carry, _ = personal_model(run.world, run.state, run.store, 1, 1, "received")
    assert bool((carry.params[RHO] == dropout.LEAST).all()) == (noise == "floor")
    mean = Run(replace(run.world.method, test_draws=0), federation, mlp(federation)).rounds(1).outputs("received")
    drawn = run.outputs("received")
    assert all(float(o.exp().sum(1).sub(1).abs().max()) < 1e-12 for o in drawn)
    assert float((mean[0] - drawn[0]).abs().max()) > 1e-6


def test_noise_proportional_to_the_weight():
    """noise_param = alpha: a layer of zeros has no noise."""
    federation = points((5,))
    run = Run(MetaVD(FedAvg(TRAINING), noise_param="alpha", **SMALL), federation, mlp(federation))
    carry, here = personal_model(run.world, run.state, run.store, 0, 0, "received")
    zero = {**carry.params, "base.fc1.weight": torch.zeros_like(carry.params["base.fc1.weight"])}
    x = federation.x[:3]
    noisy = run.world.method.noisy(zero, here, 1, 3).model(zero, x)[0]
    torch.testing.assert_close(noisy, here.model(zero, x)[0], rtol=0, atol=1e-15)


def test_regression_predicts_the_mixture():
    federation = quadratics([1.0, 2.0], [2.0, 5.0])
    run = Run(MetaVD(FedAvg(full_batch(1)), test_draws=50, **TABLE), federation, scalar_model(), initial=at(1.0))
    mean, variance = run.outputs("received")[0][0].tolist()
    assert mean == pytest.approx(1.0, abs=0.02)  # √(e^-8.5/50) = 0.002
    assert variance > 1


# --- newcomers -------------------------------------------------------------------------------------------------------
def newcomers(**how):
    """Two members and a newcomer, after one round."""
    federation = points((9, 5, 8))
    federation = type(federation)(**{**federation.__dict__, "members": 2})
    return Run(MetaVD(FedAvg(TRAINING), anneal=0, **how, **SMALL), federation, mlp(federation)).rounds(1, [0, 1])


def noise_of(run, client, point):
    return personal_model(run.world, run.state, run.store, client, 1, point)[0].params[RHO]


def test_newcomers_have_the_floor_or_the_mean_embedding():
    for noise in ("floor", "personal"):
        assert bool((noise_of(newcomers(test_noise=noise), 2, "received") == dropout.LEAST).all())
    run = newcomers(test_noise="mean_embedding")
    source, asked = run.state.source, run.world.method.predictor
    expected = asked.ask(source.net, source.embedding.mean(0), torch.Size((8, 6)))
    assert torch.equal(noise_of(run, 2, "received"), expected)


def test_newcomers_may_fit_their_embedding():
    """With the divergence alone, fitting raises the noise; members keep what they have learned."""
    how = {"test_noise": "fit_embedding", "draws": 0, "beta": 100.0, "fit_steps": 20}
    run = newcomers(**how)
    start = noise_of(run, 2, "received")
    raised = personal_model(run.world, run.state, run.store, 2, 1, "adapted")[0]
    fitted = run.world.method.predictor.ask(run.state.source.net, raised.kept["metavd.embedding"], torch.Size((8, 6)))
    theta = run.state.params["base.fc1.weight"]
    assert float(dropout.divergence(fitted, theta).mean()) < float(dropout.divergence(start, theta).mean()) - 1e-6
    member, _ = personal_model(run.world, run.state, run.store, 0, 1, "adapted")
    assert "metavd.embedding" not in member.kept


# --- errors ----------------------------------------------------------------------------------------------------------
def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match=r"needs a host with loss and support_loss .*Local has not both"):
        MetaVD(Local())
    with pytest.raises(ValueError, match="test_noise = 'mine' is unknown"):
        MetaVD(FedAvg(), test_noise="mine")
    with pytest.raises(ValueError, match="beta must be at least 0"):
        MetaVD(FedAvg(), beta=-1.0)


def test_bad_layers():
    federation = quadratics([1.0], [2.0])
    with pytest.raises(ValueError, match="no linear layer before its head; name one"):
        Run(MetaVD(FedAvg()), federation, scalar_model())
    with pytest.raises(ValueError, match="linear layer"):
        Run(MetaVD(FedAvg(), layer="haed"), federation, scalar_model())


def test_it_is_found_by_its_suffix():
    method = build("maml+metavd", {"beta": "3", "fast": "0.1"}, {"lr": "0.5"})
    assert (method.beta, method.method.fast, method.method.local.lr) == (3.0, 0.1, 0.5)
