"""Clients of one to thirty-seven samples end a round together as they end it one by one, called or recorded."""

from __future__ import annotations

import functools

import pytest
import torch
from predicted import score

from posterity import methods
from posterity.core.passes import Training
from posterity.engine.cache import TraceCache
from posterity.engine.engines import find_engine
from posterity.engine.round import first_state
from posterity.engine.store import Store
from posterity.laws import make_case
from posterity.laws.case import largest_gap, run
from posterity.methods.fedavg import FedAvg

METHODS = {
    "epochs": lambda: FedAvg(Training(lr=0.1, epochs=3, batch=4, momentum=0.5)),
    "two passes": lambda: methods.build("fedbps", {}),
    "one by one": lambda: FedAvg(Training(lr=0.1, batch=1, momentum=0.5)),  # clients end at thirteen different steps
}
COHORTS = {"one by one": [list(range(13))]}


@functools.cache
def end(name, engine, patience=2**60):
    """Messages, records and states of some rounds."""
    sim = make_case(METHODS[name]()).sim(traces=TraceCache(patience=patience))
    cohorts = {"cohorts": COHORTS[name]} if name in COHORTS else {}
    return [(r.sent, r.records, r.state) for r in run(sim, engine, **cohorts).rounds]


@pytest.mark.parametrize("engine", ["stacked", "graph"])
@pytest.mark.parametrize("name", METHODS)
def test_together_and_one_by_one(name, engine):
    assert largest_gap(end(name, engine), end(name, "loop"))[0] < 1e-9


def test_recorded_and_one_by_one():
    assert largest_gap(end("one by one", "graph", 0), end("one by one", "loop"))[0] < 1e-9


@pytest.mark.parametrize("engine", ["stacked", "graph"])
@pytest.mark.parametrize("point", ["received", "adapted"])
def test_a_pass_over_another_part_of_the_data(point, engine):
    """Who has many training samples may have few for validation: that pass runs in another order."""
    sim = make_case(methods.build("fedavg+calibrated", {})).sim()
    clients, test = torch.arange(13), [sim.federation.test]

    def outputs(name):
        return score(sim, find_engine(name), first_state(sim), Store(15), clients, 1, test, point)[0]

    assert largest_gap(outputs(engine), outputs("loop"))[0] < 1e-9
