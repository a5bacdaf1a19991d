"""What a terminal of 80 columns, a repository, a paper and a program are given: the same numbers, nothing acted on."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report.fake_runs import comparison, write_run

from posterity.cli import terminal as progress
from posterity.cli import terminal as show
from posterity.cli.flags import Output, check_output, split_metrics
from posterity.report import columns, headline, load_runs
from posterity.report.page import render
from posterity.runs.lines import RoundLine, ScoreLine


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two classes, three methods, three seeds: the table with most columns."""
    return comparison(tmp_path / "two", {"fedavg": 0.8, "fedper": 0.85, "local": 0.7}, classes=2, rounds=6)


def shown(folder: Path, capsys: Any, monkeypatch: Any, width: int = 80, **asked: Any) -> str:
    monkeypatch.setattr(show.console, "_width", width)
    monkeypatch.setattr(show.console, "_height", 60)
    show.show_runs(folder, Output(**asked), None)
    return str(capsys.readouterr().out)


def head(out: str) -> str:
    return next(line for line in out.splitlines() if "scored at" in line)


def test_two_classes_fit_80_columns(two: Path, capsys: Any, monkeypatch: Any) -> None:
    out = shown(two, capsys, monkeypatch)
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    assert all(word in head(out) for word in ("Accuracy, %", "AUROC", "NLL"))
    cells = [row.cells["accuracy"].text for row in headline(load_runs(two))]
    assert all(cell in out for cell in cells)
    left = re.sub(r"\s+", " ", out).partition("also measured (--wide, or by name with --metrics): ")[2]
    assert left.startswith("balanced_accuracy, sensitivity, specificity, brier")


def test_wide_has_every_column_uncut(two: Path, capsys: Any, monkeypatch: Any) -> None:
    out = shown(two, capsys, monkeypatch, wide=True)
    assert "…" not in out
    for column in columns(headline(load_runs(two))):
        assert column.heading.replace(" per ", "/") in head(out)
    assert "also measured" not in out


def test_columns_by_name_in_their_order(two: Path, capsys: Any, monkeypatch: Any) -> None:
    out = shown(two, capsys, monkeypatch, metrics=("mce", "accuracy", "mse"))
    assert re.search(r"scored at\s+MCE\s+Accuracy, %\s*$", head(out))
    assert "not measured here: mse" in out


def test_names_of_columns_and_metrics_of_your_own() -> None:
    assert split_metrics(None) == ((), None)
    assert split_metrics("mine:a, yours:b") == ((), "mine:a,yours:b")  # these only add to the usual columns
    assert split_metrics("ece,mine:a") == (("ece", "mine:a"), "mine:a")
    with pytest.raises(ValueError, match="--metrics takes a comma-separated list of names"):
        split_metrics(" , ")
    with pytest.raises(ValueError, match="no metric 'acuracy': did you mean 'accuracy'"):
        check_output(Output(metrics=("acuracy",)))


