"""Parquet files give the same federation as the same table in CSV (needs the extra `posterity[parquet]`)."""

import numpy as np
import pytest
import torch

from posterity.data import DataError, load

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'posterity[parquet]'")


def test_parquet_equals_csv(tmp_path):
    from pyarrow import csv, parquet

    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 80)
    table = pa.table({"site": [f"s{i % 4}" for i in range(80)], "age": rng.normal(50 + 5 * label).round(3),
                      "pressure": rng.normal(label).round(3), "outcome": label})  # fmt: skip
    parquet.write_table(table, tmp_path / "visits.parquet")
    csv.write_csv(table, tmp_path / "visits.csv")
    found = [
        load(str(tmp_path / f"visits.{kind}"), target="outcome", client_column="site") for kind in ("parquet", "csv")
    ]
    assert found[0].names == found[1].names
    assert torch.allclose(found[0].x, found[1].x, atol=1e-6)
    assert torch.equal(found[0].y, found[1].y)


def test_an_index_that_pandas_wrote_is_no_feature(tmp_path):
    from pyarrow import parquet

    columns = {"client": ["a", "b"] * 20, "target": [0, 1] * 20, "age": list(range(40))}
    parquet.write_table(pa.table({**columns, "__index_level_0__": list(range(40))}), tmp_path / "a.parquet")
    assert load(str(tmp_path / "a.parquet")).preprocessing.columns == ("age",)


def test_names_are_read_as_those_of_a_csv_file(tmp_path):
    """Without spaces around them, also where texts are stored as bytes; and each once: of two columns one was lost."""
    from pyarrow import parquet

    columns = [["a", "b "] * 20, [b"ill", b"well "] * 20, list(range(40)), list(range(40))]
    parquet.write_table(pa.Table.from_arrays(columns, ["client", "target", "age ", "dose"]), tmp_path / "a.parquet")
    found = load(str(tmp_path / "a.parquet"))
    assert (found.names, found.class_names) == (("a", "b"), ("ill", "well"))
    assert found.preprocessing.columns == ("age", "dose")
    parquet.write_table(pa.Table.from_arrays(columns, ["client", "target", "age", "age"]), tmp_path / "b.parquet")
    with pytest.raises(DataError, match="the header has 'age' more than once"):
        load(str(tmp_path / "b.parquet"))
