"""Blocks of clients are bounded by memory, from the largest client to the smallest."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from posterity.core.tree import tree_bytes
from posterity.engine.blocks import blocks, footprint
from posterity.experiment.setup import set_up
from posterity.settings.config import Config

CONFIG = Config(method="fedavg", dataset="digits", clients=12, subset="40%")


@pytest.fixture(scope="module")
def sim():
    return set_up(CONFIG).sim


def test_every_client_once_and_the_largest_first(sim):
    found = list(blocks(replace(sim, memory=10**6), torch.arange(12), sim.method.passes()))
    counts = sim.federation.train.counts[torch.cat(found)]
    assert sorted(torch.cat(found).tolist()) == list(range(12))
    assert bool((counts.diff() <= 0).all())


def test_a_block_fits_into_the_memory_allowed(sim):
    one = 8 * tree_bytes(sim.initial) + 2 * sim.sample * 10  # batch 10
    sizes = [len(b) for b in blocks(replace(sim, memory=5 * one), torch.arange(12), sim.method.passes())]
    assert sizes == [5, 5, 2]
    assert [len(b) for b in blocks(replace(sim, memory=1), torch.arange(12), sim.method.passes())] == [1] * 12


def test_the_footprint_counts_what_the_backward_pass_needs():
    """An MLP 64-16-10 keeps, per sample, its input (for the first weight) and its hidden layer: (64 + 16) numbers."""
    setup = set_up(replace(CONFIG, set={"model.hidden": 16}))
    assert setup.sim.sample == (64 + 16) * 4
    wide = set_up(replace(CONFIG, model="cnn", set={"model.feature_dim": 16}))
    assert wide.sim.sample > 50 * setup.sim.sample
    x = setup.sim.federation.x
    assert footprint(setup.sim.model, x[:7], setup.sim.initial) == setup.sim.sample


def test_a_pass_that_holds_more_copies_gets_smaller_blocks():
    """Eight copies of the leaves while training, 24 for products with the Hessian."""
    config = replace(CONFIG, method="fedbps", set={"curvature": "hutchinson"})
    sim = replace(set_up(config).sim, memory=2**20)
    learn, curvature = (len(next(iter(blocks(sim, torch.arange(12), (each,))))) for each in sim.passes())
    assert (learn, curvature) == (6, 2)
