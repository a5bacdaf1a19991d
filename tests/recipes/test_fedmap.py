"""FedMAP's recipes on next to nothing: what is run, what is not run twice, and what the tables say."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace

import pytest
import torch

from posterity.experiment import folder as files
from posterity.experiment.compare import Task
from posterity.experiment.config import from_table, read_toml

OTHERS = ("fedmap@paper", "local", "fedprox", "fedbn", "fedavg")


def some(plan, skew):
    return [task for task in plan.tasks() if f"{skew} skew" in task.title]


def scores(path, round):
    lines = files.read_lines(path / files.METRICS)
    return [x for x in lines if x["kind"] == "score" and x["round"] == round]


# --- the paper's numbers and settings ---------------------------------------------------------------------------------


def test_the_paper_is_copied_rightly(tables):
    """The specification's column means (erratum A7), which are not the printed averages."""
    means = {skew: {m: round(statistics.fmean(v), 2) for m, v in by.items()} for skew, by in tables.PAPER.items()}
    assert means["label"]["local"] == pytest.approx(73.89, abs=0.01)
    assert (means["feature"]["local"], means["feature"]["fedavg"]) == pytest.approx((83.80, 63.18), abs=0.01)
    expected = {"local": 74.27, "fedmap": 78.24, "fedbn": 63.62, "fedprox": 61.35, "fedavg": 61.54}
    assert means["quantity"] == pytest.approx(expected, abs=0.01)
    printed = {"label": {"fedmap": 80.39, "fedbn": 63.05, "fedprox": 53.71, "fedavg": 52.92}}
    printed["feature"] = {"fedmap": 86.27, "fedbn": 65.38, "fedprox": 63.00}  # where both agree
    for skew, by in printed.items():
        assert {m: means[skew][m] for m in by} == pytest.approx(by, abs=0.015)
    assert all(len(v) == 10 for by in tables.PAPER.values() for v in by.values())


def test_the_settings_are_the_issues(tables, tmp_path):
    plan = tables.make_plan(tables.arguments(["--out", str(tmp_path)]))
    assert plan.marks == [20, 60]
    assert len(plan.tasks()) == 2 * 2 * 3 * 3 * 6  # data, networks, seeds, skews, methods
    config = plan.config("fedprox", "label", "paper", "mlp_bn", 2)
    assert (config.lr, config.optimiser, config.batch_size, config.local_epochs) == (1e-3, "adam", 64, 50)
    assert (config.split, config.participation, config.seed) == ("70/30", "all", 2)
    assert config.settings() == {"mu": 2.0}
    assert config.settings("model") == {"hidden": "32,16", "unit": "true"}
    assert config.settings("data") == {"skew": "label", "preset": "paper", "samples": 2000}


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    ["fedmap", *(pytest.param(name, marks=pytest.mark.everything) for name in OTHERS)],
)
def test_a_short_run_is_the_beginning_of_a_long_one(tiny, common, tmp_path, method):
    """Scores at round 1 of 2, of a run of 1, and of a run of 1 that is lengthened to 2: the same bits."""
    which = (method, "label", "code", "mlp_bn", 0)
    long, short = tiny(tmp_path / "long"), tiny(tmp_path / "short", rounds=1)
    for plan in (long, short):
        common.perform([plan.task(*which)])
    ends = scores(short.folder(*which), 1)
    assert len(ends) == 9  # three points, three parts
    assert ends == scores(long.folder(*which), 1)
    common.perform([replace(short, rounds=2).task(*which)])
    assert scores(short.folder(*which), 2) == scores(long.folder(*which), 2)
    pair = [files.read_checkpoint(p.folder(*which)) for p in (short, long)]
    assert all(torch.equal(leaf, pair[1][0][name]) for name, leaf in pair[0][0].items())


def test_what_is_finished_is_not_run_again(tiny, common, tmp_path, capsys):
    plan = tiny(tmp_path, methods=("local", "fedavg"))
    tasks = some(plan, "label")
    common.perform(tasks[:1])
    stamp = (tasks[0].path / files.METRICS).stat().st_mtime_ns
    capsys.readouterr()
    common.perform(tasks)
    assert (tasks[0].path / files.METRICS).stat().st_mtime_ns == stamp
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "2 runs, 1 of them finished before"
    assert [line.partition(":")[0] for line in out[1:]] == ["[1/1] fedavg, label skew, code data, mlp, seed 0"]


def test_a_killed_run_goes_on(tiny, common, tmp_path, monkeypatch):
    which = ("fedmap", "label", "code", "mlp", 0)
    whole, cut = tiny(tmp_path / "whole"), tiny(tmp_path / "cut")
    common.perform([whole.task(*which)])

    def stop(round, rounds, lines):
        raise KeyboardInterrupt

    monkeypatch.setattr(common, "silent", stop)
    with pytest.raises(KeyboardInterrupt):
        common.perform([cut.task(*which)])
    assert common.reached(cut.folder(*which)) == 0
    monkeypatch.undo()
    common.perform([cut.task(*which)])
    assert scores(cut.folder(*which), 2) == scores(whole.folder(*which), 2)