def test_a_metric_of_your_own_stands_for_its_column(tmp_path: Path, monkeypatch: Any) -> None:
    text = "from posterity.evaluate import Metric\nkappa = Metric('cohen', 'Cohen', 'higher', lambda s: s.n)\n"
    (tmp_path / "kappas_of_mine.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    columns, theirs = split_metrics("ece,kappas_of_mine:kappa")
    assert theirs == "kappas_of_mine:kappa"
    assert check_output(Output(metrics=columns)).metrics == ("ece", "cohen")


def test_markdown_latex_and_csv_have_the_numbers_of_the_table(two: Path, capsys: Any, monkeypatch: Any) -> None:
    rows = headline(load_runs(two))
    first = rows[0]
    text = first.cells["accuracy"].text
    md = shown(two, capsys, monkeypatch, form="markdown").splitlines()
    assert md[0].startswith("| Method | scored at | seeds | Accuracy, % |")
    assert f"| **{text}** |" in md[2]
    assert len({line.count("|") for line in md[:5]}) == 1
    assert "over 3 seeds" in md[-1]
    tex = shown(two, capsys, monkeypatch, form="latex")
    assert "\\textbf{" + text.replace("±", "$\\pm$") + "}" in tex
    body = [line for line in tex.splitlines() if line.endswith(r"\\")]
    assert {line.count("&") for line in body} == {len(columns(rows)) + 2}
    assert r"Worst 10 \%" in tex
    read = list(csv.DictReader(io.StringIO(shown(two, capsys, monkeypatch, form="csv"))))
    assert [line["method"] for line in read] == [row.label for row in rows]
    assert float(read[0]["accuracy"]) == first.cells["accuracy"].mean
    assert float(read[0]["accuracy_sd"]) == first.cells["accuracy"].sd
    few = shown(two, capsys, monkeypatch, form="csv", metrics=("ece",))
    assert few.splitlines()[0] == "method,point,rule,seeds,ece,ece_sd"


def test_json_has_the_value_of_every_seed(two: Path, capsys: Any, monkeypatch: Any) -> None:
    facts = json.loads(shown(two, capsys, monkeypatch, form="json"))
    for row in facts["rows"]:
        for name in ("accuracy", "ece", "mce", "bytes"):
            value = row["values"][name]
            assert set(value["seeds"]) == {"0", "1", "2"}
            assert sum(value["seeds"].values()) / 3 == pytest.approx(value["mean"])


HOSTILE = "\x1b]0;owned\x07\x1b[31m[bold]=Fed|Avg_&%$[/bold]\u202e"


def test_a_hostile_label_acts_nowhere(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    folder = write_run(tmp_path / "a" / "seed-0", "fedavg", 0.8, 0, rounds=4)
    write_run(tmp_path / "b" / "seed-0", "fedper", 0.7, 0, rounds=4)
    facts = json.loads((folder / "run.json").read_text())
    facts["method"]["label"] = HOSTILE
    (folder / "run.json").write_text(json.dumps(facts))
    for form in ("table", "json", "markdown", "latex", "csv"):
        out = shown(tmp_path, capsys, monkeypatch, 120, form=form)
        assert not {*out} & {"\x1b", "\x07", "\u202e"}, form
        assert "owned" in out
        if form == "table":
            assert "[bold]=Fed|Avg_" in out  # as it was written, no markup
        if form == "markdown":
            assert r"\[bold\]=Fed\|Avg\_&%$" in out
        if form == "latex":
            assert r"[bold]=Fed\textbar{}Avg\_\&\%\$" in out


def test_a_spreadsheet_takes_no_label_for_a_formula(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    folder = write_run(tmp_path / "a" / "seed-0", "fedavg", 0.8, 0, rounds=4)
    text = (folder / "run.json").read_text().replace('"label": "FedAvg"', '"label": "=cmd()"')
    (folder / "run.json").write_text(text)
    out = shown(tmp_path, capsys, monkeypatch, form="csv")
    assert out.splitlines()[1].startswith("'=cmd(),")


def exploded(folder: Path, nll: float) -> None:
    """As `fedavg --lr 1e4` left it."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "score":
            line["metrics"]["nll"]["pooled"] = nll
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_an_exploded_run_is_no_result(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    comparison(tmp_path, {"fedavg": 0.9, "local": 0.5, "fedper": 0.4}, seeds=2, rounds=4)
    for seed in (0, 1):
        exploded(tmp_path / "fedavg" / f"seed-{seed}", 3.8e8)
    rows = headline(load_runs(tmp_path))
    assert [row.label for row in rows] == ["Local", "FedPer", "FedAvg"]  # its accuracy was the highest
    assert rows[-1].mark == "diverged"
    assert rows[-1].cells["nll"].text == "3.8e+08 ± 0.000"
    assert not any(cell.best for cell in rows[-1].cells.values())
    out = re.sub(r"\s+", " ", shown(tmp_path, capsys, monkeypatch))
    assert "FedAvg (diverged)" in out
    assert "FedAvg diverged (seed 0: NLL 3.8e+08 at round 4; seed 1: NLL 3.8e+08 at round 4)" in out
    assert "Local has the highest accuracy" in out
    assert "FedAvg diverged (seed 0: NLL 3.8e+08" in render(load_runs(tmp_path))
    facts = json.loads(shown(tmp_path, capsys, monkeypatch, form="json"))
    assert facts["rows"][-1]["mark"] == "diverged"
    assert len(facts["diverged"]) == 1


def test_one_exploded_seed_and_all_exploded(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    comparison(tmp_path, {"fedavg": 0.9}, seeds=2, rounds=4)
    exploded(tmp_path / "fedavg" / "seed-1", 3e3)
    assert headline(load_runs(tmp_path))[0].mark == "1 of 2 seeds diverged"
    assert "runs diverged" in shown(tmp_path, capsys, monkeypatch)
    exploded(tmp_path / "fedavg" / "seed-0", 3e3)
    assert "runs diverged" in shown(tmp_path, capsys, monkeypatch)
    for seed in (0, 1):
        exploded(tmp_path / "fedavg" / f"seed-{seed}", 5.0)  # overconfident and wrong is a result
    assert headline(load_runs(tmp_path))[0].mark == ""


def test_a_run_that_says_so_is_believed(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    folder = write_run(tmp_path / "a" / "seed-0", "fedavg", 0.8, 0, rounds=4)
    facts = json.loads((folder / "run.json").read_text())
    why = "the run came to nothing: 3 of 4 rounds were rolled back; lower the step size (--lr)"
    (folder / "run.json").write_text(json.dumps({**facts, "diverged": why}))
    assert headline(load_runs(tmp_path))[0].mark == "diverged"
    out = re.sub(r"\s+", " ", shown(tmp_path, capsys, monkeypatch))
    assert f"FedAvg diverged (seed 0: {why}): its numbers are no result and are not ranked." in out
    assert out.count("--lr") == 1


def test_one_method_twice_has_two_labels(tmp_path: Path) -> None:
    for number, mu in enumerate(("0.1", "1", None)):
        folder = write_run(tmp_path / str(number) / "seed-0", "fedavg", 0.5, 0, rounds=4)
        if mu is not None:
            with (folder / "config.toml").open("a") as file:
                file.write(f"\n[set]\nmu = {mu}\n")
    assert sorted(row.label for row in headline(load_runs(tmp_path))) == ["FedAvg", "FedAvg (mu 0.1)", "FedAvg (mu 1)"]


def test_labels_differ_even_where_three_settings_do_not_tell(tmp_path: Path) -> None:
    for number, values in enumerate(((1, 1, 1, 1), (1, 1, 1, 2), (2, 2, 2, 2), ('"1"', 1, 1, 1))):
        folder = write_run(tmp_path / str(number) / "seed-0", "fedavg", 0.5, 0, rounds=4)
        with (folder / "config.toml").open("a") as file:
            file.write("\n[set]\n" + "".join(f"{n} = {v}\n" for n, v in zip("abcd", values, strict=True)))
    labels = [row.label for row in headline(load_runs(tmp_path))]
    assert len(set(labels)) == 4, labels


def score(point: str, value: float | None) -> ScoreLine:
    return ScoreLine(1, point, 0, "members", "validation", {"accuracy": {"pooled": value}}, {}, {}, [], [])


ROUND = RoundLine(1, 4, 4, (), False, 0.5, 0, 0, 1.0, {})
SCORES = [ROUND, score("trained", 0.8312), score("received", None)]


def test_progress_into_a_file_is_plain_labelled_lines(capsys: Any, monkeypatch: Any) -> None:
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)) + 1)
    with progress.progress("fedavg[mu]\x1b seed 0", 6, quiet=False) as watch:
        for number in range(1, 7):
            watch(number, 6, SCORES if number == 1 else SCORES[:1])
    lines = capsys.readouterr().out.splitlines()
    told = [re.search(r"round (\d) of 6", line) for line in lines]
    assert [match[1] for match in told if match] == ["1", "3", "5", "6"]  # every ten seconds, and the last
    assert all(line.startswith("fedavg[mu]\\x1b seed 0: round") for line in lines)
    assert all("validation accuracy undefined (received), 0.831 (trained), " in line for line in lines)
    assert "clients/s" in lines[0]


def test_what_several_runs_note_alike_is_said_once(capsys: Any) -> None:
    noted = [replace(ROUND, notes=("evaluated every 5 rounds",))]
    with progress.progress("2 runs", 4, quiet=False) as watch:
        for number in range(1, 5):
            watch(number, 4, noted if number < 3 else [replace(noted[0], round=number, rolled_back="nan")])
    out = capsys.readouterr().out
    assert out.count("round 1: evaluated every 5 rounds") == 1
    assert out.count("rolled back, nan") == 2


def test_quiet_is_quiet(capsys: Any) -> None:
    with progress.progress("fedavg", 6, quiet=True) as watch:
        watch(1, 6, SCORES)
    assert capsys.readouterr().out == ""


def test_a_live_line_is_labelled(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(show.console, "_force_terminal", True)
    monkeypatch.setattr(show.console, "_width", 140)
    monkeypatch.setattr(show.console, "_height", 60)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(show.console, "_environ", {"TERM": "xterm"})
    with progress.progress("fedavg", 2, quiet=False) as watch:
        watch(1, 2, SCORES)
        watch(2, 2, SCORES)
    assert "validation accuracy undefined (received), 0.831 (trained)" in capsys.readouterr().out
