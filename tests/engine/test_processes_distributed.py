"""Two processes that share the clients end where one process ends."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from kinds import everything
from safetensors.torch import load_file

from posterity.engine.processes import Processes, deal
from posterity.experiment import setup
from posterity.settings.config import Config

from .sharing import KINDS, OTHERS, end_of

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """What two processes wrote down about some methods."""

    @cache
    def folder(methods):
        folder = tmp_path_factory.mktemp("ranks")
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        done = subprocess.run([*command, str(HERE / "sharing.py"), str(folder), *methods], capture_output=True,
                              text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=600)  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        return folder

    return folder


@pytest.mark.parametrize("method", [*KINDS, *everything(*OTHERS)])
def test_two_processes_equal_one(method, shared):
    written = shared(KINDS if method in KINDS else OTHERS)
    alone, together = end_of(method), load_file(written / f"{method}.safetensors")
    assert alone.keys() == together.keys()
    for name, value in alone.items():
        assert torch.allclose(value.double(), together[name].double(), rtol=1e-9, atol=1e-11, equal_nan=True), name


def test_clients_are_shared_out_without_overlap():
    clients = torch.tensor([0, 3, 4, 7, 8, 9])
    shares = [Processes(rank, 3).share(clients) for rank in range(3)]
    assert sorted(torch.cat(shares).tolist()) == clients.tolist()
    assert Processes().share(clients) is clients


SKEWED = [400, 3, 1, 390, 0, 7, 5, 5, 90, 110, 0, 0, 210, 2]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_dealt_clients_are_shared_out_without_overlap(size):
    counts, members, clients = torch.tensor(SKEWED), 11, torch.tensor([1, 4, 5, 8, 9, 12, 13])
    shares = [Processes(rank, size).dealt(counts, members).share(clients) for rank in range(size)]
    assert sorted(torch.cat(shares).tolist()) == clients.tolist()
    assert Processes().dealt(counts, members).share(clients) is clients


@pytest.mark.parametrize("size", [2, 3, 4])
def test_clients_are_dealt_by_their_samples(size):
    counts = torch.tensor(SKEWED[:11])
    loads = torch.bincount(deal(counts.tolist(), size), counts, minlength=size)
    best = max(max(SKEWED), -(-sum(SKEWED[:11]) // size))  # no way of dealing is below this
    assert loads.max() <= best * (4 / 3 - 1 / (3 * size)) + len(counts)  # Graham's bound; each client counts one more
    by_number = torch.bincount(torch.arange(11) % size, counts, minlength=size)
    assert loads.max() <= by_number.max()


def test_dealing_by_hand():
    assert deal([1, 9, 5, 4, 0, 0], 2).tolist() == [0, 0, 1, 1, 1, 0]
    assert deal([0, 0, 0, 0], 2).tolist() == [0, 1, 0, 1]  # clients without data are spread too
    assert deal([], 3).tolist() == []


def test_a_run_deals_its_clients_out(monkeypatch):
    monkeypatch.setattr(setup, "find_processes", lambda device: (Processes(1, 2), device))
    made = setup.set_up(Config(dataset="digits", partition="dirichlet:0.3", clients=9)).sim
    everyone = torch.arange(9)
    assert torch.equal(made.processes.owner(everyone), deal(made.federation.train.counts.tolist(), 2))
    assert not torch.equal(made.processes.owner(everyone), everyone % 2)


def test_members_are_balanced_whatever_the_newcomers_hold():
    counts = torch.tensor([5, 5, 5, 5, 1000, 1])
    processes = Processes(0, 2).dealt(counts, 4)
    assert torch.bincount(processes.owner(torch.arange(4))).tolist() == [2, 2]
    assert sorted(processes.owner(torch.tensor([4, 5])).tolist()) == [0, 1]


def test_a_process_alone_exchanges_nothing():
    processes = Processes()
    assert processes.total({"a": 1}) == ({"a": 1}, 0)
    assert processes.all_gather(2.5) == [2.5]
    assert processes.joined([torch.ones(1)], torch.tensor([0]))[0] == 1
