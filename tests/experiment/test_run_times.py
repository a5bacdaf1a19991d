"""A run that was interrupted and resumed has taken the time of both halves."""

from __future__ import annotations

import math

import pytest

from posterity.experiment import run
from posterity.runs import files
from posterity.runs import folder as run_folder
from posterity.settings.config import Config

SMALL = Config(method="fedavg", dataset="digits", clients=4, rounds=4, evaluate_every=4, subset="15%")


class Interrupted(Exception):
    pass


def stop(round, rounds, lines):
    if round == 2:
        raise Interrupted


def test_the_time_of_both_halves(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "WRITING", math.inf)
    with pytest.raises(Interrupted):
        run.start_run(SMALL, tmp_path / "run", stop)
    first = run_folder.read_checkpoint(tmp_path / "run")[1]
    run.resume_run(tmp_path / "run")
    lines = files.read_lines(tmp_path / "run" / run_folder.METRICS)
    spent = [line["seconds"] for line in lines if line["kind"] == "round"]
    assert len(spent) == 4
    assert first["seconds"] == pytest.approx(sum(spent[:2]))
    assert files.read_json(tmp_path / "run" / run_folder.RUN)["seconds"] == pytest.approx(sum(spent))
