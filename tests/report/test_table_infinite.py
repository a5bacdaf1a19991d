"""A seed whose NLL is infinite takes part in its mean: in tables, files, pages and drawings, which do not break."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from posterity.cli import terminal as show
from posterity.experiment.results import Results
from posterity.report import columns, finding, headline, load_runs, pack_runs, write_report
from posterity.report.show import FORMS
from posterity.report.table import select_round, summarise, table_columns
from posterity.runs.read import Run

from .fake_runs import comparison


def lose(folder: Path, metric: str, client: int = 0) -> None:
    """A client whose score is infinite in every round, and so all rows' together."""
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in (x for x in lines if x["kind"] == "score"):
        count = len(line["clients"]["n"])
        line["metrics"][metric] = {"pooled": "inf", "mean": "inf", "train_weighted": "inf", "clients": float(count)}
        line["clients"][metric][client] = "inf"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = comparison(tmp_path / "runs", {"fedavg": 0.7, "fedper": 0.8, "local": 0.6})
    lose(root / "fedper" / "seed-1", "nll")
    return root


def row_of(runs: list[Run], label: str) -> Any:
    return next(row for row in headline(runs) if row.label == label)


@pytest.mark.parametrize("packed", [False, True])
def test_the_mean_is_infinite_and_the_client_is_named(folder: Path, tmp_path: Path, packed: bool) -> None:
    runs = load_runs(pack_runs(folder, tmp_path / "runs.jsonl.xz") if packed else folder)
    cell = row_of(runs, "FedPer").cells["nll"]
    assert (cell.text, cell.n, cell.best) == ("∞", 3, False)
    lost = next(run for run in runs if (run.label, run.seed) == ("FedPer", 1))
    selected = select_round(lost, "validated")
    assert selected is not None
    values = selected.by_client("nll")
    assert values[0] == math.inf
    assert all(v is not None and math.isfinite(v) for v in values[1:])


def test_who_has_no_rows_is_not_infinite(folder: Path) -> None:
    path = folder / "fedavg" / "seed-0" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in (x for x in lines if x["kind"] == "score"):
        line["metrics"]["nll"] = {"pooled": None, "mean": None, "train_weighted": None, "clients": 0.0}
        line["clients"]["n"][0], line["clients"]["nll"][0] = 0, None
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    runs = load_runs(folder)
    assert row_of(runs, "FedAvg").cells["nll"].n == 2
    selected = select_round(next(r for r in runs if r.label == "FedAvg" and r.seed == 0), "validated")
    assert selected is not None
    assert selected.by_client("nll")[0] is None


def test_every_form_of_the_table_has_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = headline(load_runs(folder))
    shown = [c for c in columns(rows) if c.key in ("accuracy", "nll")]
    assert "∞" in FORMS["markdown"](rows, shown)
    assert r"$\infty$" in FORMS["latex"](rows, shown)
    table = {line["method"]: line for line in csv.DictReader(io.StringIO(FORMS["csv"](rows, shown)))}
    assert (float(table["FedPer"]["nll"]), table["FedPer"]["nll_sd"]) == (math.inf, "")
    made = Results(tuple(load_runs(folder))).to_dict()
    assert [v for m, v in zip(made["method"], made["nll"], strict=True) if m == "FedPer"][1] == math.inf
    show.print_json(folder, "validated", None)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    told = json.loads(capsys.readouterr().out, parse_constant=refuse)
    value = next(row for row in told["rows"] if row["method"] == "FedPer")["values"]["nll"]
    assert (value["mean"], value["sd"], value["seeds"]["1"]) == (None, None, None)  # as in metrics.jsonl
    assert set(value["seeds"]) == {"0", "1", "2"}


def test_pages_tables_and_drawings_do_not_break(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = write_report(folder).read_text(encoding="utf-8")
    assert "∞" in page
    assert not re.search(r"\b(nan|inf)\b", page)
    show.print_table(folder, "validated")
    assert "∞" in capsys.readouterr().out
    assert not re.search(r"\b(nan|inf)\b", Results(tuple(load_runs(folder))).plot("nll").svg)


def test_an_infinite_error_of_one_client_is_in_its_table_and_not_drawn(tmp_path: Path) -> None:
    root = comparison(tmp_path, {"fedavg": 0.7, "fedper": 0.8}, 2, task="regression", newcomers=4)
    lose(root / "fedper" / "seed-1", "mse", client=2)
    rows = headline(load_runs(root))
    assert {row.label: row.cells["mse"].text for row in rows}["FedPer"] == "∞"
    assert "FedAvg" in finding(rows)
    said = "MSE inf at round 2, inf at the first"
    page = write_report(root).read_text(encoding="utf-8")
    assert said in page  # such a run has exploded
    assert page.count("∞") > 5
    assert not re.search(r"\b(nan|inf)\b", page.replace(said, ""))


def test_a_gap_between_infinities_is_none_and_others_have_a_sign() -> None:
    column = next(c for c in table_columns(()) if c.key == "mse")
    gap = {v: summarise(v, column) for v in ((math.nan,), (math.inf, -math.inf), (-math.inf, 1.0), (math.nan, 1.0))}
    assert [cell and cell.text for cell in gap.values()] == [None, None, "−∞", "1.000"]
