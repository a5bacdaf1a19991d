"""MetaVD through the engines: two clients by hand, what is sent, what is kept, noise at test, newcomers, errors."""

import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from oracles.sims import DOUBLE, Run, at, each_engine, full_batch, mlp, points, quadratics, scalar_model, worst

from posterity import models
from posterity.core.passes import Training
from posterity.core.protocol import Batch
from posterity.core.random import fold, make_key, normal
from posterity.engine.engines import ORACLE
from posterity.engine.round import personal_model
from posterity.laws import check
from posterity.laws.draws import KeyLog, logging_keys
from posterity.laws.law import Observed
from posterity.methods import build
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedprox import FedProx
from posterity.methods.local import Local
from posterity.methods.maml import MAML
from posterity.methods.perfedavg import PerFedAvg
from posterity.methods.reptile import Reptile
from posterity.methods.wrappers.metavd import RHO, MetaVD, dropout
from posterity.methods.wrappers.metavd.dropout import Noisy
from posterity.methods.wrappers.metavd.hypernet import FAMILIES, FITTED
from posterity.nn.extra import linear_layer

TRAINING = Training(lr=0.1, batch=4)
SMALL = {"width": 5, "depth": 2}
TABLE = {"family": "ensemble", "layer": "head", "draws": 0, "hyper_lr": 1.0, "hyper_decay": 0.0}


def with_table(run, variances):
    """The run whose clients have these variances: a table of log v."""
    table = torch.tensor(variances, dtype=DOUBLE).log()[:, None]
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
    method = MetaVD(FedAvg(full_batch(1)), beta=2.0, anneal=0.0, **TABLE)
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
    run = Run(
        MetaVD(FedAvg(full_batch(1)), kl="elbo", anneal=0.0, **TABLE), federation, scalar_model(), initial=at(1.0)
    )
    before = with_table(run, [0.1, 0.4]).state.source.embedding.clone()
    found = (run.rounds(1).state.source.embedding - before).flatten().tolist()
    assert found == pytest.approx([0.75 * 0.05 / 1.1 / 3, 0.25 * 0.05 / 1.4], abs=1e-12)


def test_elbo_adds_the_divergence_of_all_weights_once():
    """kl = elbo: the mean loss plus Σ_k ½ log(1 + θ_k²/v_k) / n, here for 8·6 weights and 5 samples, half annealed."""
    federation = points((5,))
    model = mlp(federation)
    params = {**model.init(0, DOUBLE), RHO: normal(make_key(1), (8, 6), DOUBLE) - 2}
    method = MetaVD(FedAvg(TRAINING), kl="elbo", draws=0)
    batch = Batch(federation.x[:5], federation.y[:5], torch.ones(5, dtype=DOUBLE))
    own = SimpleNamespace(warmth=torch.tensor(0.5, dtype=DOUBLE))
    here = SimpleNamespace(model=model, key=make_key(0), n=batch.mask.sum(), own=own)
    theta = params[method.leaf(here)]
    expected = 0.5 * (1 + theta**2 / params[RHO].exp()).log().sum() / 5
    added = method.elbo(params, batch, here)[0] - method.method.loss(params, batch, here)[0]
    assert float(added) == pytest.approx(0.5 * float(expected), rel=1e-12)


def test_naive_noise_is_averaged():
    """family = naive: one ρ for all moves by Σ g Δρ."""
    federation = quadratics([1.0, 2.0], [2.0, 5.0], [3, 1])
    method = MetaVD(FedAvg(full_batch(1)), beta=2.0, anneal=0.0, **{**TABLE, "family": "naive"})
    run = Run(method, federation, scalar_model(), initial=at(1.0)).rounds(1)
    assert float(run.state.source.net["rho"]) == pytest.approx(-8.5 + 0.1 / (1 + math.exp(-8.5)), abs=1e-12)


def test_report():
    """Nothing moves: ρ is the floor and θ the start."""
    federation = points((5, 3))
    method = MetaVD(FedAvg(Training(lr=0.0)), family="ensemble", draws=0, beta=0.0)
    run = Run(method, federation, mlp(federation)).rounds(1)
    odds = run.sim.initial["base.fc1.weight"] ** 2 * torch.tensor(8.5).double().exp()
    assert run.logs[0].report["kl"] == pytest.approx(float(0.5 * torch.log1p(odds).mean()), abs=1e-12)
    assert run.logs[0].report["dropout_rate"] == pytest.approx(float((1 / (1 + odds)).mean()), abs=1e-12)


