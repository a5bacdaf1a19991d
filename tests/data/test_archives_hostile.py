"""Files that lie, never end or expand without limit are refused in a sentence, before anything is allocated."""

from __future__ import annotations

import gzip
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from posterity.data import DataError, load
from posterity.data import archives as archive
from posterity.data.datasets._idx import PARTS

X, Y, WHO = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 2, np.arange(30) // 10


def header(shape: object, kind: str = "<f8") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def zipped(path: Path, *, packed: bool = False, **members: bytes) -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as file:
        for name, data in members.items():
            file.writestr(name.replace("__", "."), data)
    return str(path)


@pytest.mark.parametrize("cut", [0, 10, 100, 1500, -1])
def test_a_truncated_npz(tmp_path: Path, cut: int) -> None:
    np.savez(tmp_path / "whole.npz", x=X, y=Y, client=WHO)
    (tmp_path / "torn.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:cut])
    with pytest.raises(DataError, match=r"torn.npz: cannot be read .*copy it again"):
        load(str(tmp_path / "torn.npz"))


def test_a_flipped_bit_in_an_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y, client=WHO)
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[300] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(DataError, match="Bad CRC-32"):
        load(str(tmp_path / "a.npz"))


@pytest.mark.parametrize(
    ("member", "message"),
    [
        (header((10**11, 1000)) + bytes(80), r"'x.npy' claims 800,000,000,000,000 bytes .* and has 80"),
        (header((-1, 3)) + bytes(80), r"claims .* in the shape \(-1, 3\)"),
        (header((-2, -5)) + bytes(80), r"in the shape \(-2, -5\)"),
        (header((3,), "|O") + bytes(24), "holds objects"),
        (header((3,), "<U999999999999") + bytes(24), "cannot be read"),
        (b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535, "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_an_array_that_claims_what_it_does_not_hold(tmp_path: Path, member: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(zipped(tmp_path / "a.npz", x__npy=member))


def test_an_archive_that_holds_no_arrays_or_a_secret(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"it holds 'readme.txt', which is no array"):
        load(zipped(tmp_path / "a.npz", readme__txt=b"hello"))


def test_what_expands_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "ROOM", 2**16)  # 64 KiB, so that the bomb may be small
    monkeypatch.setattr(archive.npy, "read_array", lambda *_, **__: pytest.fail("it was unpacked"))
    size = 10 * 2**20
    path = zipped(tmp_path / "a.npz", packed=True, x__npy=header((size,), "|u1") + bytes(size))
    with pytest.raises(DataError, match=r"bytes that expand to 10,485,\d+ or more; expected at most .*numpy.savez"):
        load(path)


def test_stored_as_it_is_any_size_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "ROOM", 1)
    np.savez(tmp_path / "a.npz", x=X, y=Y, client=WHO)
    assert load(str(tmp_path / "a.npz")).clients == 3


def test_a_packed_file_that_expands_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = gzip.compress(bytes(2**20))
    assert len(archive.unpack_gzip(packed, "a.gz")) == 2**20
    monkeypatch.setattr(archive, "ROOM", 2**16)
    with pytest.raises(DataError, match=r"a.gz: expands beyond 65,536 bytes"):
        archive.unpack_gzip(packed, "a.gz")
    with pytest.raises(DataError, match=r"a.gz: cannot be read .*expected a whole .gz file"):
        archive.unpack_gzip(gzip.compress(b"whole")[:-5], "a.gz")


def fashion(folder: Path, data: bytes) -> str:
    (folder / "fashion_mnist").mkdir()
    for name in PARTS:
        (folder / "fashion_mnist" / f"{name}.gz").write_bytes(gzip.compress(data))
    return str(folder)


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\x08", b"\0\0\x08\x03\0\0", b"\0\0\x08\x00", b"\0\0\x08\x02" + b"\xff" * 8]
)
def test_a_broken_idx_file(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(DataError, match="expected an idx file of bytes"):
        load("fmnist", data_dir=fashion(tmp_path, data))


def keras(path: Path, **changed: object) -> Path:
    digits = np.random.default_rng(0).integers(0, 256, (50, 28, 28)).astype(np.uint8)
    label = np.arange(50) % 10
    arrays = {"x_train": digits[:40], "y_train": label[:40], "x_test": digits[40:], "y_test": label[40:]}
    path.parent.mkdir(exist_ok=True)
    np.savez(path, **{**arrays, **changed})  # type: ignore[arg-type]
    return path


def test_the_mnist_file_of_keras_by_its_path(tmp_path: Path) -> None:
    f = load(str(keras(tmp_path / "mnist.npz")), partition="iid", clients=2)
    assert (f.shape, f.classes, len(f.y)) == ((1, 28, 28), 10, 50)
    assert "the official training and test splits are merged" in f.notes
    kept = load(str(tmp_path / "mnist.npz"), partition="iid", clients=2, test_partition="common")
    assert kept.common is not None
    assert kept.common.tolist() == list(range(40, 50))


def test_the_mnist_file_of_keras_in_the_data_folder(tmp_path: Path) -> None:
    keras(tmp_path / "mnist" / "mnist.npz")
    f = load("mnist", data_dir=str(tmp_path), partition="iid", clients=2)
    assert (f.shape, len(f.y)) == ((1, 28, 28), 50)


def test_a_wrong_file_in_the_data_folder(tmp_path: Path) -> None:
    for dataset, name in (("mnist", "mnist/mnist.npz"), ("cifar10", "cifar10/cifar10_half_a.npz"),
                          ("fsdd", "spoken_digits/fsdd_logmel.npz")):  # fmt: skip
        (tmp_path / name).parent.mkdir()
        np.savez(tmp_path / name, something=X)
        with pytest.raises(DataError, match="arrays something; expected also"):
            load(dataset, data_dir=str(tmp_path))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y_train": np.arange(39)}, "as many labels as samples"),
        ({"x_test": np.zeros((10, 8, 8), dtype=np.uint8)}, "expected the same; convert them"),
    ],
)
def test_parts_of_keras_that_do_not_fit(tmp_path: Path, changed: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(str(keras(tmp_path / "a.npz", **changed)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two clients with two classes of five pictures each."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'posterity[images]'")
    pixels = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3)).astype(np.uint8)
    for place in ("a/cat", "a/dog", "b/cat", "b/dog"):
        (tmp_path / "study" / place).mkdir(parents=True)
        for i, each in enumerate(pixels):
            image.fromarray(each).save(tmp_path / "study" / place / f"{i}.png")
    return tmp_path / "study"


