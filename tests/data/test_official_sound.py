"""Sound, pen strokes and CelebA's own lists in the forms in which they are published."""

from __future__ import annotations

import io
import os
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from posterity.data import DataError, Pool
from posterity.data.datasets import audiomnist, celeba, chars74k, fsdd
from posterity.data.datasets._sound import _mel_bands, log_mel, read_wav, thinned
from posterity.data.datasets._strokes import draw_strokes, read_strokes
from posterity.data.official import find_form

from .official_files import Array, shot, tar, write, zipped


def wav(sound: Array, rate: int = 8_000, width: int = 2, channels: int = 1) -> bytes:
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(np.rint(sound * 32767).astype("<i2").tobytes())
    return data.getvalue()


def tone(frequency: float, rate: int = 8_000, seconds: float = 0.5) -> Array:
    return 0.5 * np.sin(2 * np.pi * frequency * np.arange(int(rate * seconds)) / rate)


def owners(pool: Pool) -> list[int]:
    assert pool.owner is not None
    return pool.owner.tolist()


def test_a_tone_is_loudest_in_its_band_and_silence_is_black() -> None:
    for frequency in (200.0, 1_000.0, 3_000.0):
        picture = log_mel(tone(frequency))
        band = int(np.argmax(_mel_bands()[:, round(frequency / 8_000 * 512)]))
        assert (picture.shape, picture.dtype, picture.max()) == ((32, 32), np.uint8, 255)
        assert np.argmax(picture.sum(1)) == band
        assert picture[:, :7].max() == 0  # the clip is in the middle
        assert picture[:, -7:].max() == 0
    assert log_mel(np.zeros(100)).max() == 0
    assert np.array_equal(log_mel(tone(500)), log_mel(0.01 * tone(500)))  # how loud it is makes no difference


def test_twenty_decibels_are_a_quarter_of_the_scale() -> None:
    loud, soft = tone(500, seconds=0.3), 0.1 * tone(500, seconds=0.3)
    picture = log_mel(np.concatenate([loud, np.zeros(2_000), soft])).max(0).astype(int)
    assert picture[:12].max() == 255
    assert picture[-12:].max() == pytest.approx(255 * 0.75, abs=1)


def test_samples_are_left_out_after_a_filter() -> None:
    """What is below 4 kHz stays, what is above goes; a length is rounded up."""
    kept, gone = (thinned(tone(frequency, 48_000), 6) for frequency in (1_000.0, 9_000.0))
    assert np.abs(kept - tone(1_000.0))[50:-50].max() < 2e-3
    assert np.abs(gone)[50:-50].max() < 1e-3
    assert [len(thinned(np.ones(n), 6)) for n in (1, 6, 7)] == [1, 1, 2]
    assert thinned(np.ones(600), 6)[50] == pytest.approx(1)
    signal = pytest.importorskip("scipy.signal", reason="SciPy is not installed: the filter is not compared with its")
    noise = np.random.default_rng(0).normal(size=1_003)
    assert np.abs(thinned(noise, 6) - signal.resample_poly(noise, 1, 6)).max() < 1e-12


def test_channels_are_averaged_and_rates_brought_down() -> None:
    both = np.stack([tone(300, 48_000), np.zeros(24_000)], 1)
    mono = read_wav("a", wav(both, 48_000, channels=2))
    assert np.abs(mono - tone(300) / 2)[50:-50].max() < 1e-3


@pytest.mark.parametrize("form", ["zip", "folder"])
def test_free_spoken_digits(tmp_path: Path, form: str) -> None:
    clips = {f"{d}_{who}_{take}.wav": wav(tone(200 + 100 * d)) for d in (9, 0) for who in ("theo", "george")
             for take in (10, 2)}  # fmt: skip
    members = {f"free-spoken-digit-dataset-master/recordings/{name}": data for name, data in clips.items()}
    members["free-spoken-digit-dataset-master/metadata.py"] = b"no sound"
    if form == "zip":
        zipped(tmp_path / "free-spoken-digit-dataset-master.zip", members)
    else:
        for name, data in clips.items():
            write(tmp_path / "fsdd/recordings" / name, data)
    pool = fsdd.load(tmp_path, 0)
    assert (tuple(pool.x.shape), pool.owner_names) == ((8, 1, 32, 32), ("george", "theo"))
    assert (pool.y.tolist(), owners(pool)) == ([0, 0, 9, 9] * 2, [0] * 4 + [1] * 4)
    assert pool.notes == ("fsdd: 8 of 3,000 clips",)
    expected = torch.from_numpy(log_mel(read_wav("a", clips["9_theo_2.wav"])) / 127.5 - 1).float()
    torch.testing.assert_close(pool.x[6, 0], expected)


