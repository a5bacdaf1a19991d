"""What the engine promises to every method: keys, blocks, refused messages, and a way for models that cannot stack."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from posterity.core.messages import Mean, zero_like
from posterity.core.random import make_key
from posterity.core.tree import tree_leaves, tree_named
from posterity.engine.blocks import able, blocks
from posterity.engine.engines import ORACLE, STACKED
from posterity.engine.round import first_state, personal_model, train_round
from posterity.engine.store import Store
from posterity.laws import make_case
from posterity.laws.case import COHORTS, NEWCOMERS, ONE_CLASS, SCORED, SIZES, history, one_round, outputs, run
from posterity.laws.draws import keys_of_run
from posterity.methods.fedper import FedPer

from .roster import LOCAL


@pytest.fixture(scope="module")
def fedper():
    return make_case(FedPer(LOCAL))


def test_the_federation_has_every_awkward_client(fedper):
    federation = fedper.federation
    counts = federation.train.counts.tolist()
    assert counts == [*SIZES, *NEWCOMERS]
    assert len(SIZES) == federation.members == 13
    assert (min(SIZES), max(SIZES)) == (1, 25)
    for batch in (4, 5, 6, 10):
        assert any(n > batch and n % batch == 1 for n in SIZES)
    classes = [len(set(federation.y[federation.train.client(k)].tolist())) for k in range(13)]
    assert classes[ONE_CLASS] == 1
    assert max(classes) == federation.classes
    assert all(6 <= len(c) <= 7 for c in COHORTS)
    assert 0 in federation.test.counts.tolist()


def test_all_keys_of_a_run_are_distinct(fedper):
    log = keys_of_run(fedper, 0)
    assert not log.clash
    assert len(log.given) == 40  # as many as calls that may draw
    assert not log.keys  # FedPer draws nothing
    assert not log.given.keys() & keys_of_run(fedper, 1).given.keys()


def test_keys_of_dropout_are_logged():
    assert keys_of_run(make_case(FedPer(LOCAL), "mlp_dropout"), 0).keys


def test_a_cohort_is_cut_by_memory(fedper):
    sim, cohort = fedper.sim(), torch.tensor(COHORTS[0])
    assert len(list(blocks(sim, cohort))) == 1
    single = list(blocks(replace(sim, memory=1), cohort))
    assert [len(b) for b in single] == [1] * len(cohort)
    sizes = [SIZES[int(b)] for b in single]
    assert sizes == sorted(sizes, reverse=True)


def test_an_empty_cohort_is_an_empty_round(fedper):
    sim, store = fedper.sim(), Store(13)
    state = first_state(sim)
    after, log = train_round(sim, STACKED, state, store, torch.zeros(0, dtype=torch.int64), 1, 1)
    assert log.empty
    assert after is state


def test_newcomers_are_never_able(fedper):
    assert able(fedper.sim()).tolist() == list(range(13))


def test_the_mean_of_nothing_raises():
    total = {"params": Mean(torch.tensor(2.0), {"w": torch.ones(3)})}
    with pytest.raises(ValueError, match="mean of nothing"):
        zero_like(total)["params"].mean()


@pytest.mark.parametrize("engine", [ORACLE, STACKED], ids=["loop", "stacked"])
def test_a_client_with_broken_data_is_refused_and_rolled_back(engine):
    whole = make_case(FedPer(LOCAL))
    x = whole.federation.x.clone()
    x[whole.federation.train.client(8)[0]] = torch.inf
    sim = replace(whole.sim(), federation=replace(whole.federation, x=x))
    store, clean = Store(13), Store(13)
    state, log = train_round(sim, engine, first_state(sim), store, torch.tensor(COHORTS[0]), 1, 1)
    others = [c for c in COHORTS[0] if c != 8]
    plain, _ = train_round(whole.sim(), engine, first_state(sim), clean, torch.tensor(others), 1, 1)
    assert [r.client for r in log.refused] == [8]
    assert log.accepted == len(others)
    assert not store.known[8]
    for (name, a), (_, b) in zip(tree_named(state), tree_named(plain), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-9), name


def test_one_client_by_hand_equals_scoring(fedper):
    end = history(fedper, "stacked")
    for point in ("received", "adapted", "trained"):
        scored = outputs(fedper, "loop", point)
        carry, here = personal_model(fedper.sim(), end.state, end.store(), SCORED[0], len(COHORTS), point)
        x = fedper.federation.x[fedper.federation.test.client(SCORED[0])]
        assert torch.equal(fedper.method.predict(carry, x, here), scored[0][: len(x)])


def test_rounds_of_other_length_agree(fedper):
    sim = replace(fedper.sim(), root=make_key(9))
    cohorts = [[12], list(range(13)), [1], [1, 3]]
    for left, right in zip(run(sim, "loop", cohorts).rounds, run(sim, "stacked", cohorts).rounds, strict=True):
        for a, b in zip(tree_leaves((left.state, left.rows)), tree_leaves((right.state, right.rows)), strict=True):
            assert torch.allclose(a, b, rtol=0, atol=1e-9)


def test_a_round_leaves_the_state_it_began_with_alone(fedper):
    made = history(fedper, "stacked")
    state, store = made.before(2)
    before = [t.clone() for t in tree_leaves(state)]
    one_round(fedper.sim(), "stacked", state, store, COHORTS[1], 2)
    assert all(torch.equal(a, b) for a, b in zip(before, tree_leaves(state), strict=True))