def test_other_settings_in_the_same_place_are_refused(tiny, common, tmp_path):
    plan = tiny(tmp_path)
    task = plan.task("local", "label", "code", "mlp", 0)
    common.perform([task])
    other = Task(task.title, task.path, replace(task.config, lr=0.1))
    with pytest.raises(ValueError, match="holds a run with other settings"):
        common.perform([other])
    common.perform([Task(task.title, task.path, replace(task.config, engine="loop"))])  # changes no result
    assert from_table(read_toml(task.path / files.CONFIG)) == task.config
    with pytest.raises(ValueError, match="share a folder"):
        common.perform([task, task])


def test_a_failure_stops_no_other_run(tiny, common, tmp_path, capsys):
    plan = tiny(tmp_path)
    good, bad = (plan.task("local", "label", "code", "mlp", seed) for seed in (0, 1))
    bad = Task(bad.title, bad.path, replace(bad.config, model="no-such-network"))
    with pytest.raises(RuntimeError, match="no-such-network"):
        common.perform([bad, good])
    assert common.reached(good.path) == 2
    assert "[1/2]" in capsys.readouterr().out


@pytest.mark.everything
def test_two_at_once_give_the_same(tiny, common, tmp_path):
    plans = [tiny(tmp_path / name, methods=("local", "fedmap")) for name in ("one", "two")]
    for jobs, plan in enumerate(plans, 1):
        common.perform(some(plan, "label"), jobs)
    for one, two in zip(*(some(plan, "label") for plan in plans), strict=True):
        assert scores(one.path, 2) == scores(two.path, 2)


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def measured(tiny, common, tmp_path):
    """One seed of Table 1, the others not there yet."""
    plan = tiny(tmp_path)
    common.perform(some(plan, "label"))
    return plan


def test_the_page(tables, measured):
    text = tables.page(measured, "the command")
    assert "`the command`; posterity " in text
    for line in ("## code data, mlp, 1 rounds", "## code data, mlp, 2 rounds", "### Table 1, label skew"):
        assert line in text
    assert "Rule of selection: none (the last round shown)" in text
    path = measured.folder("fedmap", "label", "code", "mlp", 0)
    held = next(x for x in scores(path, 2) if (x["point"], x["part"]) == ("trained", "held"))["clients"]
    ours = 100 * held["balanced_accuracy"][9]
    last = text[text.index("mlp, 2 rounds") :]
    row = next(line for line in last.splitlines() if line.startswith("| 10 |"))
    assert row.split(" | ")[2] == f"{ours:.1f} (76.32)"
    assert "| – (82.25) |" in text  # Table 3 was not run
    assert "FedBN = FedAvg, every client's number, in all 1 pairs of runs" in text
    assert "feature skew: nothing finished" in text
    assert tables.numbers(measured)["code"]["mlp"]["2"]["label"]["fedmap"][0] == held["balanced_accuracy"]


def test_fedbn_must_be_fedavg_without_norms(tables, measured):
    assert tables.check_fedbn(measured, "label", "code", 2) == 1
    path = measured.folder("fedbn", "label", "code", "mlp", 0) / files.METRICS
    lines = files.read_lines(path)
    for line in (x for x in lines if x["kind"] == "score"):
        line["clients"]["balanced_accuracy"][3] += 1e-9
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ValueError, match="FedBN must be FedAvg"):
        tables.page(measured, "")


def test_the_command_writes_both_pages(tables, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tables, "SKEWS", {"label": tables.SKEWS["label"]})
    monkeypatch.setattr(tables.Plan, "tasks", lambda plan: [plan.task("local", "label", "code", "mlp", 0)])
    words = ["--out", str(tmp_path), "--quick", "--seeds", "1", "--presets", "code", "--models", "mlp"]
    tables.main(words)
    assert capsys.readouterr().out.endswith(f"{tmp_path / 'tables.md'}\n")
    assert "--presets code" in (tmp_path / "tables.md").read_text()
    assert len(json.loads((tmp_path / "tables.json").read_text())["code"]["mlp"]["2"]["label"]["local"]["0"]) == 10


def test_orders_show_ties(tables):
    assert tables.order({"local": 0.5, "fedmap": 0.9, "fedavg": 0.7, "fedbn": 0.7}) == (
        "FedMAP > FedAvg = FedBN > Individual"
    )


def test_numbers_as_text(common):
    assert common.spread([0.5, 0.6, 0.7]) == "60.0 ± 10.0"
    assert common.spread([0.5]) == "50.0"
    assert common.spread([]) == "–"
    assert common.spread([1.0, float("nan"), 3.0], 1, 2) == "2.00 ± 1.41 (2 of 3 seeds)"
    assert common.beside("60.0", "61.23") == "60.0 (61.23)"
    assert common.beside("60.0", None) == "60.0"
    assert common.table(["", "a"], [["x", "1"]]) == "|  | a |\n| --- | --: |\n| x | 1 |\n"
