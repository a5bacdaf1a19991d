"""Batches of all of a client's data where steps are bound to shapes: one width for a class of sizes, few numbers of
clients. What a GPU would capture is called here as it is, on the CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from posterity import methods
from posterity.core.passes import gather
from posterity.core.tree import tree_leaves
from posterity.engine import batches, blocks
from posterity.engine.batches import bucket, plan_batches, size_classes, width_for
from posterity.engine.cache import TraceCache
from posterity.engine.engines import STACKED
from posterity.engine.round import first_state, train_round
from posterity.engine.store import Store
from posterity.fast import _cuda_graphs as cuda_graphs
from posterity.fast import graph
from posterity.fast.graph import engine as GRAPH
from posterity.laws import make_case

WHOLE = gather("all", lambda params, batch, here: batch.mask.sum(), batch=None, scratch=lambda rows, model: rows**2)


@pytest.fixture
def bound(monkeypatch):
    """A CPU whose recordings are bound to shapes, and clients of more than five rows that are divided by size."""
    monkeypatch.setattr(batches, "BOUND", {"cpu"})
    for module in (batches, blocks):
        monkeypatch.setattr(module, "SMALL", 5)


def case():
    return make_case(methods.build("pfedgp", {"inference": "vb"}, {"lr": 0.05, "epochs": 2}))


def test_classes_of_sizes():
    assert size_classes([30, 1000, 701, 699, 300, 101, 99, 0, 700]) == [1000, 699, 300, 101, 30]
    assert size_classes([80, 3, 40]) == [80]  # small clients are one class
    assert size_classes([]) == []
    known = [1000, 699, 300]
    assert [width_for(rows, known) for rows in (1000, 700, 699, 301, 300, 0)] == [1000, 1000, 699, 699, 300, 300]
    assert [width_for(rows, None) for rows in (17, 0)] == [17, 1]
    assert width_for(0, [0]) == 1


def test_a_cohort_is_padded_to_the_largest_of_its_class_in_the_federation(bound):
    sim = case().sim()
    part, sizes = sim.federation.train, sim.federation.train.sizes
    known = size_classes(sizes.tolist())
    assert len(known) > 2
    for client in range(sim.federation.members):
        ids = torch.tensor([client])
        plan = plan_batches(WHOLE, part, ids, sim.root[None], TraceCache())
        assert plan.batch == width_for(int(sizes[client]), known)
        assert plan.most == sum(width_for(size, known) == plan.batch for size in sizes.tolist())
        rows, real = plan.rows(0, 1, 1)
        assert rows.shape[-1] == plan.batch
        assert int(real.sum()) == int(sizes[client])
        assert plan_batches(WHOLE, part, ids, sim.root[None]).batch == max(1, int(sizes[client]))  # by itself
        assert plan_batches(replace(WHOLE, batch=4), part, ids, sim.root[None], TraceCache()).batch <= 4


def test_elsewhere_a_cohort_is_padded_to_its_own_largest():
    sim = case().sim()
    ids = torch.tensor([1, 2])
    plan = plan_batches(WHOLE, sim.federation.train, ids, sim.root.expand(2, 2), TraceCache())
    assert plan.batch == int(sim.federation.train.sizes[ids].max())


def test_blocks_are_the_classes(bound):
    sim = case().sim()
    sizes = sim.federation.train.sizes
    known = size_classes(sizes.tolist())
    for some in (torch.arange(len(sizes)), torch.arange(1, len(sizes), 2)):
        found = list(blocks.blocks(sim, some, [WHOLE]))
        assert sorted(torch.cat(found).tolist()) == some.tolist()
        classes = [{width_for(int(size), known) for size in sizes[block]} for block in found]
        assert all(len(each) == 1 for each in classes)
        assert len(set(map(min, classes))) == len(found)


def test_memory_is_counted_for_the_padded_width(bound):
    asked = []
    each = replace(WHOLE, scratch=lambda rows, model: asked.append(rows) or rows)
    sim = case().sim()
    sizes = sim.federation.train.sizes
    client = next(k for k in range(len(sizes)) if width_for(int(sizes[k]), size_classes(sizes.tolist())) > sizes[k] > 0)
    next(blocks.blocks(sim, torch.tensor([client]), [each]))
    assert asked[-1] == width_for(int(sizes[client]), size_classes(sizes.tolist()))


def rounds(engine, cohorts):
    sim = case().sim()
    state, store = first_state(sim), Store(sim.federation.clients)
    for number, cohort in enumerate(cohorts, 1):
        state, log = train_round(sim, engine, state, store, cohort, number, len(cohorts))
        assert not log.refused
    return state


def test_random_cohorts_end_as_stacked_ones_and_share_recordings(bound, monkeypatch):
    made = []
    monkeypatch.setattr(batches, "SIMILAR", 0.3)  # few classes, for there are few clients
    monkeypatch.setattr(cuda_graphs, "capture", lambda traces, body: made.append(1) or body)
    steps = partial(cuda_graphs.take_steps, make=graph.make_step)
    draw, cohorts = torch.Generator().manual_seed(0), []
    able = blocks.able(case().sim())
    for count in 2 * (4, 5, 6, 3, 7, 2):
        cohorts.append(able[torch.randperm(len(able), generator=draw)[:count]].sort().values)
    ends = [rounds(engine, cohorts) for engine in (STACKED, replace(GRAPH, take_steps=steps))]
    for a, b in zip(*map(tree_leaves, ends), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    shapes = len(made)
    monkeypatch.setattr(batches, "BOUND", set())
    rounds(replace(GRAPH, take_steps=steps), cohorts)
    assert shapes < len(made) - shapes  # a block's own largest client is another one in most of them


def test_five_clients_run_with_the_recording_of_six(bound, monkeypatch):
    """Sizes 1, 2, 3, 4, 6, 9, …: who is not there has finished, and changes nothing."""
    made = []
    monkeypatch.setattr(cuda_graphs, "capture", lambda traces, body: made.append(1) or body)
    monkeypatch.setattr(batches, "SIMILAR", 0.01)  # all clients are one class
    able = blocks.able(case().sim())
    cohorts = [able[:6], able[:5], able[1:6], able[:4]]
    steps = partial(cuda_graphs.take_steps, make=graph.make_step)
    ends = [rounds(engine, cohorts) for engine in (STACKED, replace(GRAPH, take_steps=steps))]
    for a, b in zip(*map(tree_leaves, ends), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    assert len(made) == 2  # for six and for four


def test_no_recording_is_for_more_clients_than_a_class_has(bound, monkeypatch):
    """With everybody in the cohort nothing is wasted but on newcomers of the same sizes."""
    monkeypatch.setattr(cuda_graphs, "capture", lambda traces, body: body)
    monkeypatch.setattr(batches, "SIMILAR", 0.01)
    monkeypatch.setattr(cuda_graphs, "COARSE", 1)  # sizes 1, 2, 4, 8, 16
    made, of = [], cuda_graphs.StaticBuffers.of
    monkeypatch.setattr(cuda_graphs.StaticBuffers, "of",
                        staticmethod(lambda *args: made.append(args[2]) or of(*args)))  # fmt: skip
    sim = case().sim()
    able, clients = blocks.able(sim), sim.federation.clients
    assert bucket(len(able), 2**31, cuda_graphs.COARSE) > clients
    rounds(replace(GRAPH, take_steps=partial(cuda_graphs.take_steps, make=graph.make_step)), [able])
    assert made == [clients]
