"""A client without training data: it is scored, and neither weight decay nor an optimiser moves its leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from predicted import score

from posterity.core.passes import Training
from posterity.data.federation import Part
from posterity.engine.cache import TraceCache
from posterity.engine.engines import find_engine
from posterity.engine.round import first_state
from posterity.engine.store import Store
from posterity.laws import make_case
from posterity.methods.fedavg import FedAvg

EMPTY, FULL = 4, 0
TRAININGS = {"decay": {"weight_decay": 0.5}, "momentum": {"momentum": 0.9, "weight_decay": 0.5},
             "adam": {"optimiser": "adam", "weight_decay": 0.5}}  # fmt: skip


CALLED = [(engine, training, 2**60) for engine in ("oracle", "loop", "stacked", "graph") for training in TRAININGS]
RECORDED = [(engine, "decay", 0) for engine in ("loop", "graph")]


@pytest.mark.parametrize(("engine", "training", "patience"), CALLED + RECORDED)
def test_it_stays_where_it_was(engine, training, patience):
    method = FedAvg(Training(lr=0.1, **TRAININGS[training]))
    sim = make_case(method).sim(traces=TraceCache(patience=patience))
    groups = [sim.federation.train.client(k) for k in range(15)]
    groups[EMPTY] = groups[EMPTY][:0]
    sim = replace(sim, federation=replace(sim.federation, train=Part.of(groups)))

    def outputs(point, clients):
        asked = torch.tensor(clients)
        return score(sim, find_engine(engine), first_state(sim), Store(15), asked, 1, [sim.federation.test], point)

    for clients in ([FULL, EMPTY], [EMPTY]):  # in company, and alone
        received, adapted, trained = (outputs(point, clients)[0] for point in ("received", "adapted", "trained"))
        assert torch.equal(received[-1], trained[-1])
        assert torch.equal(received[-1], adapted[-1])
        if len(clients) > 1:
            assert not torch.allclose(received[0], trained[0], atol=1e-3)
