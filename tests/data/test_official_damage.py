"""Official files that are torn, of another kind or hostile: refused in a sentence (given, expected, what to do)."""

from __future__ import annotations

import gzip
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from posterity.data import DataError
from posterity.data import archives as archive
from posterity.data.datasets import (
    cifar10,
    cifar100,
    emnist,
    femnist,
    mnist,
    mnist_m,
    office31,
    tinyimagenet,
)
from posterity.data.datasets._cifar import read_plain
from posterity.data.datasets._idx import PARTS
from posterity.data.datasets.digits5 import read_mat

from .official_files import (
    array,
    bytes_of,
    cells,
    idx,
    leaf,
    listed,
    mat,
    matrix,
    pickled,
    shot,
    tar,
    text,
    write,
    write_idx,
    zipped,
)  # fmt: skip

SHOTS = bytes_of(2, 3072)
ROWS = tuple(cifar10.BATCHES)


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR-10 with two pictures a batch, CIFAR-100 with two in all."""
    monkeypatch.setattr(cifar10, "BATCHES", dict.fromkeys(ROWS, 2))
    monkeypatch.setattr(cifar100, "BATCHES", {"train": 2, "test": 2})


def binary(label: int = 3) -> dict[str, bytes]:
    row = bytes([label]) + SHOTS[0].tobytes()
    return {f"cifar-10-batches-bin/{name}.bin": 2 * row for name in ROWS}


def python(**changed: bytes) -> dict[str, bytes]:
    batch = pickled(**{"data": array(SHOTS), "labels": listed([1, 2]), **changed})
    return {f"cifar-10-batches-py/{name}": batch for name in ROWS}


def test_an_archive_with_other_members_or_lengths(tmp_path: Path, two: None) -> None:
    path = tmp_path / "cifar-10-binary.tar.gz"
    members = binary()
    assert len(cifar10.load(tar(path, members).parent, 0)) == 12
    del members["cifar-10-batches-bin/data_batch_4.bin"]
    with pytest.raises(
        DataError, match=r"has no data_batch_4.bin; expected data_batch_1.bin, .*fetch the archive again"
    ):
        cifar10.load(tar(path, members).parent, 0)
    members["cifar-10-batches-bin/data_batch_4.bin"] = bytes(3073)
    with pytest.raises(DataError, match=r"data_batch_4.bin: cannot be read .*size 3073.*; expected 2 pictures"):
        cifar10.load(tar(path, members).parent, 0)
    with pytest.raises(DataError, match=r"labels from 11 to 11; expected 0 to 9; .*fetch it again"):
        cifar10.load(tar(path, binary(11)).parent, 0)


@pytest.mark.parametrize("cut", [0, 20, 1000, -30])
def test_a_torn_archive(tmp_path: Path, two: None, cut: int) -> None:
    path = tar(tmp_path / "cifar-10-binary.tar.gz", binary())
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"cifar-10-binary.tar.gz: (cannot be read .*complete; fetch it|has no )"):
        cifar10.load(tmp_path, 0)


def link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def pipe(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = tarfile.FIFOTYPE
    return info


@pytest.mark.parametrize("member", [link("x/test_batch.bin", "/etc/passwd"), pipe("x/test_batch.bin")])
def test_links_and_pipes_in_an_archive(tmp_path: Path, two: None, member: tarfile.TarInfo) -> None:
    tar(tmp_path / "cifar-10-binary.tar.gz", binary(), member)
    with pytest.raises(
        DataError, match=r"'x/test_batch.bin' is a link, a device or a file with holes; expected an ordi"
    ):
        cifar10.load(tmp_path, 0)


def test_a_link_in_a_zip_file(tmp_path: Path) -> None:
    info = zipfile.ZipInfo("train/a/images/a.JPEG")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "tiny-imagenet-200.zip", "w") as stored:
        stored.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match="is a link, a device"):
        tinyimagenet.load(tmp_path, 0)


def test_archives_that_expand_beyond_the_limit(tmp_path: Path, two: None, monkeypatch: pytest.MonkeyPatch) -> None:
    tar(tmp_path / "cifar-10-binary.tar.gz", {"x/other": bytes(2**20), **binary()})
    zipped(tmp_path / "tiny-imagenet-200.zip", {"words.txt": bytes(2**20)})
    monkeypatch.setattr(archive, "ROOM", 2**16)
    for module in (cifar10, tinyimagenet):
        with pytest.raises(DataError, match=r"that expand to .* or more; expected at most"):
            module.load(tmp_path, 0)


def test_pipes_and_links_in_an_unpacked_folder(tmp_path: Path, two: None) -> None:
    for name, data in binary().items():
        write(tmp_path / name, data)
    secret = write(tmp_path / "secret", bytes(6146))
    batch = tmp_path / "cifar-10-batches-bin/test_batch.bin"
    batch.unlink()
    batch.symlink_to(secret)
    with pytest.raises(DataError, match=r"test_batch.bin: is a link to .*secret, outside of"):
        cifar10.load(tmp_path, 0)
    batch.unlink()
    os.mkfifo(batch)
    with pytest.raises(DataError, match=r"test_batch.bin: is .* a pipe"):
        cifar10.load(tmp_path, 0)


EVIL = b"\x80\x02cposix\nsystem\nU\x04true\x85R."
PICKLES: list[tuple[bytes, str]] = [
    (EVIL, "it names 'posix system', which no such file needs"),
    (b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R.", "the opcode STACK_GLOBAL"),
    (b"\x80\x02}q\x01U\x01acbuiltins\neval\ns.", "it names 'builtins eval'"),
    (b"\x80\x02(U\x04truecposix\nsystem\no.", "it names 'posix system'|the opcode OBJ"),
    (b"\x80\x02(U\x04trueiposix\nsystem\n.", "the opcode INST"),
    (b"\x80\x02cnumpy\nndarray\nU\x01a\x85\x81.", "the opcode NEWOBJ"),
    (b"\x80\x02}q\x01", "exhausted before"),
    (b"", "exhausted before"),
    (b"\x80\x02}U\x01a", "exhausted before"),
    (b"\x80\x02}U\x01aT\xff\xff\xff\x7fabc", "expected 2147483647 bytes"),
]


@pytest.mark.parametrize(("data", "message"), PICKLES)
def test_pickles_that_hold_more_than_plain_values(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_plain(data)


def test_nothing_in_a_pickle_is_run(tmp_path: Path, two: None) -> None:
    command = f"touch {tmp_path / 'owned'}"
    evil = b"\x80\x02cposix\nsystem\n" + text(command) + b"\x85R."
    tar(tmp_path / "cifar-10-python.tar.gz", dict.fromkeys(python(), evil))
    with pytest.raises(DataError, match=r"data_batch_1: cannot be read \(it names 'posix system'.*take the binary one"):
        cifar10.load(tmp_path, 0)
    assert not (tmp_path / "owned").exists()


def test_plain_values_of_a_pickle() -> None:
    found = read_plain(pickled(name=text("a"), numbers=listed([0, 300, -1]), names=listed(["x", "y"])))
    assert found == ["name", "a", "numbers", 0, 300, -1, "names", "x", "y"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"data": listed([1])}, r"0 arrays of so many pixels, 2 labels\); expected 2 pictures and as many labels"),
        ({"data": array(SHOTS[:1])}, r"0 arrays of so many pixels, 2 labels\); expected 2 pictures"),
        ({"data": array(SHOTS) + array(SHOTS)}, "2 arrays of so many pixels"),
        ({"labels": listed([1])}, r"1 labels\); expected 2 pictures and as many labels"),
        ({"labels": text("ab")}, r"0 labels\); expected 2 pictures"),
    ],
)
def test_a_batch_of_other_arrays(tmp_path: Path, two: None, changed: dict[str, bytes], message: str) -> None:
    tar(tmp_path / "cifar-10-python.tar.gz", python(**changed))
    with pytest.raises(DataError, match=message):
        cifar10.load(tmp_path, 0)


def test_cifar100_without_all_names(tmp_path: Path, two: None) -> None:
    rows = bytes(2 * 3074)
    files = {"train.bin": rows, "test.bin": rows, "fine_label_names.txt": b"apple bee"}
    tar(tmp_path / "cifar-100-binary.tar.gz", files)
    with pytest.raises(
        DataError, match=r"fine_label_names.txt: cannot be read \(2 names\); expected 100 names of classes"
    ):
        cifar100.load(tmp_path, 0)


DIGITS = [bytes_of(6, 28, 28), np.arange(6), bytes_of(3, 28, 28), np.arange(3)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"<html>", r"begins with 3c 68 74 6d\); expected an idx file of bytes \(00 00 08"),
        (b"", "begins with nothing"),
        (idx(DIGITS[0])[:-1], r"size 4703 into shape \(6,28,28\)"),
        (idx(DIGITS[0])[:5] + b"\xff" + idx(DIGITS[0])[6:], "cannot reshape array"),
        (idx(DIGITS[0][:4]), r"training pictures uint8 \(4, 28, 28\) and training labels \(6,\); expected as many"),
        (idx(DIGITS[0].reshape(6, -1)), "expected as many labels as pictures of one size"),
        (idx(bytes_of(6, 20, 20)), "expected as many labels as pictures of one size"),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_damaged_idx_files(tmp_path: Path, data: bytes, message: str, packed: bool) -> None:
    write_idx(tmp_path / "mnist", PARTS, DIGITS, packed)
    write(tmp_path / "mnist" / (PARTS[0] + ".gz" * packed), gzip.compress(data) if packed else data)
    with pytest.raises(DataError, match=message):
        mnist.load(tmp_path, 0)


def test_other_damage_of_idx_files(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist", PARTS, [DIGITS[0], DIGITS[1] + 10, *DIGITS[2:]])
    with pytest.raises(DataError, match="labels from 0 to 15; expected 0 to 9"):
        mnist.load(tmp_path, 0)
    path = tmp_path / "mnist" / f"{PARTS[0]}.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"expected a whole .gz file; fetch it again"):
        mnist.load(tmp_path, 0)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DataError, match="a pipe or a device; expected a file"):
        mnist.load(tmp_path, 0)


def test_a_wrong_emnist(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="split='balance'; did you mean 'balanced'"):
        emnist.load(tmp_path, 0, split="balance")
    zipped(tmp_path / "gzip.zip", {"gzip/readme.txt": b"x"})
    with pytest.raises(DataError, match=r"gzip.zip: has no emnist-digits-train-images-idx3-ubyte.gz"):
        emnist.load(tmp_path, 0, split="digits")
    write(tmp_path / "gzip.zip", b"no archive")
    with pytest.raises(DataError, match="File is not a zip file"):
        emnist.load(tmp_path, 0)


Pick = Callable[[], dict[str, bytes]]
TRAIN, NOTED = "train/n01/images/n01_0.JPEG", "val/val_annotations.txt"


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (lambda: {NOTED: b""}, r"no training pictures\); expected train/CLASS"),
        (lambda: {TRAIN: shot(64)}, "KeyError: 'val/val_annotations.txt'"),
        (lambda: {TRAIN: shot(64), NOTED: b"val_0.JPEG\tn01\n"}, "KeyError: 'val/images/val_0.JPEG'"),
        (
            lambda: {TRAIN: shot(64), NOTED: b"val_0.JPEG n01\n"},
            "IndexError: .*expected train/CLASS/images.* and val/val_annotations.txt",
        ),
        (lambda: {TRAIN: shot(32), NOTED: b""}, r"n01_0.JPEG has 32×32 pixels\); expected .* of 64×64"),
        (lambda: {TRAIN: shot(64, "GIF"), NOTED: b""}, r"n01_0.JPEG cannot be read as a picture \(it is no picture"),
        (lambda: {TRAIN: b"", NOTED: b""}, "the file is empty"),
    ],
)
def test_damaged_tinyimagenet(tmp_path: Path, members: Pick, message: str) -> None:
    pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'posterity[images]'")
    zipped(tmp_path / "tiny-imagenet-200.zip", members())
    with pytest.raises(DataError, match=message):
        tinyimagenet.load(tmp_path, 0)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (b"0.png seven\n", "train_labels.txt: cannot be read .*'seven'.*expected lines of a picture and its digit"),
        (b"", r"cannot be read \(nothing\)"),
        (b"1.png 4\n", r"mnist_m_train/1.png cannot be read as a picture \(it is missing\)"),
        (b"0.png 12\n", "labels from .* to 12; expected 0 to 9"),
    ],
)
def test_damaged_mnist_m(tmp_path: Path, labels: bytes, message: str) -> None:
    pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'posterity[images]'")
    files = {f"mnist_m_{part}/0.png": shot(32) for part in ("train", "test")}
    tar(
        tmp_path / "mnist_m.tar.gz",
        {**files, "mnist_m_train_labels.txt": labels, "mnist_m_test_labels.txt": b"0.png 1"},
    )
    with pytest.raises(DataError, match=message):
        mnist_m.load(tmp_path, 0)


def test_wrong_office_folders(tmp_path: Path) -> None:
    for domain in office31.DOMAINS:
        (tmp_path / "office31" / domain / "bike").mkdir(parents=True)
    with pytest.raises(DataError, match=r"1 classes \(bike\) in .*expected 31 folders of pictures in each"):
        office31.load(tmp_path, 0)
    with pytest.raises(DataError, match="size=0; expected 1 to 4096 pixels"):
        office31.load(tmp_path, 0, size=0)
    for k in range(30):
        (tmp_path / "office31/amazon" / f"c{k}").mkdir()
    with pytest.raises(DataError, match="amazon: no pictures; expected some in class folders"):
        office31.load(tmp_path, 0)


ROW = [[0.5] * 784]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", r"cannot be read \(Expecting.*as JSON of LEAF"),
        (b"[" * 100_000, "cannot be read .*as JSON of LEAF"),
        (b"\xff\xfe\x00", "cannot be read .*as JSON of LEAF"),
        (b"[]", "expected users, num_samples and user_data"),
        (
            b'{"users": ["a"], "num_samples": [], "user_data": {}}',
            "argument 2 is shorter than argument 1.*expected users, num_samples",
        ),
        (b'{"users": ["a"], "num_samples": [1], "user_data": {}}', "KeyError: 'a'"),
        (b'{"users": [3], "num_samples": [1], "user_data": {"3": 1}}', "KeyError: 3"),
        (
            b'{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[NaN]], "y": [1]}}}',
            "not 784 numbers from 0 to 1",
        ),
    ],
)
def test_damaged_files_of_leaf(tmp_path: Path, data: bytes, message: str) -> None:
    write(tmp_path / "femnist/data/train/a.json", data)
    leaf(tmp_path / "femnist/data/test", {"a": (ROW, [1])})
    with pytest.raises(DataError, match=message):
        femnist.load(tmp_path, 0)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([[0.5] * 783], [1], "not 784 numbers from 0 to 1"),
        ([[1.5] * 784], [1], "not 784 numbers from 0 to 1"),
        ([[10**400] * 784], [1], "user a: cannot be read .*int too large"),
        ([["a"] * 784], [1], "could not convert string to float: 'a'"),
        (ROW, ["one"], r"labels such as one\); expected 1 x and y, whole numbers"),
        (ROW, [[1]], "labels such as"),
        (ROW, [10**30], "labels such as"),
        (ROW, [62], "labels from 62 to 62; expected 0 to 61"),
        (ROW, [1, 2], r"1 x and 2 y\); expected 2 x and y"),
    ],
)
def test_wrong_rows_of_leaf(tmp_path: Path, x: list[Any], y: list[Any], message: str) -> None:
    leaf(tmp_path / "femnist/all_data", {"a": (x, y)})
    with pytest.raises(DataError, match=message):
        femnist.load(tmp_path, 0)


def test_folders_of_leaf_without_files(tmp_path: Path) -> None:
    (tmp_path / "femnist/all_data").mkdir(parents=True)
    with pytest.raises(DataError, match=r"all_data: no .json files; expected those that LEAF"):
        femnist.load(tmp_path, 0)
    (tmp_path / "femnist/all_data").rmdir()
    write(tmp_path / "femnist/all_data", b"")
    with pytest.raises(DataError, match="all_data: Not a directory; expected a folder"):
        femnist.load(tmp_path, 0)


SMALL = np.arange(6, dtype=np.uint8).reshape(2, 3)


WHOLE = mat(matrix("a", SMALL))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated.*expected a whole .mat file"),
        (b"\x89HDF\r\n", "cannot be read"),
        (b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM", "cannot be read .*HDF.*save it with -v7"),
        (WHOLE[:-3], "cannot be read .*expected a whole .mat file"),
        (WHOLE[:140], "cannot be read"),
        (mat(matrix("a", SMALL)[:-8], packed=False), "cannot be read"),
        (mat(matrix("b", SMALL)), "expected also a"),
        (mat(matrix("a", SMALL).replace(b"\x02\0\0\0\x03\0\0\0", b"\x02\0\0\0\x04\0\0\0")), "cannot reshape"),
        (mat(cells("a", (9, 9), [SMALL])), "could not read bytes"),
    ],
)
def test_damaged_mat_files(tmp_path: Path, data: bytes, message: str) -> None:
    pytest.importorskip("scipy.io", reason="SciPy is not installed: .mat files are not read")
    write(tmp_path / "a.mat", data)
    with pytest.raises(DataError, match=message):
        read_mat(tmp_path / "a.mat", "a")


def test_a_mat_file_that_expands_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy.io", reason="SciPy is not installed: .mat files are not read")
    write(tmp_path / "a.mat", mat(matrix("a", np.zeros((1000, 1000), dtype=np.uint8))))
    monkeypatch.setattr(archive, "ROOM", 2**16)
    with pytest.raises(DataError, match="that expand to"):
        read_mat(tmp_path / "a.mat", "a")
