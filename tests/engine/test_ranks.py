"""Two processes that share the clients end where one process ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from posterity.engine.ranks import Ranks

from .sharing import METHODS, end_of

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """What two processes wrote down."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*command, str(HERE / "sharing.py"), str(folder)], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_two_processes_equal_one(method, shared):
    alone, together = end_of(method), load_file(shared / f"{method}.safetensors")
    assert alone.keys() == together.keys()
    for name, value in alone.items():
        assert torch.allclose(value.double(), together[name].double(), rtol=1e-9, atol=1e-11, equal_nan=True), name


def test_clients_are_shared_out_without_overlap():
    clients = torch.tensor([0, 3, 4, 7, 8, 9])
    shares = [Ranks(rank, 3).share(clients) for rank in range(3)]
    assert sorted(torch.cat(shares).tolist()) == clients.tolist()
    assert Ranks().share(clients) is clients


def test_a_process_alone_exchanges_nothing():
    ranks = Ranks()
    assert ranks.total({"a": 1}) == ({"a": 1}, 0)
    assert ranks.tell(2.5) == [2.5]
    assert ranks.joined([torch.ones(1)], torch.tensor([0]))[0] == 1
