"""The stored real datasets; these tests are skipped where their files are not."""

import functools
import gzip
import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from posterity.data import DataError, Federation, load
from posterity.data.datasets import fmnist
from posterity.data.official import find_form
from posterity.data.registry import available

FOLDER = os.environ.get("POSTERITY_DATA")
SOURCES = {d.name: d.source for d in available()}

KNOWN = {  # rows, shape of a sample, classes, clients
    "audiomnist": (9_000, (1, 32, 32), 10, 60),
    "chars74k": (3_410, (1, 28, 28), 62, 55),
    "cifar10": (30_000, (3, 32, 32), 10, 20),
    "cifar100": (30_000, (3, 32, 32), 100, 20),
    "emnist47": (27_613, (1, 28, 28), 47, 20),
    "fmnist": (70_000, (1, 28, 28), 10, 20),
    "fsdd": (3_000, (1, 32, 32), 10, 6),
    "mnist": (70_000, (1, 28, 28), 10, 20),
    "mnist_m": (2_000, (3, 32, 32), 10, 20),
    "office_caltech10": (2_533, (3, 64, 64), 10, 4),
    "tinyimagenet": (8_000, (3, 64, 64), 200, 20),
}


def need(*names: str) -> None:
    """Skip the test unless the files of these datasets are there."""
    if FOLDER is None:
        pytest.skip("POSTERITY_DATA is not set: no folder with real data")
    for name in names:
        source = SOURCES[name]
        if source and not find_form(source, Path(FOLDER)):
            pytest.skip(f"POSTERITY_DATA has no {source.forms[0].files[0].name}")


@functools.lru_cache(maxsize=1)  # tests of one dataset stand one after another
def as_it_comes(name: str) -> Federation:
    return load(name)


@pytest.mark.parametrize("name", [*sorted(KNOWN.keys() - {"cifar100"}), "cifar100"])
def test_counts_shapes_and_range(name: str) -> None:
    need(name)
    rows, shape, classes, clients = KNOWN[name]
    f = as_it_comes(name)
    assert len(f.y) == rows or (name == "cifar10" and len(f.y) == 60_000)
    assert (f.shape, f.classes, len(f.class_names), f.clients) == (shape, classes, classes, clients)
    assert f.x.dtype == torch.float32
    assert (f.x.min(), f.x.max()) == (-1, 1)
    assert len(f.y.unique()) == classes
    assert int(f.train.counts.min()) > 0


def test_cifar100_decodes_to_the_published_bytes() -> None:
    need("cifar100")
    f = as_it_comes("cifar100")
    pixels = ((f.x + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
    assert (
        hashlib.sha256(pixels.tobytes()).hexdigest()
        == "f127fbdf1466921ef4b781be09f5d47c02ed21f818f9c4fc7c0d0aa89bf420b6"
    )
    assert load("cifar100", options={"labels": "coarse"}).classes == 20


def test_independent_test_parts_come_from_the_official_split() -> None:
    need("mnist")
    f = load("mnist", test_partition="independent", partition="dirichlet:0.5", clients=10)
    assert f.train.rows.max() < 60_000
    assert min(f.validation.rows.min(), f.test.rows.min()) >= 60_000
    common = load("mnist", test_partition="common").common
    assert common is not None
    assert common.tolist() == list(range(60_000, 70_000))


def test_natural_clients_hold_one_writer_each() -> None:
    need("chars74k")
    f = load("chars74k", clients=40, newcomers=10)
    assert (f.clients, f.members) == (40, 30)
    assert (f.train.counts + f.validation.counts + f.test.counts).tolist() == [62] * 40


@pytest.mark.everything  # tests/data/test_registry_mix.py mixes colour and grey of generated data
def test_a_mix_of_colour_and_grey() -> None:
    need("cifar100", "chars74k")
    f = load("cifar100+chars74k", partition="dirichlet:0.5", clients=30, subset="20%")
    assert (f.shape, f.classes, f.clients) == ((3, 32, 32), 162, 30)


def idx(path: Path, values: np.ndarray) -> None:
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    path.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))


def test_fashion_mnist_from_idx_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fmnist, "SOURCE", replace(fmnist.SOURCE, system=None))
    with pytest.raises(DataError, match="apt-get install dataset-fashion-mnist"):
        load("fmnist", data_dir=tmp_path)
    (tmp_path / "fashion_mnist").mkdir()
    rng = np.random.default_rng(0)
    for name, rows in (("train", 300), ("t10k", 100)):
        idx(tmp_path / f"fashion_mnist/{name}-images-idx3-ubyte.gz", rng.integers(0, 256, (rows, 28, 28)))
        idx(tmp_path / f"fashion_mnist/{name}-labels-idx1-ubyte.gz", np.arange(rows) % 10)
    f = load("fmnist", data_dir=tmp_path, clients=5, partition="dirichlet:1", test_partition="independent")
    assert f.shape == (1, 28, 28)
    assert f.test.rows.min() >= 300
    (tmp_path / "fashion_mnist/t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(20)))
    with pytest.raises(DataError, match="expected an idx file of bytes"):
        load("fmnist", data_dir=tmp_path)
