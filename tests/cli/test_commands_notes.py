"""What was noticed about files of one's own is said in the terminal, and not on the page alone."""

from __future__ import annotations

from pathlib import Path

import pytest

# copies, and a name in two ways
ROWS = [f"{'north' if i % 2 else 'North'},1,{i * i % 53},{i % 3 % 2}" for i in range(60)]
OWN = ("--dataset", "visits.csv", "--target", "ill", "--client-column", "site", "--rounds", "1", "--out", "runs")
CONSTANT, ALIKE, COPIES = ("note: 1 features have the same value", "note: the clients 'North' and 'north' differ",
                           "held-out rows equal a training row")  # fmt: skip


@pytest.fixture
def visits(tmp_path: Path) -> Path:
    path = tmp_path / "visits.csv"
    path.write_text("\n".join(["site,ward,age,ill", *ROWS]) + "\n")
    return path


def test_before_a_run(visits, call):
    code, printed, _ = call("run", "--method", "fedavg", "--quiet", *OWN)
    assert code == 0
    before = printed.partition("validated:")[0]
    assert [before.count(told) for told in (CONSTANT, ALIKE)] == [1, 1]
    assert COPIES in " ".join(before.split())


def test_after_a_comparison_each_once(visits, call):
    """Seeds hold other rows out, so that their counts of copies differ."""
    code, printed, _ = call("compare", "--methods", "local,fedavg", "--seeds", "0-2", "--jobs", "1", "--quiet", *OWN)
    assert code == 0
    said = " ".join(printed.partition("report:")[2].split())
    assert [said.count(told) for told in (CONSTANT, ALIKE, COPIES)] == [1, 1, 1]
    assert said.count("(other numbers with other seeds)") == 1


def test_published_data_are_known(call):
    small = ("--dataset", "digits", "--clients", "3", "--subset", "10%", "--rounds", "1", "--quiet", "--out", "runs")
    code, printed, _ = call("run", "--method", "local", *small)
    assert code == 0
    assert "Accuracy" in printed
    assert "note: subset" not in printed
    assert "subset: 180 of 1797 rows" in Path("runs/report.html").read_text()
