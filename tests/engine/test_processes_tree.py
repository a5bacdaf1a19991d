"""Sums along a tree of processes. Here processes are threads, and what they exchange goes through queues."""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import pytest
import torch

from posterity.core.messages import Mean, Sum
from posterity.core.tree import tree_map
from posterity.engine import processes
from posterity.engine.engines import ORACLE
from posterity.engine.processes import Processes
from posterity.engine.round import first_state, train_round
from posterity.engine.store import Store
from posterity.laws import make_case
from posterity.methods.fedavg import FedAvg

PATIENCE = 120.0  # seconds until a process that nobody answers gives up: then a test fails


class Exchange:
    """What `torch.distributed` offers, between threads."""

    def __init__(self, size):
        self.size, self.me, self.lock, self.lines = size, threading.local(), threading.Lock(), defaultdict(Queue)

    def line(self, *ends):
        with self.lock:  # two threads that ask for a new line at once must get the same one
            return self.lines[ends]

    def send(self, tensor, dst):
        self.line(self.me.rank, dst).put(tensor.clone())

    def recv(self, tensor, src):
        tensor.copy_(self.line(src, self.me.rank).get(timeout=PATIENCE))

    def all_gather(self, told, mine):
        for rank in range(self.size):
            self.line("all", self.me.rank, rank).put(mine.clone())
        for rank in range(self.size):
            told[rank].copy_(self.line("all", rank, self.me.rank).get(timeout=PATIENCE))

    def broadcast(self, tensor, src):
        if self.me.rank == src:
            for rank in range(self.size):
                self.line("one", src, rank).put(tensor.clone())
        tensor.copy_(self.line("one", src, self.me.rank).get(timeout=PATIENCE))


@pytest.fixture
def at_all(monkeypatch):
    """Calls a function with the ranks of every process, all at once; what each returns."""

    def call(size, function):
        exchange = Exchange(size)
        monkeypatch.setattr(processes, "dist", exchange)

        def process(rank):
            exchange.me.rank = rank
            return function(Processes(rank, size))

        with ThreadPoolExecutor(size) as pool:
            return list(pool.map(process, range(size)))

    return call


def message(rank):
    weight = torch.tensor(float(rank + 1), dtype=torch.float64)
    return {"mean": Mean(weight, {"w": torch.full((2,), 10.0 * rank, dtype=torch.float64)}),
            "sum": Sum({"c": torch.tensor([2**rank])})}  # fmt: skip


@pytest.mark.parametrize("idle", [(), (0,), (1, 2)], ids=str)
@pytest.mark.parametrize("size", [3, 4, 5, 7])
def test_one_process_ends_with_the_sum_of_all(at_all, size, idle):
    ends = at_all(size, lambda r: r.total(None if r.rank in idle else message(r.rank)))
    working = [rank for rank in range(size) if rank not in idle]
    assert {root for _, root in ends} == {working[0]}
    assert [rank for rank, (total, _) in enumerate(ends) if total is not None] == [working[0]]
    total = ends[working[0]][0]
    weights = [rank + 1 for rank in working]
    mean = sum(10.0 * rank * (rank + 1) for rank in working) / sum(weights)
    assert float(total["mean"].weight) == sum(weights)
    assert total["mean"].mean()["w"].tolist() == pytest.approx([mean, mean])
    assert int(total["sum"].value["c"]) == sum(2**rank for rank in working)


def test_nobody_has_anything(at_all):
    assert at_all(3, lambda r: r.total(None)) == [(None, 0)] * 3


@pytest.mark.parametrize("source", [0, 2])
def test_a_state_is_shared_out(at_all, source):
    ends = at_all(3, lambda r: r.broadcast_tree({"w": torch.full((2,), float(r.rank), dtype=torch.float32)}, source))
    assert [end["w"].tolist() for end in ends] == [[float(source)] * 2] * 3


def test_a_state_that_holds_a_tensor_twice_is_shared_out(at_all):
    def shared(r):
        leaf = torch.full((2,), float(r.rank))
        return r.broadcast_tree({"w": leaf, "anchor": leaf}, 1)

    assert [end["anchor"].tolist() for end in at_all(2, shared)] == [[1.0, 1.0]] * 2


def test_numbers_are_told_and_added(at_all):
    assert at_all(3, lambda r: r.all_gather(r.rank + 0.5)) == [[0.5, 1.5, 2.5]] * 3
    assert at_all(3, lambda r: r.all_reduce([1.0, float(r.rank)])) == [[3.0, 3.0]] * 3


def test_outputs_come_to_the_first_in_the_order_of_the_clients(at_all):
    clients = torch.tensor([4, 0, 5, 2, 1])

    def outputs(r):
        mine = [torch.tensor([float(c)]) if c % r.size == r.rank else torch.empty(0) for c in clients.tolist()]
        return r.joined(mine, clients)

    assert [float(output) for output in at_all(3, outputs)[0]] == [4.0, 0.0, 5.0, 2.0, 1.0]


class Telling(FedAvg):
    """FedAvg that reports a weight; a client sends what cannot be used, and another state than the first neither."""

    ill, explodes = 9, False

    def message(self, carry, here):
        sent, kept = super().message(carry, here)
        bad = here.client == self.ill
        return tree_map(lambda leaf: torch.where(bad, torch.nan, leaf), sent), kept

    def combine(self, state, total, now):
        after = super().combine(state, total, now)
        return tree_map(lambda leaf: leaf * torch.inf, after) if self.explodes else after

    def report(self, state, total):
        return {"weight": total["params"].weight}


class Exploding(Telling):
    explodes = True


@pytest.mark.parametrize("method", [Telling, Exploding])
@pytest.mark.parametrize("cohort", [[1, 3, 9], [0, 1, 4, 9], [9]], ids=str)
def test_the_first_process_knows_what_became_of_a_round(at_all, method, cohort):
    """Client k is at process k mod 2: of the cohorts without an even number the first process has nobody."""
    case = make_case(method())

    def log_of(ranks):
        sim = case.sim(processes=ranks)
        return train_round(sim, ORACLE, first_state(sim), Store(13), torch.tensor(cohort), 1, 1)[1]

    alone, first = log_of(Processes()), at_all(2, log_of)[0]
    assert [refusal.client for refusal in alone.refused] == [9]
    assert bool(alone.report) == (len(cohort) > 1 and not alone.rolled_back)
    assert bool(alone.rolled_back) == (len(cohort) > 1 and method.explodes)
    assert (first.refused, first.report, first.rolled_back) == (alone.refused, alone.report, alone.rolled_back)
