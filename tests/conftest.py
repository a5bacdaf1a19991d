"""One thread: the tensors of the tests are small, and two threads only wait for each other."""

import signal

import pytest
import torch

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # the suite was started in the background: commands inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def python_path(monkeypatch):
    """The command line tells its children to leave the current folder out; those of the next test are others."""
    monkeypatch.setenv("PYTHONSAFEPATH", "")