def test_appendix_h_diagnostics_of_every_round():
    """With few participants MetaVD's noise moves and its divergence falls; that of the ablations hardly moves.

    The paper's observation in the small: 2 of 12 clients a round, no noise in training, 25 rounds. Rates rise by 0.70
    (MetaVD), 0.03 (EnsembleVD) and 0.05 (naive VD).
    """
    federation = points((8,) * 12)
    how = {"draws": 0, "beta": 10.0, "anneal": 0.0, "hyper_decay": 0.0}
    moved = {}
    for family in FAMILIES:
        method = MetaVD(FedAvg(Training(lr=0.1, batch=8)), family=family, width=16, **how)
        run = Run(method, federation, mlp(federation))
        for number in range(25):
            run.rounds(1, [number % 12, (5 * number + 1) % 12])
        reports = [log.report for log in run.logs]
        assert all(0 <= r["dropout_rate"] <= 1 and r["kl"] > 0 for r in reports)
        moved[family] = (reports[-1]["kl"] - reports[0]["kl"], reports[-1]["dropout_rate"] - reports[0]["dropout_rate"])
    for family in ("ensemble", "naive"):
        assert moved["hyper"][0] < 5 * moved[family][0] < 0
        assert moved["hyper"][1] > 5 * moved[family][1] > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes(dtype):
    """d + K numbers and the share of β down; d + K, two weights and the client's number up. ψ and e stay at home."""
    federation = points((5, 9, 2))
    model = mlp(federation)
    run = Run(MetaVD(FedAvg(), **SMALL), federation, model, dtype=dtype).rounds(1)
    noise = run.state.params["base.fc1.weight"].numel()
    assert run.logs[0].bytes_down == 3 * (model.size + noise + 1) * dtype.itemsize
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


HOSTS = {
    "fedavg": FedAvg(TRAINING),
    "reptile": Reptile(TRAINING),
    "maml": MAML(TRAINING, inner=2),
    "perfedavg": PerFedAvg(TRAINING),
}
ALIKE = ("reptile", "perfedavg")  # their clients take the steps of FedAvg's and of MAML's
each_host = pytest.mark.parametrize("host", [
    pytest.param(host, id=name, marks=[pytest.mark.everything] if name in ALIKE else []) for name, host in HOSTS.items()
])  # fmt: skip


def keys_of(host, cohorts, seed=0, client=1):
    """The keys that a client draws its noise with in every call of two rounds and a scoring, by what calls."""
    federation, log = points((9, 5, 12, 1)), KeyLog()
    method = Observed(MetaVD(host, test_draws=2, test_noise="personal", **SMALL), log.call)
    with logging_keys(log):
        run = Run(method, federation, mlp(federation), ORACLE, seed=seed)
        for cohort in cohorts:
            run.rounds(1, cohort)
        run.outputs("adapted")
    assert not log.clash  # no two calls share a key
    found: dict[str, set] = {}
    for words, place in log.keys.items():
        if f"client {client} " in place:
            found.setdefault(place, set()).add(words)
    return found


@each_host
def test_draws_depend_on_seed_client_round_and_step_alone(host):
    """Alone, in company, in another order, after other rounds: the same keys in the same calls; another seed: none."""
    alone = keys_of(host, ([1], [1]))
    steps = [place for place in alone if place.startswith("pass 0 of passes of client 1 in round 2")]
    assert len(steps) == (2 if host.label in ("FedAvg", "Reptile") else 1)  # 5 samples in batches of 4, or of 12
    assert any(place.startswith("predict") for place in alone)
    assert alone == keys_of(host, ([0, 1, 2, 3], [3, 1, 2])) == keys_of(host, ([1, 0], [2, 1, 0, 3]))
    other = keys_of(host, ([1], [1]), seed=1)
    assert alone.keys() == other.keys()
    assert not set.union(*alone.values()) & set.union(*other.values())
    neighbour = keys_of(host, ([0, 1], [0, 1]), client=0)
    assert not set.union(*alone.values()) & set.union(*neighbour.values())


@each_host
@pytest.mark.parametrize("law", ["draws", "company"])
def test_the_laws_about_noise_hold_around_every_host(host, law):
    (verdict,) = check(MetaVD(host, test_draws=1, **SMALL), only=[law])
    assert verdict.held, verdict.detail


def test_every_inner_step_has_draws_of_its_own():
    """Three draws of each inner step and of the query, none twice."""
    counts = []
    for inner in (1, 3):
        keys = keys_of(MAML(TRAINING, inner=inner), ([1],))
        counts.append(len(keys["pass 0 of passes of client 1 in round 1, step 0"]))
    assert counts == [6, 12]


def test_noise_and_divergence_change_training():
    federation = points((9, 5, 3))
    quiet = Run(MetaVD(FedAvg(TRAINING), draws=0, beta=0.0, **SMALL), federation, mlp(federation)).rounds(1)
    for how in ({"draws": 1, "beta": 0.0}, {"draws": 3, "beta": 0.0}, {"draws": 0, "beta": 10.0, "anneal": 0.0}):
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
    carry, _ = personal_model(run.sim, run.state, run.store, 1, 1, "received")
    assert bool((carry.params[RHO] == dropout.LEAST).all()) == (noise == "floor")
    mean = Run(replace(run.sim.method, test_draws=0), federation, mlp(federation)).rounds(1).outputs("received")
    drawn = run.outputs("received")
    assert all(float(o.exp().sum(1).sub(1).abs().max()) < 1e-12 for o in drawn)
    assert float((mean[0] - drawn[0]).abs().max()) > 1e-6


