"""How many clients fit into a block, by hand: copies of the leaves, and what the samples of a batch leave behind."""

from __future__ import annotations

import pytest
import torch

from posterity.core.training import Training
from posterity.core.tree import tree_bytes
from posterity.engine.blocks import ACTIVATIONS, blocks
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
