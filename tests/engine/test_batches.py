"""Plans by hand: whose rows, how often, in which order, in how many steps."""

from __future__ import annotations

import pytest
import torch

from posterity.core.protocol import Pass
from posterity.core.random import fold, make_key
from posterity.data.federation import Part
from posterity.engine.batches import bucket, plan_batches, segments
from posterity.engine.cache import TraceCache

SIZES = (9, 4, 1, 0, 8)
PART = Part.of([torch.arange(100 * k, 100 * k + n) for k, n in enumerate(SIZES)])


def keys(clients):
    return torch.stack([fold(make_key(5), k) for k in clients])


def nothing(carry, batch, here):
    return carry


def steps_of(clients, **options):
    """The rows of each client at each of its steps, in lists."""
    work = Pass(step=nothing, **{"batch": 4, **options})
    plan = plan_batches(work, PART, torch.tensor(clients), keys(clients), TraceCache())
    rows, real = plan.rows(0, plan.length(), len(clients))
    taken = plan.steps.tolist()
    return [[rows[s, i][real[s, i]].tolist() for s in range(taken[i])] for i in range(len(clients))]


def flat(steps):
    return [row for step in steps for row in step]


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("batch", [None, 1, 3, 4, 100])
def test_every_epoch_sees_every_row_of_its_client_once(epochs, batch):
    clients = [0, 4, 1, 2, 3]
    for client, steps in zip(clients, steps_of(clients, epochs=epochs, batch=batch), strict=True):
        own, width = PART.client(client).tolist(), batch or 9
        seen = flat(steps)
        for epoch in range(epochs):
            assert sorted(seen[epoch * len(own) : (epoch + 1) * len(own)]) == own
        assert len(seen) == epochs * len(own)
        assert [len(step) for step in steps] == [len(own[i : i + width]) for i in range(0, len(own), width)] * epochs


def test_every_epoch_has_another_order():
    (steps,) = steps_of([0], epochs=3)
    seen = flat(steps)
    orders = {tuple(seen[9 * e : 9 * e + 9]) for e in range(3)}
    assert len(orders) == 3


def test_every_client_has_another_order():
    nine = Part.of([torch.arange(9), torch.arange(9)])
    plan = plan_batches(Pass(step=nothing, batch=9), nine, torch.tensor([0, 1]), keys([0, 1]), TraceCache())
    (rows,), _ = plan.rows(0, 1, 2)
    assert not torch.equal(rows[0], rows[1])


def test_without_shuffling_rows_come_as_they_lie():
    for client, steps in zip([4, 1], steps_of([4, 1], epochs=2, shuffle=False), strict=True):
        own = PART.client(client).tolist()
        assert flat(steps) == own + own


@pytest.mark.parametrize("most", [1, 3, 5])
def test_so_many_steps_and_no_more(most):
    found = steps_of([0, 4, 1, 2, 3], epochs=most, max_steps=most)
    assert [len(steps) for steps in found] == [most, most, most, most, 0]


def test_company_changes_nothing():
    alone = {k: steps_of([k], epochs=2)[0] for k in (0, 1, 4)}
    for clients in ([0, 4], [4, 1], [0, 1], [4, 0, 1]):
        assert steps_of(clients, epochs=2) == [alone[k] for k in clients]


def test_a_layout_that_is_kept_is_that_of_its_clients():
    work, traces = Pass(step=nothing, batch=4), TraceCache()
    for clients in ([0, 1], [4, 1], [4, 2]):
        plan = plan_batches(work, PART, torch.tensor(clients), keys(clients), traces)
        rows, real = plan.rows(0, plan.length(), 2)
        for i, client in enumerate(clients):
            taken = int(plan.steps[i])
            assert sorted(rows[:taken, i][real[:taken, i]].tolist()) == PART.client(client).tolist()


def test_who_is_still_at_work():
    plan = plan_batches(Pass(step=nothing, batch=4), PART, torch.tensor([0, 4, 1, 2, 3]), keys(range(5)), TraceCache())
    assert plan.steps.tolist() == [3, 2, 1, 1, 0]
    assert plan.active() == [5, 2, 1]  # at the first step everybody
    assert plan.idle().tolist() == [False, False, False, False, True]


@pytest.mark.parametrize("part", [1, 5])
@pytest.mark.parametrize("most", [1, 7, 40, 333])
def test_a_recorded_size_carries_all_and_is_no_larger_than_the_block(most, part):
    sizes = [bucket(active, most, part) for active in range(1, most + 1)]
    assert all(active <= size <= most for active, size in enumerate(sizes, start=1))
    assert sizes == sorted(sizes)
    assert len(set(sizes)) <= 8 + 4 * part * most.bit_length()


def test_legs_cover_every_step_once_and_the_first_is_by_itself():
    active = [40, 40, 40, 33, 20, 20, 3, 1]
    found = list(segments(active, 10))
    assert [step for segment in found for step in range(segment.first, segment.last)] == list(range(len(active)))
    assert (found[0].first, found[0].last) == (0, 1)
    assert all(segment.size >= active[step] for segment in found for step in range(segment.first, segment.last))
