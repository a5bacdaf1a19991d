"""FedMAP's recipes on next to nothing: what is run, what is not run twice, and what the tables say."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from posterity.experiment.compare import Task
from posterity.runs import files
from posterity.runs import folder as run_folder
from posterity.settings.config import from_table, read_toml

ROOT = Path(__file__).parents[2]
OTHERS = ("fedmap@paper", "local", "fedprox", "fedbn", "fedavg")


def some(plan, skew):
    return [task for task in plan.tasks() if f"{skew} skew" in task.title]


def scores(path, round):
    lines = files.read_lines(path / run_folder.METRICS)
    return [x for x in lines if x["kind"] == "score" and x["round"] == round]


# --- the paper's numbers and settings ---------------------------------------------------------------------------------


def test_the_paper_is_copied_rightly(pages):
    """The specification's column means (erratum A7), which are not the printed averages."""
    means = {skew: {m: round(statistics.fmean(v), 2) for m, v in by.items()} for skew, by in pages.PAPER.items()}
    assert means["label"]["local"] == pytest.approx(73.89, abs=0.01)
    assert (means["feature"]["local"], means["feature"]["fedavg"]) == pytest.approx((83.80, 63.18), abs=0.01)
    expected = {"local": 74.27, "fedmap": 78.24, "fedbn": 63.62, "fedprox": 61.35, "fedavg": 61.54}
    assert means["quantity"] == pytest.approx(expected, abs=0.01)
    printed = {"label": {"fedmap": 80.39, "fedbn": 63.05, "fedprox": 53.71, "fedavg": 52.92}}
    printed["feature"] = {"fedmap": 86.27, "fedbn": 65.38, "fedprox": 63.00}  # where both agree
    for skew, by in printed.items():
        assert {m: means[skew][m] for m in by} == pytest.approx(by, abs=0.015)
    assert all(len(v) == 10 for by in pages.PAPER.values() for v in by.values())


def test_the_settings_are_the_issues(tables, tmp_path):
    (plan,) = tables.make_plans(tables.arguments(["--out", str(tmp_path)]))
    assert plan.marks == [20, 40, 60]
    assert len(plan.tasks()) == 2 * 2 * 3 * 3 * 6  # data, networks, seeds, skews, methods
    config = plan.config("fedprox", "label", "paper", "mlp_bn", 2)
    assert (config.lr, config.optimiser, config.batch_size, config.local_epochs) == (1e-3, "adam", 64, 50)
    assert (config.split, config.participation, config.seed) == ("70/30", "all", 2)
    assert config.settings() == {"mu": 2.0}
    assert config.settings("model") == {"hidden": "32,16", "unit": "true"}
    assert config.settings("data") == {"skew": "label", "preset": "paper", "samples": 2000}


def test_several_epochs_are_several_plans_with_folders_of_their_own(tables, tmp_path):
    words = ["--out", str(tmp_path), "--epochs", "1,3,50", "--rounds", "80", "--together", "--device", "cuda"]
    plans = tables.make_plans(tables.arguments([*words, "--presets", "code", "--methods", "local,fedmap"]))
    assert [(p.epochs, p.out) for p in plans] == [
        (1, tmp_path / "epochs-1"),
        (3, tmp_path / "epochs-3"),
        (50, tmp_path),
    ]
    tasks = plans[1].tasks()
    assert len(tasks) == 2 * 3 * 2  # networks, skews, methods: all seeds of one are one task
    assert [[c.seed for _, c in task.runs] for task in tasks] == [[0, 1, 2]] * 12
    assert {(c.local_epochs, c.rounds, c.device) for task in tasks for _, c in task.runs} == {(3, 80, "cuda")}


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
    pair = [run_folder.read_checkpoint(p.folder(*which)) for p in (short, long)]
    assert all(torch.equal(leaf, pair[1][0][name]) for name, leaf in pair[0][0].items())


