"""One thread (the tensors of the tests are small: two threads wait for each other), and the command line to call."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before PyTorch is imported: tests fork, and a fork waits for threads it has not

import pytest
import torch

from posterity.cli.app import main

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # the suite was started in the background: commands inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def python_path(monkeypatch):
    """The command line tells its children to leave the current folder out; those of the next test are others."""
    monkeypatch.setenv("PYTHONSAFEPATH", "")


@pytest.fixture
def call(monkeypatch, tmp_path, capsys):
    """Run the command line in an empty folder: exit code, what it printed, what it complained.

    What it imported from that folder is forgotten afterwards: the next test may write another file of the same name.
    """

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["posterity", *words])
        monkeypatch.setattr(sys, "path", list(sys.path))
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        finally:
            forget(tmp_path)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file edited within its second looks unchanged
    return run


def forget(folder: Path) -> None:
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
