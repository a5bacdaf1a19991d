"""TinyImageNet: 110,000 colour pictures, 64×64, 200 classes.

Stanford CS231n, from ImageNet (non-commercial research). 500 training and 50 validation pictures of each class; the
validation pictures count as the official test split, as in the literature. Read from the official ZIP file or its
unpacked folder, or, where there is neither, from a compact file with 30 and 10 of each class.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from posterity.data.archives import Array, read_members, read_npz
from posterity.data.files import decode_all, decode_member, labelled
from posterity.data.official import DataSource, File, form, locate_form
from posterity.data.pool import DataError, Pool

NATURAL = False
ROWS, SIDE = 110_000, 64
TOP, NOTED = "tiny-imagenet-200/", "val/val_annotations.txt"
ARCHIVE = File("tiny-imagenet-200.zip", 248_100_043, "md5 90528d7ca1a48142e341f4ef8d21d0de")
SOURCE = DataSource(
    "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    ("tinyimagenet", "tiny-imagenet", "", "tinyimagenet_subset"),
    (
        form("official", "archive", ARCHIVE),
        form("official", "archive, unpacked", "tiny-imagenet-200"),
        form("compact", "compact file of ours, a part", "tinyimagenet_subset.npz"),
    ),
)


def load(data_dir: Path | None, seed: int) -> Pool:
    found = locate_form("tinyimagenet", SOURCE, data_dir)
    if found.form.key == "official":
        x, y, kinds, test = _official(found.paths[0])
    else:
        stored = read_npz(found.paths[0], "class_names", "is_val", "jpeg", "labels", "offsets")
        x = np.stack(decode_all(stored["jpeg"], stored["offsets"]))
        y, kinds, test = stored["labels"], list(stored["class_names"]), stored["is_val"]
    return labelled("tinyimagenet", x, y, kinds, test=test, published=ROWS)


def _official(path: Path) -> tuple[Array, Array, list[str], Array]:
    """Training pictures class by class, then the validation pictures in the order of their annotations."""
    stored = {name.removeprefix(TOP): data for name, data in read_members(path, _wanted).items()}
    train = [name for name in stored if name.startswith("train/")]
    ids = sorted({name.split("/")[1] for name in train})
    if not ids or NOTED not in stored:
        given = f"{len(train)} training pictures and {'' if NOTED in stored else 'no '}{NOTED}"
        raise DataError(f"{path}: {given}; expected train/CLASS/images/*.JPEG and the annotations; fetch it again")
    pairs = [*((name, name.split("/")[1]) for name in train), *_annotated(path, stored[NOTED])]
    x = np.empty((len(pairs), SIDE, SIDE, 3), dtype=np.uint8)
    for row, (name, kind) in enumerate(pairs):
        if name not in stored or kind not in ids:
            raise DataError(f"{path}: {name} of class {kind} is missing; expected it; fetch the archive again")
        shot = decode_member(f"{path}: {name}", stored[name])
        if shot.shape != (SIDE, SIDE, 3):
            given = f"{path}: {name} has {shot.shape[1]}×{shot.shape[0]} pixels"
            raise DataError(f"{given}; expected {SIDE}×{SIDE}; fetch the archive again")
        x[row] = shot
    y, test = np.array([ids.index(kind) for _, kind in pairs]), np.arange(len(pairs)) >= len(train)
    return x, y, _class_names(stored.get("words.txt", b""), ids), test


def _wanted(member: str) -> bool:
    name = member.removeprefix(TOP)
    parts = name.split("/")
    folders = (len(parts) == 4 and parts[0] == "train") or (len(parts) == 3 and parts[0] == "val")
    return name in (NOTED, "words.txt") or (folders and parts[-2] == "images" and name.upper().endswith(".JPEG"))


def _annotated(path: Path, data: bytes) -> list[tuple[str, str]]:
    """Validation pictures and their classes."""
    lines = [line.split("\t") for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
    if short := [line for line in lines if len(line) < 2]:
        given = f"{path}: {NOTED} has the line {short[0][0][:60]!r}"
        raise DataError(f"{given}; expected a picture, a tab and a class; fetch it again")
    return [(f"val/images/{line[0]}", line[1]) for line in lines]


def _class_names(data: bytes, ids: list[str]) -> list[str]:
    lines = (line.partition("\t") for line in data.decode("utf-8", "replace").splitlines())
    known = {word: meaning.strip() for word, _, meaning in lines}
    return [known.get(each) or each for each in ids]
