"""The user's own files: what works, and every way in which they can be wrong."""

from pathlib import Path

import numpy as np
import pytest
import torch

from posterity.data import DataError, Federation, load
from posterity.data.tables import Columns
from posterity.data.user_files import read_user_files

ROWS = [(k, i % 2, 10 * k + i, i * i) for k in range(3) for i in range(10)]  # client, label, age, dose


def written(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def table(rows: list[tuple[object, ...]], header: str = "client,target,age,dose") -> str:
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n"


def stored(path: Path, **arrays: object) -> str:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return str(path)


def sets(f: Federation) -> list[set[int]]:
    return [set(p.rows.tolist()) for p in (f.train, f.validation, f.test)]


def test_a_csv_file_with_a_client_column(tmp_path: Path) -> None:
    path = written(tmp_path / "study.csv", table(ROWS))
    f = load(path, options={"scale": "none"})
    assert (f.name, f.names, f.classes, f.shape) == ("study", ("0", "1", "2"), 2, (2,))
    assert torch.equal(f.x, torch.tensor([row[2:] for row in ROWS], dtype=torch.float32))
    assert torch.equal(f.y, torch.tensor([row[1] for row in ROWS]))
    assert f.train.counts.tolist() == [8, 8, 8]
    assert all(f.x[f.train.client(k)][:, 0].min() >= 10 * k for k in range(3))


def test_features_of_a_table_are_scaled_by_each_client(tmp_path: Path) -> None:
    path = written(tmp_path / "study.csv", table(ROWS))
    f = load(path)
    assert f.x[f.train.client(2)].mean(0).abs().max() < 1e-6
    assert any("standardised" in note for note in f.notes)
    everybody = load(path, options={"scale": "all"}, newcomers=1)
    members = torch.cat([everybody.train.client(k) for k in range(2)])
    assert everybody.x[members].mean(0).abs().max() < 1e-6


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_the_unit_of_a_feature_does_not_matter(tmp_path: Path, unit: float) -> None:
    there = load(written(tmp_path / "a.csv", table(ROWS)))
    rows = [(*row[:3], row[3] * unit) for row in ROWS]
    assert torch.allclose(load(written(tmp_path / "b.csv", table(rows))).x, there.x, atol=1e-5)
    constant = load(written(tmp_path / "c.csv", table([(*row[:3], 0.1 * unit) for row in ROWS])))
    assert constant.x[:, 1].abs().max() < 1e-6
    assert (constant.preprocessing.scale[:, 1] == 1).all()  # type: ignore[index]


def test_names_of_columns_and_words_as_labels(tmp_path: Path) -> None:
    rows = [(f"site {k}", ("ill", "healthy")[i], a, d) for k, i, a, d in ROWS]
    path = written(tmp_path / "a.csv", table(rows, "hospital;diagnosis;age;dose".replace(";", ",")))
    f = load(path, target="diagnosis", client_column="hospital")
    assert f.class_names == ("healthy", "ill")
    assert f.names == ("site 0", "site 1", "site 2")
    assert f.y[:2].tolist() == [1, 0]


def test_semicolons_and_a_byte_order_mark(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", "\ufeff" + table(ROWS).replace(",", ";"))
    assert load(path).clients == 3


def test_client_numbers_are_in_numerical_order(tmp_path: Path) -> None:
    path = stored(tmp_path / "a.npz", x=np.zeros((40, 2)), y=np.arange(40) % 2, client=np.arange(40) % 20)
    assert load(path).names[:3] == ("0", "1", "2")


def test_without_clients_a_law_divides_the_rows(tmp_path: Path) -> None:
    path = stored(tmp_path / "a.npz", x=np.random.default_rng(0).normal(size=(400, 3)), y=np.arange(400) % 4)
    assert load(path, partition="dirichlet:1", clients=4).clients == 4


def test_bytes_are_pictures(tmp_path: Path) -> None:
    shapes = {(20, 5, 6): (1, 5, 6), (20, 5, 6, 3): (3, 5, 6), (20, 3, 5, 6): (3, 5, 6)}
    for shape, expected in shapes.items():
        x = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
        f = load(stored(tmp_path / "a.npz", x=x, y=np.arange(20) % 2, client=np.arange(20) // 10))
        assert f.shape == expected
        assert -1 <= f.x.min() < f.x.max() <= 1


def test_rows_of_a_group_stay_in_one_part(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    patient = np.sort(rng.integers(0, 60, 600))
    path = stored(
        tmp_path / "a.npz",
        x=rng.normal(size=(600, 2)),
        y=rng.integers(0, 2, 600),
        client=patient // 20,
        patient=patient,
    )
    f = load(path, group="patient")
    where = [{int(patient[row]) for row in rows} for rows in sets(f)]
    assert sum(map(len, where)) == len(set().union(*where)) == 60
    assert all(0.1 < 1 - n / t < 0.3 for n, t in zip(f.train.counts, np.bincount(patient // 20), strict=True))
    assert all(f.validation.counts > 0)
    assert all(f.test.counts > 0)
    plain = [{int(patient[row]) for row in rows} for rows in sets(load(path))]
    assert plain[0] & plain[2]  # without the group they do get mixed, so this test can fail
    with pytest.raises(DataError, match="divide the rows of one group"):
        load(path, group="patient", partition="iid", clients=2)


def test_a_common_test_set_takes_whole_groups(tmp_path: Path) -> None:
    patient = np.arange(200) // 10
    path = stored(tmp_path / "a.npz", x=np.zeros((200, 2)), y=np.arange(200) % 2, client=patient // 5, patient=patient)
    f = load(path, group="patient", test_partition="common")
    assert f.common is not None
    rows = torch.cat([f.train.rows, f.validation.rows, f.test.rows])
    assert set(patient[f.common.numpy()]).isdisjoint(patient[rows.numpy()])


def test_clients_that_a_subset_empties_are_dropped(tmp_path: Path) -> None:
    path = stored(tmp_path / "a.npz", x=np.zeros((60, 2)), y=np.arange(60) % 2, client=np.arange(60) // 2)
    f = load(path, subset="20%")
    assert f.clients < 30
    assert int(f.train.counts.min()) >= 1
    assert any(f"{30 - f.clients} clients have no rows left" in note for note in f.notes)


def test_a_group_at_two_clients_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", table([(*row, 7) for row in ROWS], "client,target,age,dose,patient"))
    with pytest.raises(DataError, match="group '7' has rows at the clients 0, 1, 2"):
        load(path, group="patient")


def test_a_folder_with_a_file_per_client(tmp_path: Path) -> None:
    for name in ("north", "south"):
        written(tmp_path / f"{name}.csv", table([(*row[1:], row[2] // 3) for row in ROWS], "target,age,dose,patient"))
    f = load(str(tmp_path), group="patient")
    assert f.names == ("north", "south")
    group = read_user_files(tmp_path, Columns(group="patient"), {}).group
    assert group is not None
    assert set(group[:30].tolist()).isdisjoint(group[30:].tolist())  # patient 1 of two files is two people
    assert f.train.counts.sum() + f.validation.counts.sum() + f.test.counts.sum() == 60
    with pytest.raises(DataError, match="leave client_column out"):
        load(str(tmp_path), client_column="age")
    written(tmp_path / "west.csv", table([row[1:] for row in ROWS], "target,dose,age"))
    with pytest.raises(DataError, match=r"west.csv: feature columns differ from those of north.csv \(patient\)"):
        load(str(tmp_path))


def test_an_empty_client_stays_and_is_noted(tmp_path: Path) -> None:
    written(tmp_path / "a.csv", table([row[1:] for row in ROWS], "target,age,dose"))
    written(tmp_path / "b.csv", "target,age,dose\n")
    written(tmp_path / "c.csv", "target,age,dose\n1,2,3\n")
    f = load(str(tmp_path))
    assert f.names == ("a", "b", "c")
    assert f.train.counts.tolist() == [24, 0, 1]
    assert f.test.counts.tolist() == [3, 0, 0]
    assert any("without training data, which are never asked to train: 1" in note for note in f.notes)
    assert any("too little data to hold anything out, which are not scored: 2" in note for note in f.notes)
    assert any("1 clients have one class only (c)" in note for note in f.notes)
    assert "b" in load(str(tmp_path), subset="50%").names


def test_regression(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", table([(k, y + 0.5, a, d) for k, y, a, d in ROWS]))
    with pytest.raises(DataError, match=r"--set data.task=regression \(in Python set={\"data.task\": \"regr"):
        load(path)
    with pytest.raises(
        DataError, match=r"one scale .*; give --set data.scale=all \(in Python set={\"data.scale\": \"all"
    ):
        load(path, test_partition="common", options={"task": "regression"})
    f = load(path, options={"task": "regression"})
    assert (f.task, f.classes, f.y.dtype) == ("regression", 0, torch.float32)


def test_a_quantity_taken_for_classes_is_noted(tmp_path: Path) -> None:
    path = stored(tmp_path / "a.npz", x=np.zeros((60, 2)), y=np.arange(60) // 2, client=np.arange(60) % 3)
    assert any("30 classes for 60 rows" in note for note in load(path).notes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "its first line is blank; expected a header line"),
        ("\nclient,target,age\n0,1,3\n", "its first line is blank; expected a header line"),
        ("client,target,age\n", "no rows at all"),
        ("client,target,client\n1,2,3\n", "expected different names"),
        ("client,age\n0,1\n", "columns client, age; expected one called target or y or label"),
        ("client,target\n0,1\n", "expected at least one numeric feature"),
        ("client,target,age\n0,1,3\n0,1\n", "line 3: 2 values; expected 3"),
        ("client,target,age\n0,1,3\n0,1,old\n", "line 3, column age: 'old' .*expected numbers"),
        ("client,target,age\n0,1,\n", "line 2, column age: '' "),
        ("client,target,age\n0,1,nan\n", "column age: 'nan'"),
        ("client,target,age\n0,,3\n", "line 2, column target: ''"),
        ("client,target,age\n,1,3\n", "line 2, column client: '', which is read as a missing value"),
        ("client,target,age\n0,None,3\n", "'None', which is read as a missing value; .*choose another name$"),
        ("client,target,age\n0,1,3\n1,1,4\n", "all targets are '1'; expected at least two classes"),
    ],
)
def test_what_can_be_wrong_in_a_csv_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(written(tmp_path / "a.csv", text))


X, Y, WHO = np.zeros((6, 2)), np.arange(6) % 2, np.arange(6) // 3


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"features": X, "y": Y}, "arrays features, y; expected x, y"),
        ({"x": X}, "expected one called target or y or label"),
        ({"x": X, "y": Y[:5]}, r"x has 6 rows and y the shape \(5,\)"),
        ({"x": X, "y": Y, "client": WHO[:, None]}, r"client the shape \(6, 1\); expected \(6,\)"),
        ({"x": X * np.nan, "y": Y}, "x: feature 0 of row 0 is nan"),
        ({"x": X + [[0, 0], [np.nan, 0], [0, np.inf]] * 2, "y": Y}, "feature . of row 1 is"),
        ({"x": X.astype(str), "y": Y}, "expected a tensor or an array of numbers"),
        ({"x": X, "y": Y * np.nan}, "target nan in row 0"),
        ({"x": X, "y": Y.astype(object)}, "no objects, no pickles"),
    ],
)
def test_what_can_be_wrong_in_an_npz_file(tmp_path: Path, arrays: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(stored(tmp_path / "a.npz", **arrays))


def test_paths_columns_and_options_that_do_not_exist(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", table(ROWS))
    for arguments, message in (
        ({"target": "taget"}, "no column 'taget' for target; did you mean 'target'"),
        ({"client_column": "site"}, "no column 'site' for client_column"),
        ({"group": "patient"}, "no column 'patient' for group"),
        ({"options": {"scael": "all"}}, "did you mean 'scale'"),
        ({"options": {"scale": "some"}}, "option scale is 'some'; expected none or client or all"),
    ):
        with pytest.raises(DataError, match=message):
            load(path, **arguments)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="there is no such file"):
        load(str(tmp_path / "b.csv"))
    with pytest.raises(DataError, match="unknown kind of file"):
        load(written(tmp_path / "a.txt", "hello"))
    (tmp_path / "void").mkdir()
    with pytest.raises(DataError, match=r"neither .csv, .npz or .parquet files nor pictures"):
        load(str(tmp_path / "void"))
    (tmp_path / "bad.npz").write_bytes(b"not a zip file")
    with pytest.raises(DataError, match="cannot be read"):
        load(str(tmp_path / "bad.npz"))


def test_parquet_files(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        path.write_bytes(b"")
        with pytest.raises(DataError, match=r'pip install "posterity\[parquet\]"'):
            load(str(path))
        return
    names = ("client", "target", "age", "dose")
    parquet.write_table(pa.table({n: [row[i] for row in ROWS] for i, n in enumerate(names)}), path)
    assert load(str(path)).train.counts.tolist() == [8, 8, 8]


def paint(path: Path, shade: int | tuple[int, int, int], size: int = 8) -> None:
    image = pytest.importorskip("PIL.Image")
    path.parent.mkdir(parents=True, exist_ok=True)
    image.new("RGB" if isinstance(shade, tuple) else "L", (size, size), shade).save(path)


def test_pictures_of_16_bits_are_refused(tmp_path: Path) -> None:
    """X-rays are often stored so; converted to 8 bits they would be white all over."""
    image = pytest.importorskip("PIL.Image")
    deep = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000
    for client in ("north", "south"):
        for kind in ("ill", "well"):
            (tmp_path / client / kind).mkdir(parents=True)
            image.fromarray(deep).save(tmp_path / client / kind / "0.png")
    with pytest.raises(DataError, match=r"0.png: cannot be read as a picture \(more than 8 bits a pixel:.*an \.npz"):
        load(str(tmp_path))


def test_picture_folders(tmp_path: Path) -> None:
    for client in ("ann", "bob"):
        for kind, shade in (("cat", 0), ("dog", 255)):
            for i in range(5):
                paint(tmp_path / client / kind / f"{i}.png", shade)
    f = load(str(tmp_path))
    assert (f.names, f.class_names, f.shape) == (("ann", "bob"), ("cat", "dog"), (1, 8, 8))
    assert f.x[f.y == 0].unique().tolist() == [-1]
    assert f.x[f.y == 1].unique().tolist() == [1]
    assert f.train.counts.tolist() == [8, 8]
    paint(tmp_path / "bob" / "dog" / "large.png", (255, 0, 0), 12)
    with pytest.raises(DataError, match=r"large.png: 12×12 pixels; expected 8×8.*--set data.size=32 "):
        load(str(tmp_path))
    assert load(str(tmp_path), options={"size": 4}).shape == (3, 4, 4)
    (tmp_path / "bob" / "dog" / "broken.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"broken.png: cannot be read as a picture"):
        load(str(tmp_path))