def test_audiomnist_by_speaker(tmp_path: Path) -> None:
    for who in ("01", "02", "60"):
        for digit in (3, 1):
            write(tmp_path / f"AudioMNIST/data/{who}/{digit}_{who}_0.wav", wav(tone(400, 48_000), 48_000))
    pool = audiomnist.load(tmp_path, 0)
    assert pool.owner_names == ("speaker 1", "speaker 2", "speaker 60")
    assert (pool.y.tolist(), owners(pool)) == ([1, 3] * 3, [0, 0, 1, 1, 2, 2])
    near = read_wav("a", wav(tone(400)))
    assert (pool.x[0, 0] - torch.from_numpy(log_mel(near) / 127.5 - 1)).abs().median() < 0.02


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"RIFF....", "not a WAVE file"),
        (b"", "EOFError"),
        (wav(tone(300), 44_100), "16 bits at 44,100 Hz"),
        (wav(tone(300), width=1), "8 bits at 8,000 Hz"),
        (wav(np.zeros(0)), "0 bytes of sound"),
        (wav(tone(300))[:-99], "7,901 bytes of sound"),
    ],
)
def test_sound_that_cannot_be_read(tmp_path: Path, data: bytes, told: str) -> None:
    write(tmp_path / "recordings/1_theo_0.wav", data)
    with pytest.raises(
        DataError, match=rf"1_theo_0.wav: cannot be read \(({told}).*expected 16 bits.*; fetch it again"
    ):
        fsdd.load(tmp_path, 0)


def test_a_folder_without_clips(tmp_path: Path) -> None:
    write(tmp_path / "recordings/readme.txt", b"x")
    with pytest.raises(DataError, match=r"recordings: no files such as 7_george_32.wav .*expected 3,000 of them"):
        fsdd.load(tmp_path, 0)


def trajectory(*strokes: list[tuple[int, int]]) -> bytes:
    """As Chars74K writes it: rows, then columns."""
    lists = ("".join("[\r\n" + "\r\n".join(f"{p[i]:.7e}" for p in s) + "\r\n];" for s in strokes) for i in (1, 0))
    return "rows = {{{}}};\r\ncols = {{{}}};\r\n".format(*lists).encode()


CROSS = ([(100, 300), (500, 300)], [(300, 100), (300, 500)])  # (across, down)


def test_strokes_are_drawn_to_size_in_the_middle() -> None:
    pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'posterity[images]'")
    picture = draw_strokes(read_strokes("a", trajectory(*CROSS)))
    assert (picture.shape, picture[14, 14], picture[2, 2]) == ((28, 28), 255, 0)
    assert np.array_equal(picture > 64, (picture > 64).T)
    rows = np.flatnonzero((picture > 64).any(1))
    assert (rows.min(), rows.max()) == (3, 24)  # 20 pixels, and a pen of 2.4
    assert abs(int(picture[20].sum()) / 255 - 2.4) < 0.3
    flat = draw_strokes(read_strokes("a", trajectory(CROSS[0])))
    assert flat[14].max() == 255
    assert flat[:12].max() == flat[16:].max() == 0
    dot = draw_strokes(read_strokes("a", trajectory([(7, 9)])))
    assert dot[14, 14] > 200


@pytest.mark.parametrize("form", ["archive", "folder"])
def test_chars74k_from_strokes(tmp_path: Path, form: str) -> None:
    pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'posterity[images]'")
    members = {f"English/Hnd/Trj/Sample{c:03}/img{c:03}_{w:03}.m": trajectory(CROSS[(c + w) % 2])
               for c in (1, 11, 62) for w in (2, 1)}  # fmt: skip
    members["English/Hnd/Img/Sample001/img001-001.png"] = b"a picture that is not read"
    if form == "archive":
        tar(tmp_path / "EnglishHnd.tgz", members)
    else:
        for name, data in members.items():
            write(tmp_path / "chars74k" / name, data)
    pool = chars74k.load(tmp_path, 0)
    assert (pool.y.tolist(), owners(pool)) == ([0, 10, 61] * 2, [0] * 3 + [1] * 3)
    assert [pool.class_names[k] for k in (0, 10, 61)] == ["0", "A", "z"]
    assert (pool.owner_names, pool.notes) == (("writer 0", "writer 1"), ("chars74k: 6 of 3,410 characters",))
    lying = torch.from_numpy(draw_strokes(read_strokes("a", trajectory(CROSS[0]))) / 127.5 - 1).float()
    assert torch.allclose(pool.x[0, 0], lying)
    assert torch.allclose(pool.x[1, 0], lying)
    assert torch.allclose(pool.x[3, 0], lying.T)


@pytest.mark.parametrize(
    "data", [b"rows = {[1];};", b"rows = {[1\n2];};cols = {[1];};", b"rows = {[x];};cols = {[1];};", b"",
             b"rows = {[1];[2];};cols = {[1];};", b"rows = {[1e999];};cols = {[1];};"]
)  # fmt: skip
def test_strokes_that_cannot_be_read(tmp_path: Path, data: bytes) -> None:
    write(tmp_path / "English/Hnd/Trj/Sample001/img001_001.m", data)
    with pytest.raises(DataError, match=r"img001_001.m: cannot be read .*; expected rows = .*fetch the archi"):
        chars74k.load(tmp_path, 0)


