"""When a process for each core pays: only if it promises a tenth more than what the exchange costs."""

from __future__ import annotations

import pytest

from posterity.core.tree import tree_bytes
from posterity.engine.choose import PAYS, SHARING, EngineChoice, exchange, saving
from posterity.fast.graph import engine as GRAPH
from posterity.laws import make_case
from posterity.methods.fedavg import FedAvg

WORLD = make_case(FedAvg()).sim()


def saved(alone, apart, steps=1000.0):
    """Of a round that takes so many seconds in one process, and so many in several, their exchange included."""
    return saving(EngineChoice(GRAPH, None, step=alone / steps, apart=(apart - exchange(WORLD)) / steps), WORLD, steps)


def test_an_exchange_costs_a_start_and_its_bytes():
    assert exchange(WORLD) == pytest.approx(SHARING[0] + SHARING[1] * tree_bytes(WORLD.initial))


@pytest.mark.parametrize(("alone", "apart", "gain"), [(10, 5, 5), (10, 9, 1), (10, 9.5, 0), (10, 10, 0), (10, 12, 0)])
def test_a_small_gain_is_no_reason(alone, apart, gain):
    assert PAYS == 1.1
    assert saved(alone, apart) == pytest.approx(gain)


def test_what_was_not_measured_saves_nothing():
    assert saving(EngineChoice(GRAPH, None, step=1.0), WORLD, 100.0) == 0
