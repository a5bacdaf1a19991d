"""Clients of one to thirty-seven samples end a round together as they end it one by one, called or recorded."""

from __future__ import annotations

import functools

import pytest

from posterity import methods
from posterity.core.training import Training
from posterity.engine.record import Recordings
from posterity.laws import subject
from posterity.laws.gaps import worst
from posterity.laws.trace import run
from posterity.methods.fedavg import FedAvg

METHODS = {
    "epochs": lambda: FedAvg(Training(lr=0.1, epochs=3, batch=4, momentum=0.5)),
    "two passes": lambda: methods.build("fedbps", {}),
    "validation": lambda: methods.build("fedavg+calibrated", {}),
}


@functools.cache
def end(name, engine, patience=2**60):
    """Messages, records and states of three rounds."""
    world = subject(METHODS[name]()).world(recordings=Recordings(patience=patience))
    return [(r.sent, r.records, r.state) for r in run(world, engine).rounds]


@pytest.mark.parametrize("engine", ["stacked", "graph"])
@pytest.mark.parametrize("name", METHODS)
def test_together_and_one_by_one(name, engine):
    assert worst(end(name, engine), end(name, "loop"))[0] < 1e-9


def test_recorded_and_one_by_one():
    assert worst(end("epochs", "graph", 0), end("epochs", "loop"))[0] < 1e-9