def test_an_archive_of_other_things(tmp_path: Path) -> None:
    tar(tmp_path / "EnglishHnd.tgz", {"English/Img/GoodImg/a.png": b"x"})
    with pytest.raises(DataError, match=r"EnglishHnd.tgz: no files such as Trj/img001_001.m; expected strokes of 62"):
        chars74k.load(tmp_path, 0)
    (tmp_path / "EnglishHnd.tgz").write_bytes(b"torn")
    with pytest.raises(DataError, match=r"EnglishHnd.tgz: cannot be read .*complete; fetch it again"):
        chars74k.load(tmp_path, 0)


def write_lists(folder: Path, people: str = "ababacaab", smiles: str = "110010101") -> dict[str, bytes]:
    """Person b has three pictures and c one: fewer than five. Returns the pictures."""
    names = [f"{k:06}.jpg" for k in range(1, len(people) + 1)]
    write(folder / "identity_CelebA.txt", "".join(f"{n} {p}\n" for n, p in zip(names, people, strict=True)).encode())
    lines = [f"{n} -1  {1 if s == '1' else -1} 1" for n, s in zip(names, smiles, strict=True)]
    write(folder / "list_attr_celeba.txt", "\n".join([str(len(names)), "Bald Smiling Young ", *lines, ""]).encode())
    return {name: shot(9, "JPEG") for name in names}


@pytest.mark.parametrize("form", ["zip", "folder"])
def test_celebas_own_files(tmp_path: Path, form: str) -> None:
    pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'posterity[images]'")
    shots = write_lists(tmp_path / "celeba")
    if form == "zip":
        zipped(tmp_path / "celeba/img_align_celeba.zip", {f"img_align_celeba/{n}": d for n, d in shots.items()})
    else:
        for name, data in shots.items():
            write(tmp_path / "celeba/img_align_celeba" / name, data)
    pool = celeba.load(tmp_path, 0, size=8)
    assert (tuple(pool.x.shape), pool.owner_names, owners(pool)) == ((5, 3, 8, 8), ("a",), [0] * 5)
    assert pool.y.tolist() == [1, 0, 1, 1, 0]  # pictures 1, 3, 5, 7, 8
    assert pool.notes == ("celeba: 5 of 200,288 pictures of people with 5 or more",)
    two = write_lists(tmp_path / "celeba", people="babababbaa", smiles="1" * 10)
    for name, data in two.items():
        write(tmp_path / "celeba/img_align_celeba" / name, data)
    (tmp_path / "celeba/img_align_celeba.zip").unlink(missing_ok=True)
    assert celeba.load(tmp_path, 0, size=8).owner_names == ("b", "a")


def test_lists_of_celeba_that_do_not_fit(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image", reason="Pillow is not installed: pip install 'posterity[images]'")
    home = tmp_path / "celeba"
    shots = write_lists(home)

    def refused(told: str) -> None:
        with pytest.raises(DataError, match=rf"{told}.*fetch it again"):
            celeba.load(tmp_path, 0, size=8)

    zipped(home / "img_align_celeba.zip", {n: d for n, d in shots.items() if n != "000007.jpg"})
    refused("img_align_celeba.zip: 1 pictures are missing, such as 000007.jpg")
    zipped(home / "img_align_celeba.zip", {**shots, "000007.jpg": b"torn"})
    with pytest.raises(DataError, match=r"000007.jpg cannot be read as a picture .*fetch the archive again"):
        celeba.load(tmp_path, 0, size=8)
    attributes = (home / "list_attr_celeba.txt").read_bytes()
    for old, new, told in (
        (b"Smiling", b"Frowning", r"cannot be read \(KeyError: 'Smiling'\); expected 1 or -1 for Smiling"),
        (b"000003.jpg -1  -1", b"000003.jpg -1  0", "cannot be read .*KeyError: '0'.*expected 1 or -1"),
        (b"000003.jpg -1", b"000003.jpg", "cannot be read .*argument 2 is shorter"),
        (
            b"000003.jpg",
            b"000333.jpg",
            "cannot be read .*KeyError: '000003.jpg'.*expected .* of all pictures of .*identity_CelebA.txt",
        ),
    ):
        assert old in attributes
        write(home / "list_attr_celeba.txt", attributes.replace(old, new))
        refused(f"list_attr_celeba.txt: {told}")


@pytest.mark.parametrize("module", [audiomnist, fsdd, chars74k, celeba])
def test_without_files_the_sentence_says_what_is_expected(tmp_path: Path, module: Any) -> None:
    named = module.__name__.rpartition(".")[2]
    with pytest.raises(DataError, match=rf"files found: none \(looked in .*expected .*`posterity datasets {named}`"):
        module.load(tmp_path, 0)


def test_rows_of_the_compact_files_stand_in_the_same_order() -> None:
    """Speakers, digits and takes; writers and classes: a seed gives the same clients whatever the form."""
    folder = os.environ.get("POSTERITY_DATA")
    found = find_form(fsdd.SOURCE, Path(folder)) if folder else None
    if folder is None or found is None or found.form.key != "compact":
        pytest.skip("POSTERITY_DATA is not set, or has no compact file of FSDD")
    pool = fsdd.load(Path(folder), 0)
    rows = list(zip(owners(pool), pool.y.tolist(), strict=True))
    assert (rows, pool.owner_names) == (sorted(rows), tuple(sorted(pool.owner_names)))
