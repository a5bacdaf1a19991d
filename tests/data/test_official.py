"""Datasets in the forms in which they are published: counts, order, labels, clients, and which form is preferred."""

from __future__ import annotations

import gzip
import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from posterity.data import DataError, Pool, load
from posterity.data.assemble import shrink
from posterity.data.datasets import (
    celeba,
    cifar10,
    cifar100,
    digits5,
    emnist,
    emnist47,
    femnist,
    fmnist,
    mnist,
    mnist_m,
    office31,
    office_caltech10,
    tinyimagenet,
)
from posterity.data.datasets._idx import PARTS
from posterity.data.federation import FederationSpec
from posterity.data.official import find_form

from .official_files import (
    Array,
    array,
    bytes_of,
    cells,
    leaf,
    listed,
    mat,
    matrix,
    pickled,
    shot,
    tar,
    write,
    write_idx,
    zipped,
)  # fmt: skip

ROWS = 4  # of a batch


def pixels(pool: Pool) -> Array:
    """The bytes that became the samples (N, H, W, channels)."""
    return ((pool.x + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()


def test_rows(pool: Pool) -> list[bool]:
    assert pool.official_test is not None
    return pool.official_test.tolist()


test_rows.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> tuple[Array, Array]:
    """Both CIFAR datasets with four pictures a batch: pictures (24, 3, 32, 32) and labels."""
    monkeypatch.setattr(cifar10, "BATCHES", dict.fromkeys(cifar10.BATCHES, ROWS))
    monkeypatch.setattr(cifar100, "BATCHES", {"train": 5 * ROWS, "test": ROWS})
    return bytes_of(6 * ROWS, 3, 32, 32), np.arange(6 * ROWS) % 10


def binary10(x: Array, y: Array) -> dict[str, bytes]:
    rows = np.concatenate([y[:, None].astype(np.uint8), x.reshape(len(x), -1)], 1)
    parts = np.split(rows, 6)
    return {f"cifar-10-batches-bin/{b}.bin": p.tobytes() for b, p in zip(cifar10.BATCHES, parts, strict=True)}


def python10(x: Array, y: Array, **changed: bytes) -> dict[str, bytes]:
    found = {}
    for i, batch in enumerate(cifar10.BATCHES):
        rows = slice(i * ROWS, (i + 1) * ROWS)
        values = {"data": array(x[rows].reshape(ROWS, -1)), "labels": listed(y[rows].tolist())}
        files = listed([f"{k}.png" for k in range(ROWS)])
        found[f"cifar-10-batches-py/{batch}"] = pickled(batch_label=b"U\x01a", filenames=files, **{**values, **changed})
    return found


FINE, COARSE = [f"fine{k}" for k in range(100)], [f"coarse{k}" for k in range(20)]


def binary100(x: Array, fine: Array) -> dict[str, bytes]:
    rows = np.concatenate(
        [(fine[:, None] // 5).astype(np.uint8), fine[:, None].astype(np.uint8), x.reshape(len(x), -1)], 1
    )
    names = {
        "fine_label_names.txt": "\n".join(FINE).encode(),
        "coarse_label_names.txt": "\n".join(COARSE).encode() + b"\n",
    }
    files = {"train.bin": rows[: 5 * ROWS].tobytes(), "test.bin": rows[5 * ROWS :].tobytes(), **names}
    return {f"cifar-100-binary/{name}": data for name, data in files.items()}


def python100(x: Array, fine: Array) -> dict[str, bytes]:
    def part(rows: slice) -> bytes:
        shots = x[rows].reshape(-1, 3072)
        labels = {"fine_labels": listed(fine[rows].tolist()), "coarse_labels": listed((fine[rows] // 5).tolist())}
        return pickled(data=array(np.asfortranarray(shots).T, claimed=shots.shape, order=b"\x88"), **labels)

    meta = pickled(fine_label_names=listed(FINE), coarse_label_names=listed(COARSE))
    files = {"train": part(slice(0, 5 * ROWS)), "test": part(slice(5 * ROWS, None)), "meta": meta}
    return {f"cifar-100-python/{name}": data for name, data in files.items()}


@pytest.mark.parametrize("form", ["binary", "python"])
@pytest.mark.parametrize("unpacked", [False, True])
def test_cifar10(tmp_path: Path, small: tuple[Array, Array], form: str, unpacked: bool) -> None:
    x, y = small
    members = binary10(x, y) if form == "binary" else python10(x, y)
    if unpacked:
        for name, data in members.items():
            write(tmp_path / "cifar10" / name, data)
    else:
        tar(tmp_path / f"cifar-10-{form}.tar.gz", {"./" * (form == "python") + name: d for name, d in members.items()})
    pool = cifar10.load(tmp_path, 0)
    assert np.array_equal(pixels(pool), x.transpose(0, 2, 3, 1))
    assert pool.y.tolist() == y.tolist()
    assert test_rows(pool) == [False] * 20 + [True] * 4
    assert (pool.class_names[0], pool.class_names[9]) == ("airplane", "truck")
    assert pool.notes == ("cifar10: 24 of 60,000 pictures",)


@pytest.mark.parametrize("form", ["binary", "python"])
def test_cifar100(tmp_path: Path, small: tuple[Array, Array], form: str) -> None:
    x, fine = small[0], np.arange(24) * 4
    members = binary100(x, fine) if form == "binary" else python100(x, fine)
    tar(tmp_path / "cifar100" / f"cifar-100-{form}.tar.gz", members)
    pool = cifar100.load(tmp_path, 0)
    assert np.array_equal(pixels(pool), x.transpose(0, 2, 3, 1))
    assert pool.y.tolist() == fine.tolist()
    assert pool.class_names == tuple(FINE)
    assert sum(test_rows(pool)) == 4
    coarse = cifar100.load(tmp_path, 0, labels="coarse")
    assert coarse.y.tolist() == (fine // 5).tolist()
    assert coarse.class_names == tuple(COARSE)


def half(path: Path, x: Array, index: list[int]) -> None:
    """A compact half of CIFAR-10: one sheet of pictures side by side."""
    import io

    from PIL import Image

    data = io.BytesIO()
    Image.fromarray(np.concatenate([x[i].transpose(1, 2, 0) for i in index], 1)).save(data, "WEBP", lossless=True)
    stored = np.frombuffer(data.getvalue(), np.uint8)
    path.parent.mkdir(exist_ok=True)
    labels = np.array([i % 10 for i in index], dtype=np.uint8)
    place = np.array([i if i < 20 else i + 50_000 - 20 for i in index], dtype=np.uint16)
    np.savez(path, webp=stored, offsets=np.array([0, len(stored)]), labels=labels, index=place)


def test_one_half_gives_way_to_the_archive_and_both_halves_do_not(tmp_path: Path, small: tuple[Array, Array]) -> None:
    pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'posterity[images]'")
    x, y = small
    half(tmp_path / "cifar10/cifar10_half_a.npz", x, [*range(22, 0, -2), 0])
    alone = cifar10.load(tmp_path, 0)
    assert len(alone) == 12
    assert alone.notes == ("cifar10: 12 of 60,000 pictures, a stratified half",)
    tar(tmp_path / "cifar10/cifar-10-binary.tar.gz", binary10(255 - x, y))
    assert np.array_equal(pixels(cifar10.load(tmp_path, 0)), 255 - x.transpose(0, 2, 3, 1))
    half(tmp_path / "cifar10/cifar10_half_b.npz", x, [*range(23, 0, -2)])
    both = cifar10.load(tmp_path, 0)
    assert np.array_equal(pixels(both), x.transpose(0, 2, 3, 1))  # in the official order
    assert (both.y.tolist(), test_rows(both)) == (y.tolist(), [False] * 20 + [True] * 4)
    assert "half" not in both.notes[0]


DIGITS = [bytes_of(30, 28, 28), np.arange(30) % 10, bytes_of(10, 28, 28), np.arange(10)]


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("module", "folder"),
    [(mnist, "mnist"), (mnist, "MNIST/raw"), (fmnist, "fashion_mnist"), (fmnist, "FashionMNIST/raw")],
)
def test_idx_files(tmp_path: Path, module: Any, folder: str, packed: bool) -> None:
    write_idx(tmp_path / folder, PARTS, DIGITS, packed)
    pool = module.load(tmp_path, 0)
    assert np.array_equal(pixels(pool)[..., 0], np.concatenate([DIGITS[0], DIGITS[2]]))
    assert pool.y.tolist() == [*range(10)] * 4
    assert test_rows(pool) == [False] * 30 + [True] * 10
    assert "40 of 70,000 pictures" in pool.notes[0]


@pytest.mark.parametrize("packed", [True, False])
def test_files_in_the_data_folder_are_before_those_of_the_system(
    tmp_path: Path, monkeypatch: Any, packed: bool
) -> None:
    write_idx(tmp_path / "system", PARTS, [part[:5] for part in DIGITS])
    monkeypatch.setattr(fmnist, "SOURCE", replace(fmnist.SOURCE, system=tmp_path / "system"))
    assert len(fmnist.load(None, 0)) == len(fmnist.load(tmp_path, 0)) == 10
    write_idx(tmp_path / "fmnist", PARTS, DIGITS, packed)
    assert len(fmnist.load(tmp_path, 0)) == 40


def test_the_place_of_debians_package() -> None:
    system = fmnist.SOURCE.system
    assert str(system) == "/usr/share/datasets/fashion-mnist"
    if system is None or not system.is_dir():
        pytest.skip("the package dataset-fashion-mnist is not installed: no real files to compare with")
    pool = fmnist.load(None, 0)
    assert torch.bincount(pool.y).tolist() == [7000] * 10
    assert pool.notes == ()


def letters(split: str, first: int, classes: int) -> list[Array]:
    y = np.arange(2 * classes) % classes + first
    return [bytes_of(len(y), 28, 28), y, bytes_of(classes, 28, 28), y[:classes]]


@pytest.mark.parametrize(
    ("split", "first", "classes", "last"), [("balanced", 0, 47, "t"), ("byclass", 0, 62, "z"), ("letters", 1, 26, "z")]
)
@pytest.mark.parametrize("form", ["gz", "plain", "zip"])
def test_emnist(tmp_path: Path, split: str, first: int, classes: int, last: str, form: str) -> None:
    arrays = letters(split, first, classes)
    write_idx(tmp_path / "emnist", emnist.names(split), arrays, form != "plain")
    if form == "zip":
        files = {f"gzip/{p.name}": p.read_bytes() for p in (tmp_path / "emnist").iterdir()}
        zipped(tmp_path / "EMNIST/raw/gzip.zip", files)
        for path in (tmp_path / "emnist").iterdir():
            path.unlink()
    pool = emnist.load(tmp_path, 0, split=split)
    assert np.array_equal(pixels(pool)[0, ..., 0], arrays[0][0].T)  # upright
    assert pool.y.tolist() == [*range(classes)] * 3
    assert (len(pool.class_names), pool.class_names[-1], sum(test_rows(pool))) == (classes, last, classes)
    if split == "balanced":
        assert torch.equal(emnist47.load(tmp_path, 0).x, pool.x)


def tiny(classes: int = 3) -> dict[str, bytes]:
    ids = [f"n0{9 - k}" for k in range(classes)]
    found = {f"train/{i}/images/{i}_{k}.JPEG": shot(64, "JPEG", grey=k == 1) for i in ids for k in range(2)}
    found |= {f"val/images/val_{k}.JPEG": shot(64, "JPEG") for k in range(classes)}
    found |= {f"train/{ids[0]}/{ids[0]}_boxes.txt": b"x", "test/images/test_0.JPEG": b"x", "wnids.txt": b"x"}
    noted = "".join(f"val_{k}.JPEG\t{ids[k]}\t0\t0\t9\t9\n" for k in reversed(range(classes)))
    return found | {"val/val_annotations.txt": noted.encode(), "words.txt": b"n09\tgoldfish, carp\nn01\tother\n"}


@pytest.mark.parametrize("form", ["zip", "folder"])
def test_tinyimagenet(tmp_path: Path, form: str) -> None:
    pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'posterity[images]'")
    members = tiny()
    if form == "zip":
        zipped(tmp_path / "tiny-imagenet-200.zip", {f"tiny-imagenet-200/{name}": d for name, d in members.items()})
    else:
        for name, data in members.items():
            write(tmp_path / "tinyimagenet/tiny-imagenet-200" / name, data)
    pool = tinyimagenet.load(tmp_path, 0)
    assert tuple(pool.x.shape) == (9, 3, 64, 64)
    assert pool.y.tolist() == [0, 0, 1, 1, 2, 2, 0, 1, 2]  # classes by name: n07, n08, n09; then as annotated
    assert test_rows(pool) == [False] * 6 + [True] * 3
    assert pool.class_names == ("n07", "n08", "goldfish, carp")
    assert pool.notes == ("tinyimagenet: 9 of 110,000 pictures",)


@pytest.mark.parametrize("form", ["tar", "folder"])
def test_mnist_m(tmp_path: Path, form: str) -> None:
    pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'posterity[images]'")
    members = {f"mnist_m_{part}/0000{k}.png": shot(32) for part in ("train", "test") for k in range(3)}
    members["mnist_m_train_labels.txt"] = b"00002.png 7\n00000.png 3\n00001.png 0\n"
    members["mnist_m_test_labels.txt"] = b"00000.png 9\n"
    if form == "tar":
        tar(tmp_path / "mnist_m.tar.gz", {f"mnist_m/{name}": data for name, data in members.items()})
    else:
        for name, data in members.items():
            write(tmp_path / "mnist_m" / name, data)
    pool = mnist_m.load(tmp_path, 0)
    assert (pool.y.tolist(), test_rows(pool)) == ([7, 3, 0, 9], [False, False, False, True])
    assert tuple(pool.x.shape) == (4, 3, 32, 32)


@pytest.mark.parametrize(
    ("module", "folder", "inner", "domains", "classes"),
    [
        (office31, "office31", "images/", ("amazon", "dslr", "webcam"), 31),
        (office31, "Office-31", "", ("amazon", "dslr", "webcam"), 31),
        (office_caltech10, "office_caltech_10", "", ("amazon", "caltech", "dslr", "webcam"), 10),
    ],
)
def test_office(tmp_path: Path, module: Any, folder: str, inner: str, domains: tuple[str, ...], classes: int) -> None:
    pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'posterity[images]'")
    for domain in domains:
        for k in range(classes):
            write(tmp_path / folder / domain / f"{inner}c{k:02}/frame.{'jpg' if k else 'png'}", shot(5 + k % 2))
    write(tmp_path / folder / domains[0] / f"{inner}c00/another.png", shot(9))
    pool = module.load(tmp_path, 0, size=16)
    assert tuple(pool.x.shape) == (len(domains) * classes + 1, 3, 16, 16)
    assert pool.y.tolist() == [0, *[*range(classes)] * len(domains)]
    assert pool.owner_names == tuple("caltech10" if name == "caltech" else name for name in domains)
    assert pool.owner is not None
    assert torch.bincount(pool.owner).tolist() == [classes + 1, *[classes] * (len(domains) - 1)]
    assert any(" of 2,533 pictures" in note or " of 4,110 pictures" in note for note in pool.notes)


def test_femnist_by_writer(tmp_path: Path) -> None:
    x = (bytes_of(5, 784) / 255).round(6)
    leaf(
        tmp_path / "femnist/data/train", {"f1_01": (x[:2].tolist(), [61, 0]), "f0_02": (x[2:3].tolist(), [5])}, "b.json"
    )
    leaf(tmp_path / "femnist/data/train", {"f2_00": (x[3:4].tolist(), [9])}, "c.json")
    leaf(tmp_path / "femnist/data/test", {"f0_02": (x[4:].tolist(), [7])})
    pool = femnist.load(tmp_path, 0)
    torch.testing.assert_close(pool.x.reshape(5, 784), torch.from_numpy(x).float() * 2 - 1)
    assert (pool.y.tolist(), test_rows(pool)) == ([61, 0, 5, 9, 7], [False] * 4 + [True])
    assert pool.owner_names == ("f1_01", "f0_02", "f2_00")
    assert pool.owner is not None
    assert pool.owner.tolist() == [0, 0, 1, 2, 1]
    assert (pool.class_names[10], pool.class_names[61]) == ("A", "z")
    f = load("femnist", data_dir=tmp_path, split="50/50")
    assert (f.clients, f.shape) == (3, (1, 28, 28))


def test_femnist_before_the_split(tmp_path: Path) -> None:
    leaf(tmp_path / "femnist/all_data", {"a": ([[0.5] * 784], [1])})
    assert femnist.load(tmp_path, 0).official_test is None


def five() -> dict[str, tuple[Array, Array, Array, Array]]:
    """Pictures and labels of the five domains: training, then test."""
    sides = {"mnist": (32, 32), "mnistm": (28, 28, 3), "svhn": (32, 32, 3), "syn": (32, 32, 3), "usps": (28, 28)}
    return {d: (bytes_of(5, *s), np.arange(5), bytes_of(2, *s), np.array([9, 0])) for d, s in sides.items()}


def one_hot(y: Array) -> Array:
    return np.eye(10)[y]


def street(y: Array) -> Array:
    return np.where(y == 0, 10, y)[:, None].astype(np.uint8)


def write_mats(folder: Path, parts: dict[str, tuple[Array, Array, Array, Array]]) -> None:
    m, b, s, n, u = (parts[name] for name in digits5.DOMAINS)
    write(folder / "mnist_data.mat", mat(
        matrix("train_32", m[0].reshape(5, -1)), matrix("test_32", m[2].reshape(2, -1)),
        matrix("label_train", one_hot(m[1])), matrix("label_test", one_hot(m[3])),
    ))  # fmt: skip
    write(folder / "mnistm_with_label.mat", mat(
        matrix("train", b[0]), matrix("test", b[2]),
        matrix("label_train", one_hot(b[1])), matrix("label_test", one_hot(b[3])), packed=False,
    ))  # fmt: skip
    for part, (x, y) in {"train": s[:2], "test": s[2:]}.items():
        write(folder / f"svhn_{part}_32x32.mat", mat(matrix("X", np.moveaxis(x, 0, -1)), matrix("y", street(y))))
    write(folder / "syn_number.mat", mat(
        matrix("train_data", n[0]), matrix("test_data", n[2]),
        matrix("train_label", n[1][:, None].astype(np.int32)), matrix("test_label", n[3][:, None].astype(np.int32)),
    ))  # fmt: skip
    columns = [(u[0] / 255)[:, None], (u[2] / 255)[:, None], u[1][:, None].astype(float), u[3][:, None].astype(float)]
    write(folder / "usps_28x28.mat", mat(cells("dataset", (2, 2), columns)))


def test_digits_five(tmp_path: Path) -> None:
    pytest.importorskip("scipy.io", reason="SciPy is not installed: .mat files are not read")
    parts = five()
    write_mats(tmp_path / "Digit-Five", parts)
    pool = digits5.load(tmp_path, 0)
    assert tuple(pool.x.shape) == (35, 3, 32, 32)
    assert pool.y.tolist() == [0, 1, 2, 3, 4, 9, 0] * 5
    assert test_rows(pool) == ([False] * 5 + [True] * 2) * 5
    assert pool.owner_names == digits5.DOMAINS
    assert pool.owner is not None
    assert pool.owner.tolist() == [k for k in range(5) for _ in range(7)]
    for row, domain in ((0, "mnist"), (14, "svhn"), (21, "syn")):
        expected = parts[domain][0][0]
        assert np.array_equal(pixels(pool)[row], np.stack([expected] * 3, -1) if expected.ndim == 2 else expected)
    for row, domain in ((7, "mnistm"), (28, "usps")):  # enlarged
        assert abs(float(pixels(pool)[row].mean()) - float(parts[domain][0][0].mean())) < 3


@pytest.mark.parametrize(
    ("module", "named"),
    [(m, m.__name__.rpartition(".")[2]) for m in (cifar10, cifar100, mnist, emnist, emnist47, tinyimagenet, mnist_m,
                                                  office31, office_caltech10, femnist, celeba, digits5)],
)  # fmt: skip
def test_without_files_the_sentence_says_what_is_expected(tmp_path: Path, module: Any, named: str) -> None:
    with pytest.raises(
        DataError, match=f"dataset {named}: files found: none \\(no data folder given\\); expected .*POSTERITY_DATA"
    ):
        module.load(None, 0)
    with pytest.raises(DataError, match=f"files found: none \\(looked in .*expected .*`posterity datasets {named}`"):
        module.load(tmp_path, 0)
    with pytest.raises(DataError, match=r"files found: none \(looked in .*nowhere"):
        module.load(tmp_path / "nowhere", 0)


def test_a_part_of_the_files_is_named(tmp_path: Path) -> None:
    write(tmp_path / "mnist/train-images-idx3-ubyte.gz", gzip.compress(b"x"))
    with pytest.raises(DataError, match=r"files found: .*train-images-idx3-ubyte.gz \(looked in"):
        mnist.load(tmp_path, 0)


@pytest.mark.everything
def test_the_complete_cifar10_in_its_official_order() -> None:
    folder = os.environ.get("POSTERITY_DATA")
    if folder is None:
        pytest.skip("POSTERITY_DATA is not set: no folder with real data")
    found = find_form(cifar10.SOURCE, Path(folder))
    if found is None or found.form.title == "one half of ours":
        pytest.skip("POSTERITY_DATA has no complete CIFAR-10")
    pool = cifar10.load(Path(folder), 0)
    digest = hashlib.sha256(np.ascontiguousarray(pixels(pool)).tobytes()).hexdigest()
    assert digest == "0ac3ab5c78edb36ac68f69e287fd8f957b2d4f820b80e5fa9bd05c810fc0d95d"
    assert test_rows(pool) == [False] * 50_000 + [True] * 10_000
    assert len(shrink(pool, FederationSpec("cifar10", subset="25%"))[0]) == 15_000
