"""Every client under every method: whose numbers stand in a row, when seeds share a table, who is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from posterity.report import headline, load_runs, write_report
from posterity.report.sections import CELLS, LINES, TABLES, ClientTable, describe_tables, member_tables, newcomer_tables

from .fake_runs import comparison, write_exact
from .handmade import run_of, scored


def tables(folder: Path, show: str = "validated") -> list[ClientTable]:
    return member_tables(headline(load_runs(folder), show))


def sentences(folder: Path) -> str:
    return " ".join(describe_tables(tables(folder)))


def named(folder: Path, method: str, seed: int, values: list[float | None], sizes: list[int]) -> None:
    """A run of hospitals whose chosen round is 2; round 4 would tell another story."""
    mine = {"clients": {"n": sizes, "accuracy": values}}
    other = {"clients": {"n": [1, 1, 1], "accuracy": [0.0, 0.0, 0.0]}}
    level = sum(v or 0.0 for v in values) / len(values)
    lines = [scored(2, 0.9, "validation"), scored(2, level, **mine), scored(4, 0.1, "validation"),
             scored(4, 0.9, **other)]  # fmt: skip
    run_of(folder / method / str(seed), lines, method, seed)


def test_a_row_is_a_client_at_the_chosen_round_over_seeds(tmp_path: Path) -> None:
    named(tmp_path, "fedavg", 0, [0.9, 0.1, 0.5], [10, 20, 30])
    named(tmp_path, "fedavg", 1, [0.7, 0.3, None], [10, 22, 0])
    named(tmp_path, "fedper", 0, [0.2, 0.2, 0.2], [10, 20, 30])
    (table,) = tables(tmp_path)
    assert [arm.label for arm in table.arms] == ["FedAvg", "FedPer"]  # best first, as in the headline
    assert table.seeds == (0, 1)
    shown = [(line.name, line.rows, [cell.text if cell else None for cell, _ in line.cells]) for line in table.lines]
    assert shown == [
        ("hospital 1", "20–22", ["20.0 ± 14.1", "20.0"]),
        ("hospital 2", "0–30", ["50.0", "20.0"]),
        ("hospital 0", "10", ["80.0 ± 14.1", "20.0"]),
    ]


def test_a_page_says_by_whom_the_clients_of_every_table_are_ordered(tmp_path: Path) -> None:
    """FedPer leads, but FedAvg alone ran seed 0: its table is in FedAvg's order."""
    write_exact(tmp_path, "fedavg", {0: [0.5, 0.6], 1: [0.5, 0.6]})
    write_exact(tmp_path, "fedper", {1: [0.9, 0.8]})
    assert [table.arms[0].label for table in tables(tmp_path)] == ["FedAvg", "FedPer"]
    assert "Worst served by the first method of a table first." in write_report(tmp_path).read_text(encoding="utf-8")
    write_exact(tmp_path, "fedper", {0: [0.9, 0.8]})
    assert "Worst served by FedPer first." in write_report(tmp_path).read_text(encoding="utf-8")


def test_tints_run_from_the_lowest_to_the_highest_value(tmp_path: Path) -> None:
    named(tmp_path, "fedavg", 0, [1.0, 0.0, 0.5], [10, 20, 30])
    assert [tint for line in tables(tmp_path)[0].lines for _, tint in line.cells] == [0, 3, 6]
    named(tmp_path, "fedavg", 0, [0.5, 0.5, 0.5], [10, 20, 30])
    assert {tint for line in tables(tmp_path)[0].lines for _, tint in line.cells} == {3}


def test_who_was_not_scored_has_no_number(tmp_path: Path) -> None:
    named(tmp_path, "fedavg", 0, [0.9, None, 0.5], [10, 0, 30])
    (table,) = tables(tmp_path)
    assert [line.name for line in table.lines] == ["hospital 2", "hospital 0"]
    assert (table.clients, table.unscored, len(table.lines)) == (2, 1, 2)
    assert "Not scored, and not listed: 1 clients" in sentences(tmp_path)
    named(tmp_path, "fedper", 0, [0.9, 0.2, 0.5], [10, 5, 30])
    last = tables(tmp_path)[0].lines[-1]
    assert (last.name, [cell and cell.text for cell, _ in last.cells]) == ("hospital 0", ["90.0", "90.0"])


def test_of_a_sample_of_clients_those_are_shown_that_were_scored(tmp_path: Path) -> None:
    values = [0.5 + k / 1000 if k % 3 == 0 else None for k in range(300)]
    named(tmp_path, "fedavg", 0, values, [10 if v else 0 for v in values])
    (table,) = tables(tmp_path)
    assert (len(table.lines), table.clients, table.unscored) == (LINES, 100, 200)
    assert all(line.cells[0][0] is not None for line in table.lines)


def test_of_an_error_the_highest_is_the_worst(tmp_path: Path) -> None:
    write_exact(tmp_path, "fedavg", {0: [0.5, 2.0, 1.0]}, "mse")
    (table,) = tables(tmp_path)
    assert [cell.mean for line in table.lines for cell, _ in line.cells if cell] == [2.0, 1.0, 0.5]


def test_clients_that_a_partition_drew_anew_are_not_averaged(tmp_path: Path) -> None:
    comparison(tmp_path, {"fedavg": 0.7, "fedper": 0.8}, 3, named=False, rounds=6)
    assert [table.seeds for table in tables(tmp_path)] == [(0,), (1,), (2,)]
    assert "not those of another" in sentences(tmp_path)


@pytest.mark.parametrize("options", [{"named": True}, {"named": False, "data_seed": 5}])
def test_the_same_clients_with_every_seed_are(tmp_path: Path, options: dict[str, object]) -> None:
    comparison(tmp_path, {"fedavg": 0.7, "fedper": 0.8}, 3, rounds=6, **options)
    (table,) = tables(tmp_path)
    assert table.seeds == (0, 1, 2)
    assert all(cell is not None and cell.n == 3 for line in table.lines for cell, _ in line.cells)


def test_of_very_many_clients_the_worst_and_the_best_and_it_is_said(tmp_path: Path) -> None:
    write_exact(tmp_path, "fedavg", {0: [k / 1000 for k in range(201)]})
    (table,) = tables(tmp_path)
    means = [cell.mean for line in table.lines for cell, _ in line.cells if cell]
    assert means == pytest.approx([*(k / 1000 for k in range(LINES // 2)), *(k / 1000 for k in range(171, 201))])
    assert table.clients == 201
    said = sentences(tmp_path)
    assert "Of very many clients the worst and the best served are here" in said


def test_many_seeds_and_methods_keep_the_page_small(tmp_path: Path) -> None:
    methods = {f"method {k}": 0.5 + k / 100 for k in range(10)}
    few = {"rounds": 2, "classes": 2, "parts": ("validation", "test")}
    comparison(tmp_path, methods, TABLES + 1, named=False, clients=60, **few)
    found = tables(tmp_path)
    assert sum(len(t.lines) * len(t.arms) for t in found[:TABLES]) <= CELLS
    assert f"The first {TABLES} of {TABLES + 1} such tables are here." in sentences(tmp_path)


def test_newcomers_have_their_own_names(tmp_path: Path) -> None:
    comparison(tmp_path, {"fedavg": 0.7}, 1, newcomers=4, clients=10)
    rows = headline(load_runs(tmp_path))
    (table,) = newcomer_tables(rows)
    assert {line.name for line in table.lines} == {f"hospital {k}" for k in range(6, 10)}
