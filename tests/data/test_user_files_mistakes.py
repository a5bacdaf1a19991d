"""What users' tables get wrong: refused with what helps, or named in a note; and requests that leave nothing to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import posterity
from posterity.data import DataError, Federation, Part, Pool, load
from posterity.data.federation import check_federation
from posterity.data.pool import check_pool

ROWS = [(k, i % 2, 10 * k + i, i * i) for k in range(3) for i in range(10)]  # client, label, age, dose


def table(path: Path, rows: list[tuple[object, ...]], header: str = "client,target,age,dose") -> str:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n", encoding="utf-8")
    return str(path)


def doses(path: Path, *values: object) -> str:
    """The table with these values in its last column, over and over."""
    return table(path, [(*row[:3], values[i % len(values)]) for i, row in enumerate(ROWS)])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nan", r"a.csv, line 2, column dose: 'nan' \(30 of 30 rows\); .*remove the column"),
        ("", r"a.csv, line 2, column dose: '' \(30 of 30 rows\)"),
        ('"1,5"', r"'1,5' .*expected numbers such as 1234.5"),
        ("1_5", r"'1_5' .*expected numbers"),
        ("male", r"'male' .*expected numbers"),
        ("1e39", r"'1e39'.*nothing beyond 3.4e\+38"),
        ("-inf", r"'-inf' .*expected numbers"),
        ("1" * 200_000, r"line 2: field larger than field limit"),
    ],
)
def test_values_that_are_no_numbers_say_what_helps(tmp_path: Path, value: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as told:
        load(doses(tmp_path / "a.csv", value))
    assert len(str(told.value)) < 500


def test_a_few_blanks_are_counted(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 4, column dose: '' \(10 of 30 rows\)"):
        load(doses(tmp_path / "a.csv", 1, 2, ""))


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('client,target,age\n"ward\none",1,3\n\n"ward\ntwo",0,old\n')
    with pytest.raises(DataError, match="line 6, column age: 'old'"):
        load(str(path))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("client,target,age\n0,1,3\n".encode("utf-16"), "line 1 has the byte 0xff; expected text in UTF-8"),
        ("client,target,age\n0,é,3\n".encode("latin-1"), "line 2 has the byte 0xe9; expected text in UTF-8"),
        (b"client,target,age\n0,a\0b,3\n", "line 2 has the byte 0x0; expected text"),
        (b'client,target,age\n0,"1,3\n0,1,4\n', "quotation marks are closed"),
        (b"client,target,age,age,dose,dose\n", r"has 'age', 'dose' more than once"),
        (b",client,target\n0,1,2\n", "column 1 of the header has no name.*an index that a program wrote"),
        (b"client,target,age\n0,1,1,5\n", r"line 2: 4 values; expected 3.*decimal commas\? write a point"),
    ],
)
def test_files_that_are_no_tables(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.csv").write_bytes(data)
    with pytest.raises(DataError, match=message):
        load(str(tmp_path / "a.csv"))


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends_of_other_systems(tmp_path: Path, end: str) -> None:
    table(tmp_path / "a.csv", ROWS)
    (tmp_path / "b.csv").write_bytes((tmp_path / "a.csv").read_bytes().replace(b"\n", end.encode()))
    assert torch.equal(load(str(tmp_path / "a.csv")).x, load(str(tmp_path / "b.csv")).x)


def test_a_table_with_very_many_columns_is_read_and_not_recited(tmp_path: Path) -> None:
    names = [f"f{i}" for i in range(5_000)]
    path = table(
        tmp_path / "a.csv", [(*row[:2], *range(5_000)) for row in ROWS], ",".join(["client", "target", *names])
    )
    f = load(path)
    assert f.shape == (5_000,)
    assert max(map(len, f.notes)) < 300
    with pytest.raises(DataError, match="no column 'f77x' for target; did you mean 'f77") as told:
        load(path, target="f77x")
    assert len(str(told.value)) < 500
    with pytest.raises(DataError, match=r"\(5001 in all\)") as told:
        load(table(tmp_path / "b.csv", [(0, *range(5_000))], ",".join(["client", *names])))
    assert len(str(told.value)) < 500


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"target": "client"}, "target and client_column are both 'client'"),
        ({"target": "age", "client_column": "age"}, "target and client_column are both 'age'"),
        ({"group": "target"}, "target and group are both 'target'"),
        ({"group": "client"}, "client_column and group are both 'client'"),
    ],
)
def test_one_column_for_two_purposes(tmp_path: Path, columns: dict[str, str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(table(tmp_path / "a.csv", ROWS), **columns)  # type: ignore[arg-type]
    np.savez(tmp_path / "a.npz", x=np.zeros((30, 2)), **{n: np.arange(30) % 3 for n in ("client", "target", "age")})
    with pytest.raises(DataError, match=message):
        load(str(tmp_path / "a.npz"), **columns)  # type: ignore[arg-type]


def noted(path: str, **how: object) -> str:
    return "\n".join(load(path, **how).notes)  # type: ignore[arg-type]


def test_features_that_never_vary_are_named(tmp_path: Path) -> None:
    assert "1 features have the same value in every row and can teach nothing: dose" in noted(
        doses(tmp_path / "a.csv", 7)
    )
    assert "same value" not in noted(doses(tmp_path / "b.csv", 7, 8))
    for name, dose in (("north", 1), ("south", 2)):  # another one in each file is no constant
        table(tmp_path / f"{name}.csv", [(*row[1:3], dose) for row in ROWS], "target,age,dose")
    (tmp_path / "study").mkdir()
    for name in ("north", "south"):
        (tmp_path / f"{name}.csv").rename(tmp_path / "study" / f"{name}.csv")
    assert "same value" not in noted(str(tmp_path / "study"))


def test_clients_that_nobody_named_are_noted(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", [(i % 3, *row[1:]) for i, row in enumerate(ROWS)], "ward,target,age,dose")
    note = "no column names the clients, so dirichlet:0.3 divides the rows among 2 made-up ones: give client_column"
    assert note in noted(path, clients=2)
    assert "made-up" not in noted(path, clients=2, partition="iid")
    assert "made-up" not in noted(path, client_column="ward")
    with pytest.raises(DataError, match=r"partition 'dirichlet:0.3' would divide the rows of one group"):
        load(path, group="ward")


def test_clients_whose_features_cannot_be_scaled_are_named(tmp_path: Path) -> None:
    rows = [*ROWS, ("p", 0, 5, 70), ("q", 1, 5, 70), ("q", 0, 6, 90)]  # one row, and two, of which one is held out
    path = table(tmp_path / "a.csv", rows)
    said = noted(path)
    assert "clients with a single training row, which has no scale: 2 (p, q): their scores mean nothing" in said
    assert "give --set data.scale=all" in said
    assert "single training row" not in noted(path, options={"scale": "all"})
    assert "single training row" not in noted(table(tmp_path / "b.csv", ROWS))


def test_names_that_are_nearly_the_same_are_named(tmp_path: Path) -> None:
    rows = [(("A 1", "a1")[i % 2], ("yes", "no", "Yes ", "no")[i % 4], *row[2:]) for i, row in enumerate(ROWS)]
    told = noted(table(tmp_path / "a.csv", rows))
    assert "the classes 'Yes' and 'yes' differ only in capitals, spaces, zeros" in told
    assert "the clients 'A 1' and 'a1' differ only in capitals, spaces, zeros" in told
    stored = [(("K\u00f6ln", "Ko\u0308ln", "K\u00f6ln\u200b")[i % 3], *row[1:]) for i, row in enumerate(ROWS)]
    told = noted(table(tmp_path / "b.csv", stored))
    assert "differ only in capitals, spaces, zeros or how a character is stored" in told
    told = noted(
        table(tmp_path / "c.csv", [(("7", "007", "70", "7.0")[i % 4], *row[1:]) for i, row in enumerate(ROWS)])
    )
    assert "the clients '007' and '7' and '7.0' differ only in capitals, spaces, zeros" in told


def test_clients_of_one_class_are_those_that_take_part(tmp_path: Path) -> None:
    """Not those that were left out by --clients; and those that a subset leaves with a single class are."""
    path = table(tmp_path / "a.csv", [(k, i % 2 if k else 0, *rest) for k, i, *rest in ROWS])
    assert "1 clients have one class only (0)" in noted(path)
    for seed in range(4):
        federation = load(path, clients=1, seed=seed)
        assert any("one class only" in note for note in federation.notes) == (federation.names == ("0",))
    federation = load(path, subset=4)
    lonely = [k for k in range(federation.clients) if _kinds(federation, k) == 1]
    assert any(f"{len(lonely)} clients have one class only" in note for note in federation.notes)


def _kinds(federation: Federation, client: int) -> int:
    parts = (federation.train, federation.validation, federation.test)
    return len(torch.cat([federation.y[part.client(client)] for part in parts]).unique())


def test_groups_that_may_be_one_are_named(tmp_path: Path) -> None:
    """Else a patient who is written in two ways is trained on and tested on."""
    rows = [(*row, f"{'pP'[i % 2]}{row[0]}{i // 4}") for i, row in enumerate(ROWS)]
    path = table(tmp_path / "a.csv", rows, "client,target,age,dose,patient")
    told = noted(path, group="patient")
    assert "the groups 'P00' and 'p00' differ only in capitals, spaces, zeros" in told
    assert told.count("the groups") == 1
    assert "the groups" not in noted(table(tmp_path / "b.csv", [(*r, r[2]) for r in ROWS], "client,target,age,dose,p"),
                                     group="p")  # fmt: skip


def test_held_out_rows_that_were_trained_on_are_counted(tmp_path: Path) -> None:
    copies = [(k, i % 2, i % 2, i % 2) for k in range(3) for i in range(10)]
    assert "6 of 6 held-out rows equal a training row in all features and the target" in noted(
        table(tmp_path / "a.csv", copies)
    )
    assert "held-out rows equal" not in noted(table(tmp_path / "b.csv", ROWS))
    other = [(k, (i + k) % 2, i % 10, i % 10) for k in range(2) for i in range(10)]  # equal features, another label
    assert "held-out rows equal" not in noted(table(tmp_path / "c.csv", other), options={"scale": "none"})


def test_a_class_that_nobody_trains_on_is_named(tmp_path: Path) -> None:
    rows = [(k, 2 if k == 2 else i % 2, a, d) for k, i, a, d in ROWS]
    path = table(tmp_path / "a.csv", rows)
    seed = next(s for s in range(20) if load(path, newcomers=1, seed=s).names[-1] == "2")
    assert "no member trains on the class '2', which 2 held-out rows have" in noted(path, newcomers=1, seed=seed)
    assert "no member trains" not in noted(path)


def test_targets_that_teach_nothing(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", [(k, 4, a, d) for k, _, a, d in ROWS])
    with pytest.raises(DataError, match="all targets are '4'"):
        load(path)
    with pytest.raises(DataError, match="targets such as 4 in every row; expected different numbers"):
        load(path, options={"task": "regression"})
    path = table(tmp_path / "b.csv", [(k, a * 1e38, a, d) for k, _, a, d in ROWS])
    with pytest.raises(DataError, match=r"targets such as 2.9e\+39; expected different numbers up to 3.4e\+38"):
        load(path, options={"task": "regression"})


def test_arrays_with_values_that_cannot_be_used(tmp_path: Path) -> None:
    x, y, who = np.random.default_rng(0).normal(size=(12, 2)), np.arange(12) % 2, np.arange(12) // 4
    for arrays, message in (
        ({"x": x * [1, np.nan]}, "x: feature 1 of row 0 is nan"),
        ({"x": (x * [1, np.inf]).astype(np.float16)}, "x: feature . of row 0 is -?inf"),
        ({"x": x * 1e39}, r"x: feature . of row . is .*e\+3.*nothing beyond 3.4e\+38"),
        ({"client": np.where(who == 1, np.nan, who)}, "client has no value in row 4"),
        ({"client": np.array(["a", "", "b"] * 4)}, "client has no value in row 1"),
        ({"client": np.array([b"a", b"\xff"] * 6)}, "client holds bytes that are not UTF-8"),
        ({"y": y + 1j}, "y holds complex128; expected numbers or texts"),
        ({"x": np.float64(3)}, "x is a single value"),
    ):
        np.savez(tmp_path / "a.npz", **{"x": x, "y": y, "client": who, **arrays})  # type: ignore[arg-type]
        with pytest.raises(DataError, match=message):
            load(str(tmp_path / "a.npz"))
    np.savez(tmp_path / "a.npz", x=x, y=np.array([10**300, 2 * 10**300] * 6, dtype=np.float64), client=who)
    assert load(str(tmp_path / "a.npz")).classes == 2


def test_large_values_of_arrays_are_noted(tmp_path: Path) -> None:
    """Columns of a table are standardised, arrays are not unless that is asked for."""
    x, y = np.random.default_rng(0).normal(size=(12, 2)), np.arange(12) % 2
    np.savez(tmp_path / "a.npz", x=x * 1000, y=y, client=y)
    np.savez(tmp_path / "b.npz", x=x, y=y, client=y)
    note = "features go in as they are, with values up to"
    assert note in noted(str(tmp_path / "a.npz"))
    assert note not in noted(str(tmp_path / "a.npz"), options={"scale": "none"})
    assert note not in noted(str(tmp_path / "b.npz"))
    assert note not in noted(table(tmp_path / "c.csv", ROWS))


def test_two_files_of_one_client(tmp_path: Path) -> None:
    table(tmp_path / "north.csv", [row[1:] for row in ROWS], "target,age,dose")
    np.savez(tmp_path / "north.npz", x=np.zeros((4, 2)), y=np.arange(4) % 2)
    with pytest.raises(DataError, match="two files for the client 'north'"):
        load(str(tmp_path))


@pytest.mark.parametrize("amount", ["100%", "99%", 3, "3", 7])
def test_somebody_must_be_left_to_train(tmp_path: Path, amount: str | int) -> None:
    with pytest.raises(DataError, match=r"newcomers is .*; expected .*up to [23]"):
        load(table(tmp_path / "a.csv", ROWS), newcomers=amount)


def test_newcomers_are_a_share_of_all_clients(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", ROWS)
    assert [load(path, newcomers=share).members for share in (0, "0%", "34%", "67%")] == [3, 3, 2, 1]
    with pytest.raises(DataError, match="newcomers is '10%', which is nobody of 3 clients"):
        load(path, newcomers="10%")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"split": "0/100"}, "split is '0/100'; expected two percentages that add up to 100, the first above 0"),
        ({"split": "nan/nan"}, "split is 'nan/nan'"),
        ({"split": "80"}, "split is '80'"),
        ({"clients": 0}, "0 clients"),
        ({"clients": -3}, "-3 clients"),
        ({"clients": 10**9}, "1000000000 clients"),
        ({"subset": "0%"}, "leaves no row"),
        ({"subset": "1e400"}, "subset is '1e400'"),
        ({"public": "100%"}, "public is '100%'"),
    ],
)
def test_requests_that_leave_nothing_to_do(how: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load("digits", **how)  # type: ignore[arg-type]


def by_hand(test: slice, x: torch.Tensor | None = None) -> Federation:
    x = torch.randn(60, 5, generator=torch.Generator().manual_seed(0)) if x is None else x
    rows = torch.arange(60).reshape(3, 20)
    parts = [Part.of([r[some] for r in rows]) for some in (slice(14), slice(14, 17), test)]
    return Federation("mine", "classification", x, torch.arange(60) % 2, 2, *parts, 3, ("a", "b", "c"))


def test_a_federation_whose_test_rows_are_trained_on_is_refused() -> None:
    with pytest.raises(DataError, match=r"'mine': 12 rows are in train and in test \(the first is row 10\)"):
        posterity.run(method="fedavg", federation=by_hand(slice(10, 20)), rounds=1)
    with pytest.raises(DataError, match="3 rows are in validation and in test"):
        check_federation(by_hand(slice(16, 20)))
    with pytest.raises(DataError, match=r"test names row 60 and there are 60, 0 to 59"):
        check_federation(replace(by_hand(slice(17, 20)), test=Part.of([torch.tensor([60])] * 3)))
    fine = by_hand(slice(17, 20))
    assert check_federation(fine) is fine


OWNED = torch.arange(60).reshape(3, 20)
NOBODY = torch.zeros(0, dtype=torch.int64)
LACKING = torch.zeros(60, 5).index_fill(0, torch.tensor(23), torch.nan)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y": torch.full((60,), 5)}, r"y of row 0 is 5; expected labels from 0 to 1"),
        ({"y": torch.where(torch.arange(60) == 38, -1, 0)}, r"y of row 38 is -1"),
        ({"y": torch.where(torch.arange(60) == 14, 2, 0)}, r"y of row 14 is 2; expected"),
        ({"y": torch.rand(60)}, "y is of type torch.float32 and the task is classification"),
        ({"y": torch.zeros(60, 1, dtype=torch.int64)}, r"y has the shape \(60, 1\); expected \(rows,\); flatten it"),
        ({"task": "regression", "y": torch.full((60,), torch.inf)}, r"y of row 0 is inf"),
        ({"x": torch.zeros(59, 5)}, r"x has the shape \(59, 5\) and y 60 rows"),
        ({"x": LACKING}, r"feature 0 of row 23 is nan; expected a number"),
        ({"names": ("a", "b")}, "2 names and train has the rows of 3 clients"),
        ({"names": ("a", "b", "c", "d")}, "4 names and train has the rows of 3 clients"),
        ({"names": ("a", "b", "a")}, "clients 0 and 2 are called 'a'; expected names that differ"),
        ({"test": Part.of([NOBODY, NOBODY])}, "3 names and test has the rows of 2 clients"),
        ({"members": 0}, "members is 0 and there are 3 clients; expected 1 to 3"),
        ({"members": 4}, "members is 4 and there are 3 clients; expected 1 to 3"),
        ({"train": Part.of([NOBODY] * 3)}, "none of its 3 members has a training row"),
        ({"train": Part.of([r[:14].double() for r in OWNED])}, "train has rows of type torch.float64"),
        ({"train": Part(OWNED[0], torch.tensor([0, 5, 9, 14]))}, "offsets of train go from 0 to 14 and it has 20 rows"),
        ({"train": Part.of([OWNED[0][:9] - 1, OWNED[1][:9], NOBODY])}, r"train names row -1"),
        ({"public": torch.tensor([60])}, "public names row 60 and there are 60"),
        ({"test": Part.of([OWNED[1][:3], NOBODY, NOBODY])}, "the first is row 20"),
    ],
)
def test_a_federation_of_yours_that_does_not_fit(changed: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=f"federation 'mine': .*{message}"):
        check_federation(replace(by_hand(slice(17, 20)), **changed))  # type: ignore[arg-type]


def test_what_nobody_reads_may_be_anything() -> None:
    fine = by_hand(slice(17, 19))  # the last row of each client is in no part
    x, y = fine.x.clone(), fine.y.clone()
    x[19], y[19], y[39] = torch.nan, 7, -1
    for part in ({}, {"public": torch.tensor([39])}, {"validation": Part.of([NOBODY] * 3)}):
        federation = replace(fine, x=x, y=y, **part)  # type: ignore[arg-type]
        assert check_federation(federation) is federation
    with pytest.raises(DataError, match="feature 0 of row 19 is nan"):
        check_federation(replace(fine, x=x, public=torch.tensor([19])))


def test_one_test_set_for_every_client_is_noted() -> None:
    everybody = replace(by_hand(slice(17, 20)), test=Part.of([OWNED[0][17:]] * 3))
    found = check_federation(everybody)
    note = "3 test rows stand more than once in test (the first is row 17): clients share them, or one has them twice"
    assert found.notes == (note,)
    assert check_federation(found) is found


def test_arrays_of_numpy_are_taken() -> None:
    x, y = np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 2
    pool = check_pool(Pool("p", x, y.astype(np.uint8), 2, owner=y, owner_names=("a", "b")), "m:f")  # type: ignore[arg-type]
    assert pool.x.shape == (60, 5)
    assert pool.y.dtype == torch.int64
    assert isinstance(pool.owner, torch.Tensor)
    federation = check_federation(replace(by_hand(slice(17, 20)), x=x[::-1], y=y))  # type: ignore[arg-type]
    assert torch.equal(federation.x, torch.from_numpy(x).flip(0))
    with pytest.raises(DataError, match="dataset 'm:f': y is a ndarray of type <U1; expected a tensor or an array of"):
        check_pool(replace(pool, y=np.array(["0", "1"] * 30)), "m:f")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": torch.zeros(59, 5)}, r"x has the shape \(59, 5\) and y 60 rows"),
        ({"y": torch.arange(60) % 2 + 1}, "y of row 1 is 2; expected labels from 0 to 1"),
        ({"y": torch.zeros(60, 1)}, r"y has the shape \(60, 1\)"),
        ({"y": torch.rand(60)}, "y is of type torch.float32 and the task is classification"),
        ({"owner": torch.arange(60) // 20, "owner_names": ("a", "b")}, "clients up to 2 and owner_names has 2"),
        ({"x": torch.zeros(60, 5).index_fill(0, torch.tensor(7), torch.inf)}, "feature 0 of row 7 is inf"),
    ],
)
def test_a_pool_of_yours_that_does_not_fit(changed: dict[str, object], message: str) -> None:
    pool = Pool("p", torch.zeros(60, 5), torch.arange(60) % 2, 2)
    assert check_pool(pool, "m:f") is pool
    with pytest.raises(DataError, match=message):
        check_pool(replace(pool, **changed), "m:f")  # type: ignore[arg-type]