def test_a_pipe_among_the_pictures_does_not_hang(folder: Path) -> None:
    os.mkfifo(folder / "a" / "cat" / "z.png")
    with pytest.raises(DataError, match=r"z.png: is a folder, a pipe or a device; expected a picture"):
        load(str(folder))


def test_pipes_and_devices_as_tables(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(DataError, match=r"pipe.csv: is .* a pipe"):
        load(str(tmp_path / "pipe.csv"))
    with pytest.raises(DataError, match=r"pipe.csv: is .* a pipe"):
        load(str(tmp_path))
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    with pytest.raises(DataError, match=r"zero.csv: is .* a device"):
        load(str(tmp_path / "zero.csv"))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for kind in (".csv", ".npz"):
        (tmp_path / f"a{kind}").symlink_to("/proc/self/mem")  # an ordinary file whose first byte is an error
        with pytest.raises(DataError, match=rf"a{kind}: .*(Input/output error|cannot be read)"):
            load(str(tmp_path / f"a{kind}"))


def test_links_that_lead_out_of_the_folder(folder: Path) -> None:
    (folder.parent / "secret.png").write_bytes((folder / "a/cat/0.png").read_bytes())
    (folder / "a/cat/link.png").symlink_to(folder / "b/cat/0.png")
    assert load(str(folder)).train.counts.sum() > 0  # inside they are fine
    (folder / "a/cat/out.png").symlink_to(folder.parent / "secret.png")
    with pytest.raises(DataError, match=r"out.png: is a link to .*secret.png, outside of"):
        load(str(folder))
    for name in ("north", "south"):
        (folder.parent / name).mkdir()
        (folder.parent / name / f"{name}.csv").write_text("target,age\n0,1\n1,2\n")
    (folder.parent / "north" / "south.csv").symlink_to(folder.parent / "south" / "south.csv")
    with pytest.raises(DataError, match=r"south.csv: is a link to .*outside of"):
        load(str(folder.parent / "north"))


def test_links_in_a_circle(folder: Path) -> None:
    (folder / "a" / "loop").symlink_to(folder)
    assert load(str(folder)).clients == 2
    (folder / "a/cat/q.png").symlink_to(folder / "a/cat/q.png")
    with pytest.raises(DataError, match=r"q.png: Too many levels of symbolic links"):
        load(str(folder))


def bomb(width: int, height: int) -> bytes:
    """A black picture of one bit a pixel in a few kilobytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    start = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", start) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


def other(kind: str) -> bytes:
    from PIL import Image

    data = io.BytesIO()
    Image.new("RGB", (8, 8)).save(data, kind)
    return data.getvalue()


BAD: list[tuple[Callable[[], bytes], str]] = [
    (lambda: b"", "the file is empty"),
    (lambda: bomb(50_000, 50_000), "exceeds limit"),
    (lambda: bomb(12_000, 12_000), "12000×12000 pixels; at most 89,478,485 are opened"),
    (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "no picture that is known here"),
    (
        lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n",
        "no picture that is known here",
    ),
    (lambda: other("GIF"), "no picture that is known here"),
    (lambda: other("PPM"), "no picture that is known here"),
    (lambda: other("TIFF"), "no picture that is known here"),
    (lambda: other("PNG")[:45], "truncated"),
]


@pytest.mark.parametrize(("data", "message"), BAD)
def test_pictures_that_are_none_or_too_large(folder: Path, data: Callable[[], bytes], message: str) -> None:
    (folder / "a/cat/9.png").write_bytes(data())
    with pytest.raises(DataError, match=rf"9.png: cannot be read as a picture .*{message}"):
        load(str(folder))


def test_a_jpeg_with_another_suffix_is_read_and_other_files_are_named(folder: Path) -> None:
    (folder / "a/cat/9.png").write_bytes(other("JPEG"))
    (folder / "a/cat/scan.tif").write_bytes(other("TIFF"))
    (folder / "b/dog/notes.txt").write_text("hello")
    f = load(str(folder))
    assert sum(int(p.counts.sum()) for p in (f.train, f.validation, f.test)) == 21
    assert any("2 files in the class folders are left out" in n and "a/cat/scan.tif" in n for n in f.notes)


def test_a_size_beyond_all_measure_and_names_that_cannot_be_written(folder: Path) -> None:
    with pytest.raises(DataError, match="size=999999; expected 0 to 4096"):
        load(str(folder), options={"size": 999_999})
    os.rename(os.fsencode(folder / "a/cat"), os.fsencode(folder / "a") + b"/c\xffat")
    with pytest.raises(DataError, match=r"a/c\\udcffat: a name that is not UTF-8"):
        load(str(folder))


def test_names_in_a_sentence_do_not_command_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "\x1b[2Jstudy.csv"
    path.write_text("client,target,do\x1b[31mse\n0,1,x\n")
    with pytest.raises(DataError) as told:
        load(str(path))
    assert str(told.value).isprintable()
    assert r"\x1b[2Jstudy.csv, line 2, column do\x1b[31mse" in str(told.value)
