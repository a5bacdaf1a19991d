"""Numbers: what the tables say equals what a few lines of arithmetic on the files say."""

from __future__ import annotations

import json
import statistics
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from posterity.report import ReportError, columns, finding, headline, load_runs
from posterity.report.table import INCIDENTAL, human_bytes, select_round
from posterity.settings.config import Config

from .fake_runs import comparison, write_run


def lines(folder: Path, **wanted: Any) -> list[dict[str, Any]]:
    """Straight from the file, by none of the code under test."""
    raw = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in raw if all(line.get(k) == v for k, v in wanted.items())]


def by_hand(folder: Path, rule: str, point: str) -> dict[str, Any]:
    """The line a rule picks, worked out as its definition says."""
    kind = {"kind": "score", "group": "members", "point": point}
    by = {"validated": "validation", "paper": "held", "last": "test"}[rule]
    seen = lines(folder, part=by, **kind)
    best = seen[-1] if rule == "last" else max(seen, key=lambda line: line["metrics"]["accuracy"]["pooled"])
    shown = lines(folder, part="held" if rule == "paper" else "test", round=best["round"], **kind)
    return shown[0]


@pytest.mark.parametrize("rule", ["validated", "paper", "last"])
@pytest.mark.parametrize(
    ("method", "label", "point"), [("pfedvmp", "pFedVMP", "received"), ("metavd", "MetaVD", "adapted")]
)
def test_headline_equals_arithmetic(trio: Path, rule: str, method: str, label: str, point: str) -> None:
    row = next(r for r in headline(load_runs(trio), rule) if r.label == label)
    picked = [by_hand(trio / method / f"seed-{s}", rule, point) for s in range(3)]
    assert row.rounds == tuple(line["round"] for line in picked)
    assert row.seeds == 3
    accuracy = [line["metrics"]["accuracy"]["pooled"] for line in picked]
    worst = [line["fairness"]["worst10"] for line in picked]
    nll = [line["metrics"]["nll"]["pooled"] for line in picked]
    assert (
        row.cells["accuracy"].text == f"{100 * statistics.mean(accuracy):.1f} ± {100 * statistics.stdev(accuracy):.1f}"
    )
    assert row.cells["worst10"].text == f"{100 * statistics.mean(worst):.1f} ± {100 * statistics.stdev(worst):.1f}"
    assert row.cells["nll"].text == f"{statistics.mean(nll):.3f} ± {statistics.stdev(nll):.3f}"
    sent = [line["bytes_up"] + line["bytes_down"] for line in lines(trio / method / "seed-0", kind="round")]
    assert row.cells["bytes"].mean == pytest.approx(statistics.mean(sent))
    assert row.cells["seconds"].text == "13.5"


def test_point_is_named_and_rows_are_ranked(trio: Path) -> None:
    rows = headline(load_runs(trio))
    assert [r.label for r in rows] == ["pFedVMP", "MetaVD", "FedAvg"]
    assert [r.point for r in rows] == ["received", "adapted, 1 epoch", "received"]
    assert [r.arm.index for r in rows] == [2, 1, 0], "colours follow the names, not the results"


def test_unfinished_run_is_set_aside_when_others_finished(trio: Path) -> None:
    row = next(r for r in headline(load_runs(trio)) if r.label == "pFedVMP")
    assert [run.seed for run in row.arm.aside] == [7]
    assert not row.mark


def test_unfinished_alone_is_marked_and_never_best(tmp_path: Path) -> None:
    comparison(tmp_path, {"fedavg": 0.7}, 2)
    write_run(tmp_path / "fedper", "fedper", 0.95, 0, status="running", stop=10)
    comparison(tmp_path, {"fedrep": 0.6}, 2)
    rows = {r.label: r for r in headline(load_runs(tmp_path))}
    assert rows["FedPer"].mark == "running, round 10 of 40"
    assert not rows["FedPer"].cells["accuracy"].best
    assert rows["FedAvg"].cells["accuracy"].best
    assert "FedAvg has the highest accuracy" in finding(list(rows.values()))