def test_what_is_finished_is_not_run_again(tiny, common, tmp_path, capsys):
    plan = tiny(tmp_path, methods=("local", "fedavg"))
    tasks = some(plan, "label")
    common.perform(tasks[:1])
    stamp = (tasks[0].path / run_folder.METRICS).stat().st_mtime_ns
    capsys.readouterr()
    common.perform(tasks)
    assert (tasks[0].path / run_folder.METRICS).stat().st_mtime_ns == stamp
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
    other = Task(task.title, ((task.path, replace(task.config, lr=0.1)),))
    with pytest.raises(ValueError, match="holds a run with other settings"):
        common.perform([other])
    common.perform([Task(task.title, ((task.path, replace(task.config, engine="loop")),))])  # changes no result
    assert from_table(read_toml(task.path / run_folder.CONFIG)) == task.config
    with pytest.raises(ValueError, match="share a folder"):
        common.perform([task, task])


def test_a_failure_stops_no_other_run(tiny, common, tmp_path, capsys):
    plan = tiny(tmp_path)
    good, bad = (plan.task("local", "label", "code", "mlp", seed) for seed in (0, 1))
    bad = Task(bad.title, ((bad.path, replace(bad.config, model="no-such-network")),))
    with pytest.raises(RuntimeError, match="no-such-network"):
        common.perform([bad, good])
    assert common.reached(good.path) == 2
    assert "[1/2]" in capsys.readouterr().out


@pytest.mark.everything
def test_seeds_together_are_seeds_alone_and_are_not_run_again(tiny, common, tmp_path, capsys):
    """One seed was there before: the others run in one stack and end where they would alone, up to rounding."""
    one, two = (tiny(tmp_path / name, seeds=(0, 1, 2), methods=("fedmap",)) for name in ("alone", "together"))
    common.perform(some(one, "label"))
    common.perform(some(replace(two, seeds=(0,)), "label"))
    capsys.readouterr()
    task = some(replace(two, together=True), "label")
    common.perform(task)
    assert len(task) == 1
    assert capsys.readouterr().out.startswith("1 runs, 0 of them finished before")
    common.perform(task)
    assert capsys.readouterr().out == "1 runs, 1 of them finished before\n"
    for (a, _), (b, _) in zip([t.runs[0] for t in some(one, "label")], task[0].runs, strict=True):
        ours, theirs = (common.read_score(path, 2)["clients"]["balanced_accuracy"] for path in (a, b))
        assert ours == pytest.approx(theirs, abs=0.06)  # of 24 rows: one that lies on the boundary


@pytest.mark.everything
def test_two_at_once_give_the_same(tiny, common, tmp_path):
    plans = [tiny(tmp_path / name, methods=("local", "fedmap")) for name in ("one", "two")]
    for jobs, plan in enumerate(plans, 1):
        common.perform(some(plan, "label"), jobs)
    for one, two in zip(*(some(plan, "label") for plan in plans), strict=True):
        assert scores(one.path, 2) == scores(two.path, 2)


# --- tables -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured_once():
    return []


@pytest.fixture
def measured(tiny, common, tmp_path_factory, measured_once):
    """One seed of Table 1, the others not there yet; made once and only read."""
    if not measured_once:
        measured_once.append(tiny(tmp_path_factory.mktemp("measured")))
        common.perform(some(measured_once[0], "label"))
    return measured_once[0]


def test_the_page(tables, measured):
    lines = stored(tables.raw([measured]))
    text = tables.page(lines)
    assert "1. `" in text  # the source
    for line in ("## code's data, plain, 1 epoch, 1 rounds", "## code's data, plain, 1 epoch, 2 rounds"):
        assert line in text
    assert "Rule of selection: none (the last round shown)" in text
    path = measured.folder("fedmap", "label", "code", "mlp", 0)
    held = next(x for x in scores(path, 2) if (x["point"], x["part"]) == ("trained", "held"))["clients"]
    ours = 100 * held["balanced_accuracy"][9]
    last = text[text.index("## code's data, plain, 1 epoch, 2 rounds") :]
    row = next(line for line in last.splitlines() if line.startswith("| 10 |"))
    assert row.split(" | ")[2] == f"{ours:.1f} (76.32)"
    assert "FedBN = FedAvg, every client's number, in all 2 pairs" in text
    assert "feature skew: nothing finished" in text
    line = next(x for x in lines if x.get("method") == "fedmap")
    assert line["clients"]["2"] == [round(100 * v, 3) for v in held["balanced_accuracy"]]
    assert (line["epochs"], line["seed"], line["source"]) == (1, 0, 1)
    assert lines[0]["torch"] == torch.__version__


