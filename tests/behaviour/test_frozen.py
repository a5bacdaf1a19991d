"""A frozen backbone under an adapter: nobody sends, stacks or keeps it, and nothing else changes."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from predicted import score
from torch import nn

from posterity import methods
from posterity.core.network import Bound, bind, held
from posterity.core.random import make_key
from posterity.core.tree import tree_bytes
from posterity.engine.engines import find_engine
from posterity.engine.round import first_state, train_round
from posterity.engine.simulation import Simulation
from posterity.engine.store import Store
from posterity.laws import LAWS, Case
from posterity.laws.case import small_federation
from posterity.models import wrap
from posterity.nn.extra import linear_layer

TRAINED, BACKBONE = 4 * 3 + 3 + 3 * 4 + 4, 6 * 4 + 4  # numbers: adapter and head; backbone
METHODS = ["fedavg", "scaffold", "pfedvmp", "fedbn+calibrated", "reptile+metavd"]
NAMED = {law.name: law.function for law in LAWS}
COHORT = torch.tensor([0, 2, 3, 8])


def net(inputs=6, classes=4, seed=0):
    torch.manual_seed(seed)
    layers = OrderedDict(flat=nn.Flatten(), backbone=nn.Linear(inputs, 4), norm=nn.BatchNorm1d(4), act=nn.Tanh(),
                         adapter=nn.Linear(4, 3), head=nn.Linear(3, classes))  # fmt: skip
    made = nn.Sequential(layers)
    for name, p in made.named_parameters():
        p.requires_grad_(name.startswith(("adapter", "head")))
    return made


def case(spec, fresh=False, dtype=torch.float64):
    federation = small_federation((6,)).to("cpu", dtype)
    return Case(methods.build(spec, {}), wrap(net(), "head", 4, shape=(6,), fresh=fresh), federation, dtype=dtype)


def rounds(sim, engine, count=2):
    state, store, logs = first_state(sim), Store(sim.federation.clients), []
    for number in range(1, count + 1):
        state, log = train_round(sim, find_engine(engine), state, store, COHORT, number, count)
        logs.append(log)
    points = [score(sim, find_engine(engine), state, store, COHORT, count, [sim.federation.test], point)[0]
              for point in ("received", "adapted", "trained")]  # fmt: skip
    return state, logs, points


@pytest.mark.parametrize("spec", METHODS)
def test_it_ends_with_the_bits_that_it_had_when_everything_travelled(spec):
    made = case(spec, dtype=torch.float32)
    full = made.model.init(0, torch.float32)
    whole = Simulation(made.method, made.model, made.federation, full, make_key(0))
    (before, sent, was), (after, log, now) = rounds(whole, "oracle"), rounds(made.sim(), "oracle")
    assert set(before.params) - set(after.params) == {"backbone.weight", "backbone.bias", "norm.weight", "norm.bias"}
    assert all(torch.equal(p, before.params[n]) for n, p in after.params.items())
    assert all(
        torch.equal(a, b) for mine, other in zip(now, was, strict=True) for a, b in zip(mine, other, strict=True)
    )
    assert log[1].bytes_up < sent[1].bytes_up


def test_only_what_is_trained_is_sent_and_counted():
    made = case("fedavg")
    sim = made.sim()
    state, logs, _ = rounds(sim, "stacked")
    statistics = 2 * 4  # of the batch norm, whose weights are frozen: they are computed, so they move
    assert logs[0].bytes_up == len(COHORT) * 8 * (TRAINED + statistics + 1)  # and the weight of the mean
    assert logs[0].bytes_down == len(COHORT) * 8 * (TRAINED + statistics)
    assert tree_bytes(sim.initial) == 8 * (TRAINED + statistics)
    assert set(state.params) == set(sim.model.leaves) == set(sim.initial)
    assert sum(p.numel() for p in held(sim.model).values()) == BACKBONE + 2 * 4


@pytest.mark.parametrize("law", ["engines", "recording", "seeds", "structure"])
def test_laws_hold(law):
    """Each seed has a backbone of its own."""
    NAMED[law](case("fedper", fresh=True))


def test_a_network_without_frozen_leaves_stays_what_it_is_and_so_does_one_that_is_all_frozen():
    plain = wrap(net().requires_grad_(True), "head", 4, shape=(6,))
    assert bind(plain, plain.init(0))[0] is plain
    still = wrap(nn.Sequential(OrderedDict(head=nn.Linear(6, 4))).requires_grad_(False), "head", 4, shape=(6,))
    assert bind(still, still.init(0))[0] is still


def test_it_stays_a_network():
    model = wrap(net(), "head", 4, shape=(6,))
    full, x = model.init(3), torch.randn(5, 6)
    bound, params = bind(model, full)
    assert isinstance(bound, Bound)
    for other in (bound, bound.with_compute_dtype(torch.bfloat16), bound.with_conv_backend("patches")):
        assert set(other.leaves) == set(params)
    assert set(bound.init(4)) == set(params)
    assert torch.equal(bound(params, x)[0], model(full, x)[0])
    z = bound.features(params, x)[0]
    assert torch.equal(z, model.features(full, x)[0])
    assert torch.equal(bound.classify(params, z), model.classify(full, z))
    assert bound.base_names == {"adapter.weight", "adapter.bias", "norm.running_mean", "norm.running_var"}
    assert bound.feature_dim == 3
    assert linear_layer(bound) == "adapter"
    with pytest.raises(ValueError, match=r"'backbone'.*adapter, head"):
        linear_layer(bound, "backbone")
