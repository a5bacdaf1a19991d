"""Dropping by rate: which weights, what the server does with them, and the bytes that are saved."""

from dataclasses import replace

import pytest
import torch
from oracles.sims import ENGINES, Run, each_engine, mlp, points, same_bits, worst

from posterity import models
from posterity.core.messages import wire_bytes
from posterity.core.passes import Training
from posterity.engine.round import personal_model
from posterity.methods.fedavg import FedAvg
from posterity.methods.maml import MAML
from posterity.methods.wrappers.drop import Drop
from posterity.methods.wrappers.metavd import RHO, MetaVD, dropout

TRAINING = Training(lr=0.1, batch=4)
LEAF = "base.fc1.weight"


def random_numpy(**how):
    return MetaVD(FedAvg(TRAINING), family="ensemble", hyper_decay=0.0, **how)


def start(method, engine=ENGINES[1], sizes=(9, 5, 3)):
    """A run whose noise is e^-2 for the first half of the layer and the floor for the rest."""
    federation = points(sizes)
    run = Run(method, federation, mlp(federation), engine)
    host = run.state.host if isinstance(method, Drop) else run.state
    table = torch.full_like(host.source.embedding, dropout.LEAST)
    table[:, : table.shape[1] // 2] = -2
    host = replace(host, source=replace(host.source, embedding=table))
    run.state = replace(run.state, host=host) if isinstance(method, Drop) else host
    return run


def rates(run):
    """Dropout rates (clients, 8, 6) under the noise that the server predicts."""
    return dropout.rate(run.state.host.source.embedding.reshape(-1, 8, 6), run.state.params[LEAF])


@each_engine
def test_dropped_weights_are_zero_and_stay_unmoved(engine):
    run = start(Drop(random_numpy(), threshold=0.8, after=0), engine)
    theta, before = run.state.params[LEAF], run.state.host.source.embedding
    gone = rates(run)[0] > 0.8
    assert 0 < int(gone.sum()) < gone.numel()
    for point in ("received", "trained"):
        carry, _ = personal_model(run.sim, run.state, run.store, 0, 1, point)
        assert not bool(carry.params[LEAF][gone].any())
        assert bool((carry.params[LEAF][~gone] != 0).all())
        assert bool((carry.params[RHO][gone] == dropout.LEAST).all())
    after = run.rounds(1).state
    torch.testing.assert_close(after.params[LEAF][gone], theta[gone], rtol=1e-14, atol=0)
    assert bool((after.params[LEAF][~gone] != theta[~gone]).all())
    assert torch.equal(after.host.source.embedding[:, gone.flatten()], before[:, gone.flatten()])


@each_engine
def test_what_is_not_sent_is_not_used(engine):
    """Other θ and ρ at places that stay dropped: the client's training and prediction do not change."""
    method = Drop(random_numpy(test_noise="personal", test_draws=3), threshold=0.8, after=0)
    first = start(method, engine)
    gone = rates(first)[0] > 0.8
    second = start(method, engine)
    moved = {**second.state.params, LEAF: torch.where(gone, second.state.params[LEAF] / 3, second.state.params[LEAF])}
    host = second.state.host
    table = torch.where(gone.flatten(), host.source.embedding + 0.5, host.source.embedding)
    host = replace(host, host=replace(host.host, params=moved), source=replace(host.source, embedding=table))
    second.state = replace(second.state, host=host)
    assert torch.equal(rates(second)[0] > 0.8, gone)
    for point in ("received", "trained"):
        for a, b in zip(first.outputs(point), second.outputs(point), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@each_engine
def test_two_clients_by_hand_bytes_saved(engine, dtype):
    """θ and ρ of each dropped weight down and up; a bit per weight of the pattern down, 6 bytes for 48 weights."""
    federation = points((5, 4))
    runs = [Run(m, federation, mlp(federation), engine, dtype=dtype)
            for m in (random_numpy(), Drop(random_numpy(), threshold=0.8, after=0))]  # fmt: skip
    gone = int((rates(runs[1]) > 0.8).sum())
    assert gone > 0
    dense, thin = (run.rounds(1).logs[0] for run in runs)
    size = dtype.itemsize
    assert dense.bytes_up - thin.bytes_up == gone * 2 * size
    assert dense.bytes_down - thin.bytes_down == gone * 2 * size - 2 * 6
    assert thin.report["dropped"] == pytest.approx(gone / 96, abs=1e-12)
    assert thin.report["bytes_saved"] == dense.bytes_up + dense.bytes_down - thin.bytes_up - thin.bytes_down


def test_bytes_of_the_paper():
    """θ and ρ of 80 % of 32,768 weights in float32: 210 kB of 1.62 MB each way, 13 %."""
    federation = type(points())(**{**points((9, 5)).__dict__, "x": torch.randn(38, 3, 32, 32)})
    model = models.build("metavd_cnn", federation.shape, 10)
    method = Drop(MetaVD(FedAvg(Training(batch=64)), family="naive", layer="base.fc2"), threshold=0.8, after=0)
    run = Run(method, federation, model, dtype=torch.float32)
    theta = run.state.params["base.fc2.weight"].flatten()
    order = theta.abs().argsort()  # noise of 10 θ² for the smallest 80 %: a rate of 10/11
    rho = torch.full_like(theta, dropout.LEAST)
    rho[order[: round(0.8 * 32_768)]] = (10 * theta[order[round(0.8 * 32_768)]] ** 2).log()
    source = replace(run.state.host.source, net={"rho": rho})
    run.state = replace(run.state, host=replace(run.state.host, source=source))
    shared, own = run.sim.method.offer(run.state, torch.tensor(0))
    dense = 4 * (372_234 + 32_768 + 1)
    saved = dense - wire_bytes(shared) - wire_bytes(own) + 32_768 // 8
    assert saved == 2 * 4 * int((dropout.rate(rho, theta) > 0.8).sum())
    assert saved == pytest.approx(210_000, rel=0.02)
    assert saved / dense == pytest.approx(0.13, abs=0.005)


def test_nothing_is_dropped_before_its_round_or_at_threshold_one():
    plain = start(random_numpy()).rounds(2)
    for how in ({"after": 2, "threshold": 0.1}, {"after": 0, "threshold": 1.0}):
        run = start(Drop(random_numpy(), **how)).rounds(2)
        assert same_bits(plain.state, run.state.host)
        assert run.logs[1].report["bytes_saved"] == 0
        assert [(log.bytes_up, log.bytes_down) for log in run.logs] == [
            (log.bytes_up, log.bytes_down) for log in plain.logs
        ]
    later = start(Drop(random_numpy(), after=1, threshold=0.5)).rounds(2)
    assert [log.report["dropped"] > 0 for log in later.logs] == [False, True]
    assert worst(plain.state, later.state.host) > 0


ALPHAS = (1.0, 3.9, 4.1, 8.9, 9.1, 4000.0)  # rates ½, 0.796, 0.804, 0.899, 0.901 and 0.99975


@each_engine
@pytest.mark.parametrize(("threshold", "dropped"), [(0.8, 32), (0.9, 16), (0.95, 8), (0.9995, 8)])
def test_a_hyper_network_that_predicts_log_alpha_reaches_the_papers_thresholds(engine, threshold, dropped):
    """48 weights, 8 of each α: above 0.8 are 4.1, 8.9, 9.1 and 4000, above 0.9 the last two, above 0.95 the last."""
    federation = points((5, 4))
    method = MetaVD(FedAvg(TRAINING), noise_param="alpha", draws=1, width=4, depth=1)
    run = Run(Drop(method, threshold=threshold, after=0), federation, mlp(federation), engine)
    net = {n: torch.zeros_like(p) for n, p in run.state.host.source.net.items()}
    net["1.bias"] = torch.tensor(ALPHAS, dtype=torch.float64).repeat(8).log() + 8.5
    source = replace(run.state.host.source, net=net)
    run.state = replace(run.state, host=replace(run.state.host, source=source))
    carry, _ = personal_model(run.sim, run.state, run.store, 0, 1, "received")
    gone = torch.tensor([a / (1 + a) > threshold for a in ALPHAS]).repeat(8).reshape(8, 6)
    assert torch.equal(carry.params[LEAF] == 0, gone)
    assert run.rounds(1).logs[0].report["dropped"] == pytest.approx(dropped / 48, abs=1e-12)


def test_it_brings_metavd_along():
    assert isinstance(Drop(MAML()).method, MetaVD)
    assert Drop(MAML()).label == "MAML+MetaVD+DP"
    assert RHO not in Drop(FedAvg()).method.method.__dict__


def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match="threshold must be at least 0 and at most 1"):
        Drop(random_numpy(), threshold=1.5)
