"""Parquet files give the same federation as the same table in CSV (needs the extra `posterity[parquet]`)."""

import numpy as np
import pytest
import torch

from posterity.data import load

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