def test_regression_prefers_the_lower_error(tmp_path: Path) -> None:
    comparison(tmp_path, {"fedper": 0.85, "fedavg": 0.5}, 2, task="regression")
    runs = load_runs(tmp_path)
    rows = headline(runs)
    assert [c.key for c in columns(rows)] == ["mse", "nll", "bytes", "seconds"]
    assert rows[0].label == "FedPer"
    for run in runs:
        seen = lines(run.folder, kind="score", part="validation", point="received", group="members")
        chosen = select_round(run, "validated")
        assert chosen is not None
        assert chosen.round == min(seen, key=lambda line: line["metrics"]["mse"]["pooled"])["round"]
    assert "lowest mean squared error" in finding(rows)


def test_two_classes_show_auroc(tmp_path: Path) -> None:
    comparison(tmp_path, {"fedper": 0.85}, 2, classes=2)
    assert {"auroc", "sensitivity", "specificity"} <= {c.key for c in columns(headline(load_runs(tmp_path)))}


def test_settings_tell_rows_of_one_method_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0.7, 0, lr=0.1)
    write_run(tmp_path / "b", "fedavg", 0.6, 0, lr=0.01)
    assert [r.label for r in headline(load_runs(tmp_path))] == ["FedAvg (lr 0.1)", "FedAvg (lr 0.01)"]


def test_rounds_that_are_kept_for_predictions_make_no_other_method(tmp_path: Path) -> None:
    for seed, keep in ((0, "validated"), (1, "validated,paper")):
        config = write_run(tmp_path / f"seed-{seed}", "fedavg", 0.7, seed) / "config.toml"
        config.write_text(f'keep = "{keep}"\n{config.read_text()}')
    assert [(r.label, r.seeds) for r in headline(load_runs(tmp_path))] == [("FedAvg", 2)]


def test_what_makes_no_other_run_makes_no_other_method() -> None:
    assert {f.name for f in fields(Config) if not f.compare} <= {*INCIDENTAL}


def test_missing_validation_leaves_the_rule_empty(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", 0.7, 0, parts=("test",))
    assert "accuracy" not in headline(load_runs(tmp_path), "validated")[0].cells
    assert "not written" in finding(headline(load_runs(tmp_path), "validated"))
    assert "accuracy" in headline(load_runs(tmp_path), "last")[0].cells


def test_infinite_loss_is_shown(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", "fedavg", 0.7, 0)
    raw = lines(folder)
    for line in raw:
        if line["kind"] == "score":
            line["metrics"]["nll"]["pooled"] = float("inf")
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, raw)))
    assert headline(load_runs(tmp_path))[0].cells["nll"].text == "∞"


def test_half_a_line_at_the_end_is_ignored_and_repeated_rounds_count_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", "fedavg", 0.7, 0)
    log = folder / "metrics.jsonl"
    before = load_runs(tmp_path)[0]
    first = log.read_text().splitlines()[0]
    log.write_text(log.read_text() + first + '\n{"kind":"score","rou')
    after = load_runs(tmp_path)[0]
    assert (len(before.rounds), len(before.scores)) == (len(after.rounds), len(after.scores))


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"No run folder in .*run\.json"):
        load_runs(tmp_path)
    with pytest.raises(ReportError, match="neither a folder"):
        load_runs(tmp_path / "nowhere")
    folder = write_run(tmp_path / "a", "fedavg", 0.7, 0)
    with pytest.raises(ReportError, match="validated, paper, last"):
        headline(load_runs(tmp_path), "best")
    log = folder / "metrics.jsonl"
    text = log.read_text().splitlines()
    log.write_text("\n".join(["{broken", *text]))
    with pytest.raises(ReportError, match="line 1"):
        load_runs(tmp_path)
    log.write_text("")
    with pytest.raises(ReportError, match="finished without scores"):
        headline(load_runs(tmp_path))


def test_running_without_scores_is_left_out_until_it_has_some(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", "fedavg", 0.7, 0, status="running")
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(ReportError, match="no scores yet"):
        headline(load_runs(tmp_path))
    write_run(tmp_path / "b", "fedper", 0.7, 0)
    assert [r.label for r in headline(load_runs(tmp_path))] == ["FedPer"]


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (999, "999 B"), (1234, "1.23 kB"), (45_600_000, "45.6 MB"), (7.89e11, "789 GB")]
)
def test_bytes_for_people(count: float, shown: str) -> None:
    assert human_bytes(count) == shown
