"""How many clients fit into a block, by hand: copies of the leaves, what the samples of a batch leave
behind, and what a pass declares."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from predicted import score

from posterity.core.passes import Training, gather
from posterity.core.tree import tree_bytes
from posterity.data.federation import Part
from posterity.engine.blocks import ACTIVATIONS, blocks
from posterity.engine.engines import Stacked
from posterity.engine.round import first_state
from posterity.engine.store import Store
from posterity.laws import make_case
from posterity.methods.fedavg import FedAvg

SAMPLE = 10**6  # bytes: so large that leaves hardly count


@pytest.mark.parametrize("batch", [1, 10])
def test_a_sample_is_there_forwards_and_backwards(batch):
    sim = make_case(FedAvg(Training(batch=batch))).sim(sample=SAMPLE)
    one = 8 * tree_bytes(sim.initial) + 2 * SAMPLE * batch
    for fitting in (1, 4, 13):
        roomy = make_case(FedAvg(Training(batch=batch))).sim(sample=SAMPLE, memory=fitting * one)
        assert len(next(blocks(roomy, torch.arange(13), roomy.passes()))) == fitting


def test_an_unmeasured_sample_is_guessed_from_its_inputs():
    sim = make_case(FedAvg(Training(batch=10))).sim()
    one = 8 * tree_bytes(sim.initial) + 10 * ACTIVATIONS * 6 * 8  # six float64 numbers
    tight = make_case(FedAvg(Training(batch=10))).sim(memory=5 * one)
    assert len(next(blocks(tight, torch.arange(13), tight.passes()))) == 5


@pytest.mark.parametrize("fitting", [1, 4, 13])
def test_what_a_pass_declares_is_counted(fitting):
    """Kernels of all rows with all rows: the largest client has 25, the pass no batches; float64."""
    kernels = replace(FedAvg().passes()[0], batch=None, scratch=lambda rows, model: model.classes * rows**2)
    case = make_case(FedAvg())
    one = 8 * tree_bytes(case.sim().initial) + 25 * 2 * SAMPLE + 4 * 25**2 * 8
    for memory, expected in ((fitting * one, fitting), (fitting * one - 1, max(1, fitting - 1))):
        sim = case.sim(sample=SAMPLE, memory=memory)
        assert len(next(blocks(sim, torch.arange(13), [kernels]))) == expected


@pytest.mark.parametrize(("batch", "on", "rows"), [(10, "train", 10), (100, "train", 25), (None, "validation", 4)])
def test_a_pass_declares_for_the_rows_that_it_sees(batch, on, rows):
    asked = []
    each = replace(FedAvg().passes()[0], batch=batch, on=on, scratch=lambda count, model: asked.append(count) or 0)
    next(blocks(make_case(FedAvg()).sim(), torch.arange(13), [each]))
    assert asked == [rows]


def test_what_a_prediction_holds_is_declared_by_its_preparation():
    asked = []

    class Kernels(FedAvg):
        def prepare(self):
            return (gather("all", lambda params, batch, here: batch.mask.sum(), batch=None,
                           scratch=lambda rows, model: asked.append(rows) or 10**12),)  # fmt: skip

    sim, seen = make_case(Kernels()).sim(), []

    class Seen(Stacked):
        def predict(self, sim, passes, adapt, here, parts):
            seen.append(len(here.client))
            return super().predict(sim, passes, adapt, here, parts)

    state, store = first_state(sim), Store(sim.federation.clients)
    score(sim, Seen(), state, store, torch.arange(5), 1, [sim.federation.test], "received")
    assert seen == [1] * 5
    assert asked == [25]


def test_clients_whose_kernels_would_be_mostly_padding_are_not_stacked_with_large_ones():
    """500 rows pad 400 but not 300; below a hundred rows nobody is divided."""
    case = make_case(FedAvg())
    sim = case.sim()
    sizes = [20, 500, 300, 400, 90, 280, 60]
    part = Part.of([torch.zeros(size, dtype=torch.int64) for size in sizes])
    sim = replace(sim, memory=10**12, federation=replace(sim.federation, train=part))
    step = FedAvg().passes()[0]
    kernels = replace(step, batch=None, scratch=lambda rows, model: rows**2)
    linear = replace(step, batch=None, scratch=lambda rows, model: 50 * rows)
    batches = replace(kernels, batch=10)
    found = [block.tolist() for block in blocks(sim, torch.arange(7), [step, kernels])]
    assert found == [[1, 3], [2, 5], [4, 6, 0]]
    for passes in ([step], [linear], [batches]):
        assert [block.tolist() for block in blocks(sim, torch.arange(7), passes)] == [[1, 3, 2, 5, 4, 6, 0]]
