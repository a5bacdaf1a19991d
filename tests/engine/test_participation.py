"""Who takes part: exact sampling without replacement, at the cost of the cohort and not of the registered clients."""

from __future__ import annotations

import itertools
import time

import pytest
import torch
from kinds import everything
from scipy.stats import chi2, chisquare

from posterity.core.random import fold, make_key, uniform
from posterity.engine.keys import COHORT
from posterity.engine.participation import Participation, draw_distinct

ROUNDS = 400
SURE = 1e-4  # a fair draw with fixed seeds has passed once and passes for ever


def drawn(clients, count, round=0, seed=0, device="cpu"):
    everyone = torch.arange(clients, device=device)
    return Participation(count=count).draw(everyone, make_key(seed, device), round)


@pytest.mark.parametrize("clients", [1, 2, 3, 5, 1000, 10**6])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.51, 0.99, 1.0])
def test_nobody_twice_and_nobody_from_outside(clients, share):
    count = max(1, int(share * clients))
    cohort = drawn(clients, count)
    assert cohort.dtype == torch.int64
    assert len(cohort) == count
    assert bool((cohort.diff() > 0).all())  # ascending, so that no two are equal
    assert 0 <= int(cohort[0]) <= int(cohort[-1]) < clients


@pytest.mark.parametrize("clients", [1, 2, 3, 5, 1000])
def test_everybody(clients):
    for who in (
        Participation(),
        Participation(count=clients),
        Participation(share=1.0),
        Participation(probability=1.0),
    ):
        assert who.draw(torch.arange(clients), make_key(3), 5).tolist() == list(range(clients))


@pytest.mark.parametrize(("clients", "count"), [(5, 1), (7, 3), (10, 5), (64, 32), (1000, 400), (10**6, 50)])
def test_the_first_different_values_of_a_sequence(clients, count):
    key = fold(fold(make_key(8), COHORT), 4)
    met = dict.fromkeys(
        (uniform(key, (20 * clients if clients < 10**6 else 100,), torch.float64) * clients).int().tolist()
    )
    assert drawn(clients, count, 4, 8).tolist() == sorted(itertools.islice(met, count))


@pytest.mark.parametrize(("clients", "count"), [(5, 4), (8, 5), (1000, 900)])
def test_more_than_half_leaves_out_a_drawn_rest(clients, count):
    out = draw_distinct(fold(fold(make_key(2), COHORT), 1), clients - count, clients)
    assert sorted([*drawn(clients, count, 1, 2).tolist(), *out.tolist()]) == list(range(clients))


@pytest.mark.parametrize(("clients", "count"), [(7, 3), (9, 7), *everything((20, 10), (101, 30))])
def test_every_client_is_drawn_equally_often(clients, count):
    times = torch.zeros(clients, dtype=torch.float64)
    for number in range(ROUNDS):
        times[drawn(clients, count, number)] += 1
    share = count / clients
    spread = ROUNDS * share * (1 - share) * clients / (clients - 1)  # of counts that add up to a fixed number
    assert chi2.sf(float(((times - ROUNDS * share) ** 2).sum()) / spread, clients - 1) > SURE


@pytest.mark.parametrize(("clients", "count"), [(5, 2), (5, 3), *everything((4, 1))])
def test_every_set_of_clients_is_drawn_equally_often(clients, count):
    seen = [tuple(drawn(clients, count, number, seed=7).tolist()) for number in range(ROUNDS)]
    sets = list(itertools.combinations(range(clients), count))
    assert chisquare([seen.count(one) for one in sets]).pvalue > SURE


def test_neighbouring_rounds_and_seeds_are_independent():
    """The overlap of two cohorts of 50 among 200 is hypergeometric: mean 12.5, variance 7.07."""
    for other in ((1, 0), (0, 1)):
        pairs = [
            (drawn(200, 50, r, s), drawn(200, 50, r + other[0], s + other[1])) for r in range(20) for s in range(5)
        ]
        overlap = torch.tensor([float(torch.isin(a, b).sum()) for a, b in pairs], dtype=torch.float64)
        assert abs(float(overlap.mean()) - 12.5) < 4 * (7.07 / len(pairs)) ** 0.5


def test_a_cohort_is_a_function_of_seed_and_round():
    again = [drawn(300, 20, number, seed).tolist() for seed in (0, 1) for number in (0, 1, 2)]
    assert again == [drawn(300, 20, number, seed).tolist() for seed in (0, 1) for number in (0, 1, 2)]
    assert len(set(map(tuple, again))) == len(again)


def test_clients_are_drawn_from_those_who_are_able():
    able = torch.tensor([2, 3, 5, 7, 11, 13, 17])
    for who in (
        Participation(count=3),
        Participation(count=5),
        Participation(share=0.4),
        Participation(probability=0.5),
    ):
        cohort = who.draw(able, make_key(0), 1)
        assert bool(torch.isin(cohort, able).all())
    assert torch.equal(Participation(count=3).draw(able, make_key(0), 1), able[drawn(7, 3, 1)])
    with pytest.raises(ValueError, match="8 clients a round were asked for, but only 7"):
        Participation(count=8).draw(able, make_key(0), 1)
    assert torch.equal(Participation(count=8).at_most(7).draw(able, make_key(0), 1), able)
    for who in (Participation(count=3), Participation(share=0.4), Participation(probability=0.5), Participation()):
        assert who.at_most(7) == who


def test_a_draw_costs_what_the_cohort_costs():
    """A number for each of ten million clients took half a minute."""
    everyone, root = torch.arange(10**7), make_key(0)
    begun = time.process_time()  # other work on this machine does not count
    assert len(Participation(count=1000).draw(everyone, root, 0)) == 1000
    assert time.process_time() - begun < 3.0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here")
@pytest.mark.parametrize(("clients", "count"), [(5, 2), (1000, 300), (1000, 700), (10**6, 1000)])
def test_devices_draw_the_same(clients, count):
    assert drawn(clients, count, 3, 1, "cuda").tolist() == drawn(clients, count, 3, 1).tolist()