def stored(lines):
    """As read from a file: keys are words."""
    return [json.loads(json.dumps(line)) for line in lines]


def test_fedbn_must_be_fedavg_without_norms(tables, measured):
    lines = stored(tables.raw([measured]))
    for line in (x for x in lines if x.get("method") == "fedbn"):
        line["clients"]["2"][3] += 1e-9
    with pytest.raises(ValueError, match="FedBN must be FedAvg"):
        tables.page(lines)


def test_the_command_writes_the_page_and_its_numbers_and_reads_them_again(tables, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tables, "SKEWS", {"label": tables.SKEWS["label"]})
    words = ["--out", str(tmp_path), "--quick", "--seeds", "1", "--presets", "code", "--models", "mlp"]
    tables.main([*words, "--methods", "local", "--epochs", "1"])
    assert capsys.readouterr().out.endswith(f"{tmp_path / 'tables.md'}\n")
    source, run = files.read_lines(tmp_path / "tables.jsonl")
    assert (run["method"], run["source"], len(run["clients"]["2"])) == ("local", source["source"], 10)
    assert source["command"]
    tables.main(["--from", str(tmp_path / "tables.jsonl")])
    assert capsys.readouterr().out == (tmp_path / "tables.md").read_text() + "\n"


def test_the_published_numbers_give_the_published_tables(tables, pages):
    """Every row in the first part of docs/results/fedmap.md is a row that `--from` prints, and all runs are there."""
    lines = files.read_lines(ROOT / "docs/results/raw/fedmap.jsonl")
    found = pages.found_in(lines)
    page = (ROOT / "docs/results/fedmap.md").read_text()
    made = set(pages.page(lines).splitlines())
    first, found_mark, _ = page.partition("## 50 local epochs")
    shown = [line for line in first.splitlines() if line.startswith("| ") and " ± " in line]
    assert found_mark
    assert len(shown) > 60
    assert [line for line in shown if line not in made] == []
    for epochs, model, round, skew in product((1, 2, 3), ("mlp", "mlp_bn"), (20, 40, 60, 80), pages.SKEWS):
        columns = found[pages.Setting("code", model, epochs, round)][skew]
        assert {m: sorted(c) for m, c in columns.items()} == {m: [0, 1, 2] for m in pages.METHODS}
    assert pages.check_fedbn(found) == 225


def test_paired_differences_by_hand(pages):
    """Gaps 1, 2, 6: mean 3, sd √7, ± 4.303 √(7/3) = 6.57; a seed that only one has does not count."""
    first = {0: [51.0, 51.0], 1: [52.0, 52.0], 2: [55.0, 57.0], 3: [99.0, 99.0]}
    second = {0: [50.0, 50.0], 1: [49.0, 51.0], 2: [50.0, 50.0]}
    assert pages.difference(first, second) == "+3.0 [-3.6, +9.6]"
    assert pages.difference({0: [51.0]}, {0: [50.5]}) == "+0.5"
    assert pages.difference({}, {0: [50.5]}) == "–"


def test_distance_to_the_paper(pages):
    """A column 3 too high and four exact ones: √(9/5), and 3/5 of a point a client."""
    columns = {m: {0: v, 1: v} for m, v in pages.PAPER["label"].items()}
    assert pages.distance("label", columns) == pytest.approx((0.0, 0.0), abs=1e-12)
    columns["fedavg"] = {0: [v + 3 for v in pages.PAPER["label"]["fedavg"]]}
    assert pages.distance("label", columns) == pytest.approx(((9 / 5) ** 0.5, 0.6))
    del columns["fedprox"]
    assert pages.distance("label", columns) is None


def test_orders_show_ties(pages):
    assert pages.order({"local": 0.5, "fedmap": 0.9, "fedavg": 0.7, "fedbn": 0.7}) == (
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
