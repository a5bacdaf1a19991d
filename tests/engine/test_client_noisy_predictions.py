"""A method that predicts with noise: every chunk of a client's rows has draws of its own, the same in every engine."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from predicted import score

from posterity.core.passes import Training
from posterity.core.random import normal
from posterity.data.federation import Part
from posterity.engine.client import PREDICT_ROWS
from posterity.engine.engines import find_engine
from posterity.engine.round import first_state
from posterity.engine.store import Store
from posterity.laws import make_case
from posterity.methods.fedavg import FedAvg

SIZES = (5, 2 * PREDICT_ROWS + 44, 0, PREDICT_ROWS)


@dataclass(frozen=True)
class Noisy(FedAvg):
    """Predicts noise and nothing else."""

    def predict(self, carry, x, here):
        return normal(here.key, (PREDICT_ROWS, 4), x.dtype)[: len(x)]


def outputs(engine):
    sim = make_case(Noisy(Training(lr=0.1))).sim()
    rows = [torch.zeros(n, dtype=torch.int64) for n in SIZES] + [torch.zeros(0, dtype=torch.int64)] * 11
    clients = torch.arange(len(SIZES))
    return score(sim, find_engine(engine), first_state(sim), Store(15), clients, 1, [Part.of(rows)], "received")[0]


@pytest.mark.parametrize("engine", ["loop", "stacked", "graph"])
def test_chunks_have_draws_of_their_own(engine):
    found = outputs(engine)
    assert [len(each) for each in found] == list(SIZES)
    first, second = found[1][:PREDICT_ROWS], found[1][PREDICT_ROWS : 2 * PREDICT_ROWS]
    assert float((first == second).double().mean()) < 0.01
    assert float((first == found[3]).double().mean()) < 0.01  # nor do clients share them


@pytest.mark.parametrize("engine", ["stacked", "graph"])
def test_engines_draw_the_same(engine):
    for mine, theirs in zip(outputs(engine), outputs("loop"), strict=True):
        assert torch.allclose(mine, theirs, rtol=0, atol=1e-12)
