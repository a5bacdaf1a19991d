"""TinyImageNet: 110,000 colour pictures, 64×64, 200 classes.

Stanford CS231n, from ImageNet (non-commercial research). 500 training and 50 validation pictures of each class; the
validation pictures count as the official test split, as in the literature. Read from the official ZIP file or its
unpacked folder, or, where there is neither, from a compact file with 30 and 10 of each class.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from posterity.data.archives import Array, read_members, read_npz
from posterity.data.files import decode_all, decode_member, integers, names, pictures
from posterity.data.official import DataSource, File, Form, locate_form
from posterity.data.pool import DataError, Pool

FILES = ("tinyimagenet_subset/tinyimagenet_subset.npz",)
NATURAL = False
ROWS, SIDE = 110_000, 64
TOP, NOTED = "tiny-imagenet-200/", "val/val_annotations.txt"
SOURCE = DataSource(
    "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    ("tinyimagenet", "tiny-imagenet", "", "tinyimagenet_subset"),
    (
        Form("official", "archive",
             (File("tiny-imagenet-200.zip", 248_100_043, "md5 90528d7ca1a48142e341f4ef8d21d0de"),)),
        Form("official", "archive, unpacked", (File("tiny-imagenet-200"),)),
        Form("compact", "compact file of ours, a part", (File("tinyimagenet_subset.npz"),)),
    ),
)  # fmt: skip


def load(data_dir: Path | None, seed: int) -> Pool:
    found = locate_form("tinyimagenet", SOURCE, data_dir)
    if found.form.key == "official":
        return _official(found.paths[0])
    stored = read_npz(found.paths[0], "class_names", "is_val", "jpeg", "labels", "offsets")
    x = np.stack(decode_all(stored["jpeg"], stored["offsets"]))
    return _pool(x, stored["labels"], names(stored["class_names"]), stored["is_val"].astype(bool))


def _pool(x: Array, y: Array, kinds: tuple[str, ...], test: Array) -> Pool:
    notes = (f"tinyimagenet: {len(y):,} of {ROWS:,} pictures",) * (len(y) != ROWS)
    official = torch.from_numpy(test)
    return Pool(
        "tinyimagenet", pictures(x), integers(y), len(kinds), kinds, official_test=official, notes=notes, published=ROWS
    )


def _official(path: Path) -> Pool:
    """Training pictures class by class, then the validation pictures in the order of their annotations."""
    stored = {name.removeprefix(TOP): data for name, data in read_members(path, _wanted).items()}
    train = [name for name in stored if name.startswith("train/")]
    ids = sorted({name.split("/")[1] for name in train})
    if not ids or NOTED not in stored:
        raise DataError(
            f"{path}: {len(train)} training pictures and {'' if NOTED in stored else 'no '}{NOTED}; expected "
            "train/CLASS/images/*.JPEG and the annotations; fetch the archive again"
        )
    pairs = [(name, name.split("/")[1]) for name in train]
    pairs += _annotated(path, stored[NOTED])
    for name, kind in pairs:
        if name not in stored or kind not in ids:
            raise DataError(f"{path}: {name} of class {kind} is missing; expected it; fetch the archive again")
    y = np.array([ids.index(kind) for _, kind in pairs])
    x = np.empty((len(pairs), SIDE, SIDE, 3), dtype=np.uint8)
    for row, (name, _) in enumerate(pairs):
        x[row] = _picture(f"{path}: {name}", stored[name])
    return _pool(x, y, _class_names(stored.get("words.txt", b""), ids), np.arange(len(y)) >= len(train))


def _wanted(member: str) -> bool:
    name = member.removeprefix(TOP)
    parts = name.split("/")
    folders = (len(parts) == 4 and parts[0] == "train") or (len(parts) == 3 and parts[0] == "val")
    return name in (NOTED, "words.txt") or (folders and parts[-2] == "images" and name.upper().endswith(".JPEG"))


def _annotated(path: Path, data: bytes) -> list[tuple[str, str]]:
    """Validation pictures and their classes."""
    lines = [line.split("\t") for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
    if short := [line for line in lines if len(line) < 2]:
        raise DataError(
            f"{path}: {NOTED} has the line {short[0][0][:60]!r}; expected a picture, a tab and a class; fetch it again"
        )
    return [(f"val/images/{line[0]}", line[1]) for line in lines]


def _picture(where: str, data: bytes) -> Array:
    shot = decode_member(where, data)
    if shot.shape != (SIDE, SIDE, 3):
        raise DataError(
            f"{where} has {shot.shape[1]}×{shot.shape[0]} pixels; expected {SIDE}×{SIDE}; fetch the archive again"
        )
    return shot


def _class_names(data: bytes, ids: list[str]) -> tuple[str, ...]:
    lines = (line.partition("\t") for line in data.decode("utf-8", "replace").splitlines())
    known = {word: meaning.strip() for word, _, meaning in lines}
    return tuple(known.get(each) or each for each in ids)
