"""Settings of the process are put back after a run."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch

from posterity.engine.process_settings import ProcessSettings
from posterity.experiment.run import start_run
from posterity.settings.config import Config


def switches():
    return (bool(torch.backends.mkldnn.enabled), torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.allow_tf32, torch.get_num_threads())  # fmt: skip


@pytest.mark.parametrize("fails", [False, True])
def test_settings_are_put_back(fails):
    before = switches()
    wanted = ProcessSettings(onednn=not before[0], tf32=not before[1], threads=before[3] + 1)
    with suppress(ZeroDivisionError), wanted.applied():
        assert switches() == (not before[0], not before[1], not before[1], before[3] + 1)
        if fails:
            raise ZeroDivisionError
    assert switches() == before


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_leaves_the_process_as_it_was(fails, tmp_path):
    before, during = switches(), []

    def watch(round, rounds, lines):
        during.append(switches())
        if fails:
            raise ZeroDivisionError

    config = Config(method="fedavg", dataset="digits", clients=3, rounds=1, subset="5%", onednn="off", precision="tf32")
    with suppress(ZeroDivisionError):
        start_run(config, tmp_path / "run", watch)
    assert during == [(False, True, True, before[3])]
    assert switches() == before
