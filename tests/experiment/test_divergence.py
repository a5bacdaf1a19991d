"""A run that came to nothing, or exploded, says so: a warning, `result.diverged`, exit code 3; its files stay."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import typer
from oracles.sims import federate, points

import posterity
from posterity.cli.commands import EXIT, conclude
from posterity.cli.flags import Output
from posterity.cli.terminal import notes_of
from posterity.experiment.divergence import why_diverged
from posterity.runs.lines import RoundLine, ScoreLine, read_lines, write_lines

TINY = {"dataset": "digits", "clients": 3, "subset": "5%", "rounds": 2, "evaluate_every": 2, "engine": "stacked"}


def line_of(round: int, part: str, metrics: dict) -> ScoreLine:
    return ScoreLine(round, "received", 0, "members", part, metrics, {}, {}, [], [])


def scored(nll: float, accuracy: float, round: int = 1) -> list[ScoreLine]:
    metrics = {"nll": {"pooled": nll}, "accuracy": {"pooled": accuracy}}
    return [line_of(round, part, metrics) for part in ("validation", "test", "held")]


def played(*empty: bool, cohort: int = 5) -> list[RoundLine]:
    return [RoundLine(i, cohort, 0, (), lost, None, 0, 0, 0.0, {}) for i, lost in enumerate(empty, 1)]


def test_a_run_with_an_absurd_step_size_is_no_result_and_its_files_stay(tmp_path: Path, capsys):
    folder = tmp_path / "run"
    with pytest.warns(UserWarning, match="came to nothing|exploded"):
        result = posterity.run(out=folder, method="fedavg", lr=1e6, **TINY)
    assert "--lr" in result.diverged
    assert json.loads((folder / "run.json").read_text())["diverged"] == result.diverged
    with pytest.raises(typer.Exit) as ended:
        conclude(folder, Output())
    assert ended.value.exit_code == EXIT == 3
    assert str(folder) in capsys.readouterr().err
    assert (folder / "report.html").exists()
    assert (folder / "checkpoint.safetensors").exists()


def test_an_ordinary_run_is_a_result(tmp_path: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = posterity.run(out=tmp_path / "run", method="fedavg", **TINY)
    assert result.diverged == ""
    conclude(tmp_path / "run", Output())


@pytest.mark.parametrize(
    ("nll", "accuracy", "exploded"),
    [
        (0.7, 0.8, False),
        (40.0, 0.6, False),
        (3.8e8, 0.6, True),
        (math.inf, 0.9, False),
        (math.inf, 0.0, True),
        (None, 0.0, False),
        (math.nan, 0.0, False),
        (900, 0.4, False),
    ],
)
def test_what_no_honest_model_could_have_is_exploded(nll, accuracy, exploded):
    """Three classes: guessing has NLL log 3, and a thousand times that is 1,099; None is undefined."""
    lines = [*played(False, False), *scored(nll, accuracy)]
    assert ("exploded" in why_diverged(lines, points(classes=3), "received")) == exploded


def test_the_round_that_would_be_reported_decides():
    lines = [*played(False, False), *scored(0.5, 0.9, 1), *scored(1e9, 0.3, 2)]
    assert why_diverged(lines, points(classes=3), "received") == ""


def test_squared_errors_are_held_against_the_targets():
    toy = federate([(torch.ones(4, 1), torch.tensor([0.0, 1.0, 2.0, 3.0]))])
    found = [why_diverged([*played(False), line_of(1, "test", {"mse": {"pooled": e}})], toy, "received")
             for e in (3.0, 1e5, 1e8, math.inf, None)]  # fmt: skip
    assert [bool(why) for why in found] == [False, False, True, True, False]


@pytest.mark.parametrize(("error", "clients", "exploded"), [(math.inf, 1.0, True), (math.nan, 0.0, False)])
def test_a_file_says_what_the_run_said(error, clients, exploded, tmp_path: Path):
    """Without held-out rows there is no squared error."""
    toy = federate([(torch.ones(4, 1), torch.tensor([0.0, 1.0, 2.0, 3.0]))])
    lines = [*played(False), line_of(1, "test", {"mse": {"pooled": error, "clients": clients}})]
    write_lines(tmp_path / "metrics.jsonl", lines)
    found = [why_diverged(each, toy, "received") for each in (lines, read_lines(tmp_path / "metrics.jsonl"))]
    assert [bool(why) for why in found] == [exploded] * 2


@pytest.mark.parametrize(("empty", "lost"), [((True, False), False), ((True, True, False), True), ((True,), True)])
def test_more_than_half_of_the_rounds_lost_is_no_result(empty, lost):
    assert bool(why_diverged(played(*empty), points(), "received")) == lost


def test_rounds_that_nobody_was_asked_to_do_not_count():
    lines = [*played(False), *played(True, True, True, cohort=0)]
    assert why_diverged(lines, points(), "received") == ""


def test_a_watcher_is_told_why_a_round_was_rolled_back():
    (line,) = played(True)
    line = replace(line, round=7, rolled_back="it would not be finite", notes=("blocks of 4",))
    assert notes_of([line]) == ["round 7: rolled back, it would not be finite", "round 7: blocks of 4"]