def test_noise_proportional_to_the_weight():
    """noise_param = alpha: a layer of zeros has no noise."""
    federation = points((5,))
    run = Run(MetaVD(FedAvg(TRAINING), noise_param="alpha", **SMALL), federation, mlp(federation))
    carry, here = personal_model(run.sim, run.state, run.store, 0, 1, "received")
    zero = {**carry.params, "base.fc1.weight": torch.zeros_like(carry.params["base.fc1.weight"])}
    x = federation.x[:3]
    noisy = run.sim.method.noisy(zero, here, 1, 3).model(zero, x)[0]
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
    return Run(MetaVD(FedAvg(TRAINING), anneal=0.0, **how, **SMALL), federation, mlp(federation)).rounds(1, [0, 1])


def noise_of(run, client, point):
    return personal_model(run.sim, run.state, run.store, client, 1, point)[0].params[RHO]


def test_newcomers_have_the_floor_or_the_mean_embedding():
    for noise in ("floor", "personal"):
        assert bool((noise_of(newcomers(test_noise=noise), 2, "received") == dropout.LEAST).all())
    run = newcomers(test_noise="mean_embedding")
    source, asked = run.state.source, run.sim.method.predictor
    expected = asked.ask(source.net, source.embedding.mean(0), torch.Size((8, 6)))
    assert torch.equal(noise_of(run, 2, "received"), expected)


def test_newcomers_without_a_hyper_network():
    """EnsembleVD knows nothing about them: the floor. Naive VD has one ρ for all."""
    for family in ("ensemble", "naive"):
        run = newcomers(test_noise="personal", family=family)
        least = noise_of(run, 2, "received") == dropout.LEAST
        assert bool(least.all()) == (family == "ensemble")
        if family == "naive":
            assert torch.equal(noise_of(run, 2, "received"), noise_of(run, 0, "received"))


def test_newcomers_may_fit_their_embedding():
    """With the divergence alone, fitting raises the noise; members keep what they have learned."""
    how = {"test_noise": "fit_embedding", "draws": 0, "beta": 100.0, "fit_steps": 20}
    run = newcomers(**how)
    start = noise_of(run, 2, "received")
    raised = personal_model(run.sim, run.state, run.store, 2, 1, "adapted")[0]
    fitted = run.sim.method.predictor.ask(run.state.source.net, raised.kept[FITTED], torch.Size((8, 6)))
    theta = run.state.params["base.fc1.weight"]
    assert float(dropout.divergence(fitted, theta).mean()) < float(dropout.divergence(start, theta).mean()) - 1e-6
    member, _ = personal_model(run.sim, run.state, run.store, 0, 1, "adapted")
    assert FITTED not in member.kept


# --- errors ----------------------------------------------------------------------------------------------------------
def test_bad_hyper_parameters():
    with pytest.raises(ValueError, match=r"needs a host with loss and support_loss: fedavg, reptile, .*; not Local"):
        MetaVD(Local())
    with pytest.raises(ValueError, match="test_noise = 'mine' is unknown"):
        MetaVD(FedAvg(), test_noise="mine")
    with pytest.raises(ValueError, match="beta must be at least 0"):
        MetaVD(FedAvg(), beta=-1.0)


@pytest.mark.parametrize(
    ("host", "replaced"),
    [(FedAvg(), {"loss"}), (Reptile(), {"loss"}), (MAML(), {"loss", "support_loss"}),
     (PerFedAvg(), {"loss", "support_loss"})],
)  # fmt: skip
def test_only_losses_that_a_host_declares_are_replaced(host, replaced):
    """A host without a simulated adaptation has one loss; FedProx has one too, but is not a host of the paper."""
    wrapped = MetaVD(host)
    assert wrapped.declared == replaced
    assert {n for n in replaced if getattr(wrapped.inner, n) != getattr(host, n)} == replaced
    with pytest.raises(ValueError, match="not FedProx"):
        MetaVD(FedProx())


def test_bad_layers():
    federation = quadratics([1.0], [2.0])
    with pytest.raises(ValueError, match="no linear layer before its head; name one"):
        Run(MetaVD(FedAvg()), federation, scalar_model())
    with pytest.raises(ValueError, match="linear layer"):
        Run(MetaVD(FedAvg(), layer="haed"), federation, scalar_model())


def test_it_is_found_by_its_suffix():
    method = build("maml+metavd", {"beta": "3", "fast": "0.1"}, {"lr": "0.5"})
    assert (method.beta, method.method.fast, method.method.local.lr) == (3.0, 0.1, 0.5)
