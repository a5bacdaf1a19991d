"""A client by itself, and a server without data: visits from offer and record alone end where a simulation ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kinds import of_each_kind
from predicted import score

from posterity import methods
from posterity.core.protocol import Facts, Now
from posterity.core.tree import tree_map, tree_rows
from posterity.engine.client import Site, Visit, predict_client, visit_client
from posterity.engine.engines import ORACLE
from posterity.engine.round import first_state, train_round
from posterity.engine.server import Accumulator, combine
from posterity.engine.store import Store
from posterity.laws import make_case
from posterity.laws.case import PUBLIC, SIZES, largest_gap
from posterity.methods.fedavg import FedAvg

WRAPPED = ["fedavg+ft", "fedavg+calibrated", "reptile+metavd", "fedavg+drop", "fedavg+snip", "pfedvmp@paper"]
COHORTS = ([0, 2, 5], [1, 2, 7, 9])


def site_of(sim, k):
    """The machine of client k: its own samples and no others."""
    federation = sim.federation
    parts = {name: getattr(federation, name).client(k) for name in ("train", "validation")}
    own = torch.cat(list(parts.values()))
    begin = len(parts["train"])
    rows = {"train": torch.arange(begin), "validation": torch.arange(begin, len(own))}
    return Site(
        sim.method, sim.model, sim.initial, sim.visits, torch.tensor(k), federation.x[own], federation.y[own], rows
    )


def apart(sim):
    """Two rounds of a server and of sites that exchange offers and messages only: the state, and records by client."""
    federation, method = sim.federation, sim.method
    counts = [len(site_of(sim, k).rows["train"]) for k in range(federation.members)]  # what sites register
    public = federation.x[federation.public]
    state = method.init(
        sim.model, sim.initial, Facts(len(counts), sum(counts), federation.classes, sim.server, len(public))
    )
    records = {}
    for number, cohort in enumerate(COHORTS, 1):
        accumulator, kept = Accumulator(), {}
        for k in cohort:
            shared, own = method.offer(state, torch.tensor(k))
            done = visit_client(site_of(sim, k), shared, own, records.get(k), number)
            kept[k] = done.record
            stack = Visit(*(tree_map(lambda leaf: leaf[None], tree) for tree in (done.message, done.record)), None)
            accumulator.join(Accumulator.of(torch.tensor([k]), (shared, own), stack))
        now = Now(number, len(COHORTS), sim.fold(sim.server, number), len(cohort), public, sim.model)
        state, _ = combine(method, state, accumulator.total, now)
        records |= kept
    return state, records


def simulated(sim):
    state, store = first_state(sim), Store(sim.federation.clients)
    for number, cohort in enumerate(COHORTS, 1):
        state, log = train_round(sim, ORACLE, state, store, torch.tensor(cohort), number, len(COHORTS))
        assert not log.refused
    return state, store


@pytest.mark.parametrize("spec", of_each_kind([*sorted(methods.available()), *WRAPPED]))
def test_sites_and_a_server_end_where_the_simulation_ends(spec):
    sim = make_case(methods.build(spec, {})).sim()
    (state, records), (expected, store) = apart(sim), simulated(sim)
    assert largest_gap(state, expected)[0] < 1e-9
    for k, record in records.items():
        assert largest_gap(record, tree_rows(store.read(torch.tensor([k])), 0))[0] < 1e-9


@pytest.mark.parametrize("point", ["received", "adapted", "trained"])
@pytest.mark.parametrize("spec", ["fedper", "pfedvmp", "fedavg+metavd"])
def test_a_site_predicts_what_the_simulation_scores(spec, point):
    sim = make_case(methods.build(spec, {})).sim()
    state, store = simulated(sim)
    federation = sim.federation
    for k, late in ((2, False), (federation.members, True)):
        shared, own = sim.method.offer(state, None if late else torch.tensor(k))
        record = None if late else tree_rows(store.read(torch.tensor([k])), 0)
        found = predict_client(site_of(sim, k), shared, own, record, 2, federation.x[federation.test.client(k)], point)
        part = [federation.test]
        expected = score(sim, ORACLE, state, store, torch.tensor([k]), 2, part, point, newcomers=late)[0][0]
        assert torch.equal(found, expected)


def test_a_server_of_sites_knows_what_the_simulations_server_knows():
    told = []

    class Told(FedAvg):
        def init(self, model, params, facts):
            told.append(facts)
            return super().init(model, params, facts)

    sim = make_case(Told()).sim()
    first_state(sim)
    apart(sim)
    for facts in told:
        found = (facts.clients, facts.samples, facts.classes, facts.public, facts.key.tolist())
        assert found == (len(SIZES), sum(SIZES), 4, PUBLIC, sim.server.tolist())
    assert len(told) == 2


def test_the_server_is_told_the_network_and_the_public_rows():
    seen = []

    class Seen(FedAvg):
        def combine(self, state, total, now):
            seen.append(now)
            return super().combine(state, total, now)

    sim = make_case(Seen()).sim()
    simulated(sim)
    assert [now.round for now in seen] == [1, 2]
    for now in seen:
        assert now.model is sim.model
        assert torch.equal(now.public, sim.federation.x[-PUBLIC:])


def test_rounds_count_from_one():
    sim = make_case(methods.build("fedavg", {})).sim()
    shared, own = sim.method.offer(first_state(sim), torch.tensor(0))
    with pytest.raises(ValueError, match="rounds count from 1"):
        visit_client(site_of(sim, 0), shared, own, None, 0)


def test_a_visit_does_not_touch_what_it_was_given():
    sim = make_case(methods.build("fedper", {})).sim()
    shared, own = sim.method.offer(first_state(sim), torch.tensor(3))
    before = tree_map(torch.clone, (shared, own, sim.initial))
    first = visit_client(site_of(sim, 3), shared, own, None, 1)
    assert largest_gap((shared, own, sim.initial), before)[0] == 0
    again = visit_client(replace(site_of(sim, 3)), shared, own, None, 1)
    assert largest_gap(first.message, again.message)[0] == 0


def test_trained_is_the_network_that_the_client_sends():
    sim = make_case(methods.build("fedavg", {})).sim()
    state, store = first_state(sim), Store(sim.federation.clients)
    part, client = sim.federation.test, torch.tensor([2])
    shared, own = sim.method.offer(state, client[0])
    sent = visit_client(site_of(sim, 2), shared, own, None, 1).message["params"].value
    expected = sim.model(sent, sim.federation.x[part.client(2)])[0].log_softmax(-1)
    found = {
        point: score(sim, ORACLE, state, store, client, 1, [part], point)[0][0] for point in ("trained", "received")
    }
    assert torch.equal(found["trained"], expected)
    assert not torch.allclose(found["received"], expected)
