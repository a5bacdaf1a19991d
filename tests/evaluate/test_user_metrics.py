"""A metric from outside: one file in some folder, used from the command line, in lines, tables and on the page."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import cohen_kappa_score
from torch import Tensor

import posterity
from posterity.evaluate import METRICS, Metric, Statistics, check_task, load_metrics, score, summarise, user_sums
from posterity.report import columns, headline, load_runs, write_report
from posterity.report.show import plot
from posterity.report.table import table_columns
from posterity.runs import files

from .samples import predictions

SOURCE = '''
"""Cohen's kappa: agreement of prediction and label beyond chance."""

import torch

from posterity.evaluate import Metric


def guesses(outputs, y):
    return torch.nn.functional.one_hot(outputs.argmax(1), outputs.shape[1])  # (N, classes)


def value(statistics):
    scores, said = statistics.scores, statistics.sums["kappa"]
    n = torch.where(scores.n > 0, scores.n, torch.nan)
    chance = (scores.support * said).sum(1) / n.square()
    return (scores.correct / n - chance) / (1 - chance)


kappa = Metric("kappa", "Kappa", "higher", value, task="classification", row_sums=guesses,
               meaning="agreement beyond chance; 1 is perfect.")
worst = Metric("worst_recall", "Worst recall", "higher", lambda s: s.recall.nan_to_num(1.0).amin(1), scope="clients")
whole = Metric("whole", "Whole NLL", "lower", lambda s: s.scores.nll / s.scores.n, scope="pooled", table="further")
nothing = 3
taken = Metric("ece", "ECE", "lower", value)
odd = Metric("two words", "Odd", "lower", value)
only_two = Metric("only_two", "Only two", "lower", value, task="classification", classes=2)
'''
FLAGS = ["--dataset", "digits", "--clients", "4", "--subset", "20%", "--lr", "0.1", "--engine", "stacked", "--quiet"]
NAMES = "my_metrics:kappa, my_metrics:worst,my_metrics:whole"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one file, and two runs made there from the command line."""
    home = tmp_path_factory.mktemp("home")
    (home / "my_metrics.py").write_text(SOURCE)
    command(home, "compare", "--methods", "fedavg,local", "--seeds", "0", "--rounds", "2", "--evaluate-every", "1",
            *FLAGS, "--metrics", NAMES, "--jobs", "1", "--out", "both")  # fmt: skip
    return home


@pytest.fixture
def beside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder, on the path of this process, too."""
    monkeypatch.syspath_prepend(str(folder))
    return folder


def command(home: Path, *words: str, code: int = 0) -> str:
    """What `posterity …` prints, called in a folder."""
    path = os.pathsep.join([str(Path(posterity.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    told = {**os.environ, "PYTHONPATH": path, "COLUMNS": "220", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-m", "posterity", *words], cwd=home, env=told, text=True,
                          capture_output=True, check=False)  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def here(folder: Path, call: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """`command` in this process, which does not know the file yet."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "220")
    monkeypatch.delitem(sys.modules, "my_metrics", raising=False)

    def run(*words: str, code: int = 0) -> str:
        found, out, err = call(*words)
        assert found == code, err
        return str(out + err)

    return run


def test_the_lines_have_it(folder: Path) -> None:
    text = (folder / "both" / "fedavg" / "seed-0" / "metrics.jsonl").read_text()
    lines = [line for line in map(json.loads, text.splitlines()) if line["kind"] == "score"]
    assert lines
    for line in lines:
        assert list(line["metrics"])[-3:] == ["kappa", "whole", "worst_recall"]
        assert set(line["metrics"]["kappa"]) == {"pooled", "mean", "train_weighted", "clients"}
        assert set(line["metrics"]["worst_recall"]) == {"mean", "train_weighted", "clients"}
        assert set(line["metrics"]["whole"]) == {"pooled"}
        assert line["metrics"]["whole"]["pooled"] == line["metrics"]["nll"]["pooled"]
        assert list(line["clients"])[-2:] == ["kappa", "worst_recall"]
        assert len(line["clients"]["kappa"]) == 4
        assert line["metrics"]["kappa"]["mean"] == pytest.approx(sum(line["clients"]["kappa"]) / 4)


def test_the_module_may_be_absent_where_the_run_is_reported(
    folder: Path, here: Callable[..., str], tmp_path: Path
) -> None:
    os.rename(folder / "my_metrics.py", tmp_path / "elsewhere.py")
    try:
        told = here("report", "both")
        page = (folder / "both" / "report.html").read_text()
        values = json.loads(here("report", "both", "--json"))["rows"][0]["values"]
    finally:
        os.rename(tmp_path / "elsewhere.py", folder / "my_metrics.py")
    assert "my_metrics" not in sys.modules
    assert "Kappa" in told
    assert "Worst recall" in told
    assert "Whole NLL" not in told  # for the table of further metrics
    for text in ("Kappa", "Worst recall", "Whole NLL", "agreement beyond chance; 1 is perfect."):
        assert text in page
    assert math.isfinite(values["kappa"]["mean"])
    rows = headline(load_runs(folder / "both"))
    assert {c.key: c.better for c in columns(rows)}["kappa"] == 1
    best = max(rows, key=lambda row: row.cells["kappa"].mean)
    assert best.cells["kappa"].best


def test_it_can_be_drawn_whatever_it_is_of(folder: Path) -> None:
    """What each client has is drawn as the table has it: the mean over clients; there is no value of all rows."""
    runs = load_runs(folder / "both" / "fedavg")
    for name in ("kappa", "worst_recall", "whole"):
        assert "FedAvg" in plot(runs, name).svg


@pytest.mark.everything
def test_a_run_resumes_with_it_and_gives_its_value(beside: Path, here: Callable[..., str]) -> None:
    here("run", "--method", "fedavg", "--rounds", "3", "--evaluate-every", "1", *FLAGS, "--metrics",
         "my_metrics:kappa", "--out", "one")  # fmt: skip
    whole = posterity.load(beside / "one", trust=True)
    assert 'metrics = "my_metrics:kappa"' in (beside / "one" / "config.toml").read_text()
    path = beside / "one"
    files.write_json(path / "run.json", {**files.read_json(path / "run.json"), "status": "running"})
    for name in ("checkpoint.safetensors", "checkpoint.previous.safetensors", "metrics.jsonl"):
        (path / name).unlink()  # a kill before the first checkpoint
    command(beside, "resume", "one", "--quiet", "--trust")
    again = posterity.load(path, trust=True)
    assert again.metric("kappa") == whole.metric("kappa")
    assert again.clients()["kappa"] == whole.clients()["kappa"]
    assert whole.metric("kappa", "mean") == pytest.approx(sum(whole.clients()["kappa"]) / 4)


def test_without_it_nothing_is_said(tmp_path: Path) -> None:
    found = posterity.run(method="fedavg", dataset="digits", clients=3, subset="20%", rounds=1, out=tmp_path / "one")
    assert found.folder is not None
    assert "metrics" not in json.loads((found.folder / "run.json").read_text())
    assert "metrics" not in (found.folder / "config.toml").read_text()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("no_such_module:kappa", "there is no module 'no_such_module'"),
        ("my_metrics:nothing", "is a .* and no posterity.evaluate.Metric"),
        ("my_metrics:missing", "is a .* and no posterity.evaluate.Metric"),
        ("my_metrics", "takes package.module:name"),
        ("my_metrics:taken", "'ece' .* is taken"),
        ("my_metrics:kappa,my_metrics:kappa", "'kappa' .* is taken"),
        ("my_metrics:odd", "must be a word"),
    ],
)
def test_mistakes_are_told(beside: Path, given: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        load_metrics(given)


def test_the_command_line_tells_a_mistake_in_a_sentence(folder: Path, here: Callable[..., str]) -> None:
    told = here("run", *FLAGS, "--metrics", "my_metrics:only_two", "--out", "none", code=2)
    assert (
        told
        == "error: metric 'only_two' is for classification with 2 classes; this is a classification with 10 classes\n"
    )
    assert not (folder / "none").exists()


def test_a_metric_for_other_data_is_refused(beside: Path) -> None:
    (kappa,) = load_metrics("my_metrics:kappa")
    check_task([kappa], "classification", 7)
    with pytest.raises(ValueError, match="for classification; this is a regression"):
        check_task([kappa], "regression", 0)
    with pytest.raises(ValueError, match="two classes only"):
        check_task([replace(kappa, source="rows")], "classification", 3)


def test_no_name_of_a_column_is_free(beside: Path) -> None:
    (kappa,) = load_metrics("my_metrics:kappa")
    import my_metrics  # type: ignore[import-not-found]

    names = {column.key for table in ("main", "further") for column in table_columns([], table)}
    for name in sorted(names | {metric.name for metric in METRICS} | {"n"}):
        my_metrics.other = replace(kappa, name=name)
        with pytest.raises(ValueError, match="is taken"):
            load_metrics("my_metrics:other")


def test_sums_are_added_over_clients_and_parts_of_the_data(beside: Path) -> None:
    """Against scikit-learn: per client, pooled, and with the rows scored in two pieces."""
    (kappa,) = load_metrics("my_metrics:kappa")
    logs, y, offsets = predictions([60, 0, 200], 5)
    scores = score(logs, y, offsets, 5, "classification")
    sums = user_sums([kappa], logs, y, offsets, "classification")
    found = summarise(scores, torch.ones(3), own=sums)["kappa"]
    each = [cohen_kappa_score(y[a:b], logs[a:b].argmax(1)) for a, b in ((0, 60), (60, 260))]
    assert found["pooled"] == pytest.approx(cohen_kappa_score(y, logs.argmax(1)), abs=1e-12)
    assert found["mean"] == pytest.approx(sum(each) / 2, abs=1e-12)
    assert found["clients"] == 2
    first = user_sums([kappa], logs[:60], y[:60], offsets.clamp(max=60), "classification")
    rest = user_sums([kappa], logs[60:], y[60:], (offsets - 60).clamp(min=0), "classification")
    torch.testing.assert_close(first[kappa] + rest[kappa], sums[kappa], rtol=0, atol=0)


def _wide(statistics: Statistics) -> Tensor:
    return statistics.recall


def test_a_value_of_another_shape_is_named() -> None:
    logs, y, offsets = predictions([20, 30], 4)
    scores = score(logs, y, offsets, 4, "classification")
    wide = Metric("wide", "Wide", "higher", _wide)
    with pytest.raises(ValueError, match=r"'wide' must give one value per client, a tensor \(2,\); it gave \(2, 4\)"):
        summarise(scores, torch.ones(2), own=user_sums([wide], logs, y, offsets, "classification"))
    short = replace(wide, row_sums=lambda outputs, y: outputs[:3])
    with pytest.raises(ValueError, match=r"row_sums of metric 'wide' must give a tensor \(50,\)"):
        user_sums([short], logs, y, offsets, "classification")
    with pytest.raises(ValueError, match="'higher', 'lower' or a number"):
        Metric("up", "Up", "up", _wide)  # type: ignore[arg-type]


def test_a_target_is_shown_and_not_ranked(beside: Path, tmp_path: Path) -> None:
    """A metric that should come close to a value (a slope of 1) marks nobody as the best."""
    run = json.loads((beside / "both" / "fedavg" / "seed-0" / "run.json").read_text())
    run["metrics"][0]["better"] = 1.0
    for name in ("fedavg", "local"):
        there, here = beside / "both" / name / "seed-0", tmp_path / name
        here.mkdir()
        (here / "run.json").write_text(
            json.dumps({**json.loads((there / "run.json").read_text()), "metrics": run["metrics"]})
        )
        for file in ("config.toml", "metrics.jsonl"):
            (here / file).write_text((there / file).read_text())
    rows = headline(load_runs(tmp_path))
    assert not any(row.cells["kappa"].best for row in rows)
    assert write_report(tmp_path).exists()
