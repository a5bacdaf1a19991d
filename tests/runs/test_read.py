"""What is read from a run folder: repeated lines, runs under way, the order of seeds, who counts as one method."""

from __future__ import annotations

from pathlib import Path

import pytest
from report.handmade import edited, everywhere, run_of, scored, trained

from posterity.core.protocol import POINTS
from posterity.report import headline, load_runs
from posterity.runs import read as read_runs


def test_of_two_lines_about_the_same_the_later_counts(tmp_path: Path) -> None:
    lines = [*everywhere(2, 0.2), trained(1, up=1), trained(2, up=2), *everywhere(2, 0.7), trained(1, up=9)]
    run_of(tmp_path, lines)
    (run,) = load_runs(tmp_path)
    assert [(r.round, r.bytes_up) for r in run.rounds] == [(1, 9.0), (2, 2.0)]
    assert {score.value("accuracy") for score in run.scores} == {0.7}


def test_a_report_knows_the_protocols_points() -> None:
    assert read_runs.POINTS == POINTS


def test_seeds_are_in_numerical_order(tmp_path: Path) -> None:
    for seed in (10, 2, 0):
        run_of(tmp_path / f"seed-{seed}", everywhere(2, 0.5), seed=seed)
    assert [run.seed for run in load_runs(tmp_path)] == [0, 2, 10]


def test_a_run_under_way_has_taken_the_time_of_its_rounds(tmp_path: Path) -> None:
    run_of(tmp_path, [trained(1), trained(2), trained(3), *everywhere(2, 0.5)], status="running")
    edited(tmp_path, "run.json", '"seconds": 12.5', '"seconds": 0.0')
    (run,) = load_runs(tmp_path)
    assert run.seconds == pytest.approx(0.75)
    assert (run.finished, run.reached) == (False, 3)


def test_the_point_is_the_methods_own(tmp_path: Path) -> None:
    lines = [*everywhere(2, 0.5), *everywhere(2, 0.8, point="adapted", epochs=1)]
    run_of(tmp_path, lines, "metavd")
    edited(tmp_path, "config.toml", 'scored = "adapted"\n', "")  # as the runner writes it
    row = headline(load_runs(tmp_path))[0]
    assert (row.point, row.cells["accuracy"].mean) == ("adapted, 1 epoch", 0.8)


def test_where_it_ran_does_not_make_another_method(tmp_path: Path) -> None:
    for seed, engine in enumerate(("loop", "graph")):
        run_of(tmp_path / str(seed), everywhere(2, 0.5 + seed / 10), seed=seed)
        edited(tmp_path / str(seed), "config.toml", "lr = ", f'engine = "{engine}"\ndevice = "{engine}"\nlr = ')
    (row,) = headline(load_runs(tmp_path))
    assert (row.label, row.seeds) == ("FedAvg", 2)
    assert row.cells["accuracy"].mean == pytest.approx(0.55)


def test_bytes_of_a_round_are_both_directions_and_a_mean(tmp_path: Path) -> None:
    run_of(tmp_path, [trained(1, 100, 50), trained(2, 300, 150), *everywhere(2, 0.5)])
    assert headline(load_runs(tmp_path))[0].cells["bytes"].mean == 300


def test_a_number_that_json_does_not_have_is_no_number(tmp_path: Path) -> None:
    run_of(tmp_path, [trained(1, loss=float("nan")), scored(1, float("nan")), scored(2, 0.5, "validation")])
    (run,) = load_runs(tmp_path)
    assert run.rounds[0].loss is None
    assert run.scores[0].value("accuracy") is None
