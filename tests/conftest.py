"""One thread: the tensors of the tests are small, and two threads only wait for each other."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def python_path(monkeypatch):
    """The command line tells its children to leave the current folder out; those of the next test are others."""
    monkeypatch.setenv("PYTHONSAFEPATH", "")
