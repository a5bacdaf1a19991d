"""Published tables are what their raw metrics give: numbers in README and docs, made again from docs/results/raw."""

from __future__ import annotations

from pathlib import Path

import pytest

from posterity.report import headline, load_runs, main_comparison, verdict

ROOT = Path(__file__).parents[2]
RAW = ROOT / "docs" / "results" / "raw"


def row(page: str, first: str) -> str:
    """The first line of a page's tables that begins with this cell."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"| {first} |"))


@pytest.mark.parametrize("page", ["README.md", "docs/results/demo.md"])
def test_the_demo(page):
    for found in headline(load_runs(RAW / "demo.jsonl.gz")):
        shown = row(page, found.label)
        for key in ("accuracy", "nll", "ece", "worst10", "sd"):
            assert found.cells[key].text in shown, (found.label, key)


NAMES = {
    ("pFedVMP", "isotropic"): "pFedVMP, `isotropic`",
    ("pFedVMP", "count"): "pFedVMP, `count` (no precision: plain averages)",
    ("FedAvg-FT", None): "FedAvg-FT",
    ("FedPer", None): "FedPer",
}


@pytest.mark.parametrize(("rule", "column"), [("plain", 3), ("capped", 4)])
def test_cifar10(rule, column):
    rows = headline(load_runs(RAW / f"cifar10-{rule}.jsonl.gz"))
    for found in rows:
        run = found.arm.runs[0]
        cells = row("docs/results/cifar10.md", NAMES[run.label, run.fields.get("mode")]).split("|")
        assert cells[column].strip() == found.cells["accuracy"].text
    page = (ROOT / "docs/results/cifar10.md").read_text(encoding="utf-8")
    comparison = main_comparison(rows)
    for line in verdict.lines(comparison, list(comparison.pairs)):
        if "count" not in line.first.label:  # the page shows one of its three pairs
            assert f"{line.difference} ({line.interval}) | {line.p}" in page, (line.first.label, line.second.label)


def test_digits_with_ten_seeds():
    comparison = main_comparison(headline(load_runs(RAW / "digits-ten-seeds.jsonl.gz")))
    assert len(comparison.pairs) == 15
    for (i, j), pair in comparison.pairs.items():
        low, high = pair.interval
        cells = row("docs/results/comparisons.md", f"{comparison.rows[i].label} − {comparison.rows[j].label}").split(
            "|"
        )
        assert [c.strip() for c in (cells[2], cells[3])] == [
            f"{100 * pair.difference:+.2f}",
            f"{100 * low:+.2f} to {100 * high:+.2f}",
        ]


@pytest.mark.parametrize("path", sorted(RAW.glob("*.jsonl.gz")), ids=lambda p: p.name)
def test_raw_metrics_name_their_commit(path):
    assert all(run.facts["commit"] for run in load_runs(path))
