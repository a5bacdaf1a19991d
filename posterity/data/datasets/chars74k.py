"""Chars74K by writer: 62 handwritten characters of each of 55 people, 28×28 (stand-in for FEMNIST).

T. de Campos, B. Babu, M. Varma, "Character Recognition in Natural Images", VISAPP 2009: the hand-drawn English part,
rendered from pen strokes. A client is a writer, with one picture of each class. Read from a compact file, or from the
strokes in the official `EnglishHnd.tgz` or its unpacked folder, drawn as `posterity/data/datasets/_strokes.py` says.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

import numpy as np

from posterity.data.archives import Array, read_npz, walk_members
from posterity.data.datasets._strokes import draw_strokes, read_strokes
from posterity.data.files import integers, names, pictures
from posterity.data.official import DataSource, File, Form, locate_form
from posterity.data.pool import DataError, Pool

FILES = ("chars74k_writers/chars74k_hnd_28.npz",)
NATURAL = True
CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
ROWS = 3_410
CHARACTER = re.compile(r"img([0-9]{3})[_-]([0-9]{3})\.m")  # class and writer, both from 1
SOURCE = DataSource(
    "http://www.ee.surrey.ac.uk/CVSSP/demos/chars74k/",
    ("chars74k_writers", "chars74k", "Chars74K", ""),
    (
        Form("compact", "compact file of ours: pen strokes of EnglishHnd as pictures", (File("chars74k_hnd_28.npz"),)),
        Form("official", "archive of the hand-drawn English part", (File("EnglishHnd.tgz"),)),
        Form("official", "archive, unpacked", (File("English/Hnd/Trj"),)),
    ),
)


def load(data_dir: Path | None, seed: int) -> Pool:
    found = locate_form("chars74k", SOURCE, data_dir)
    if found.form.key == "official":
        return _official(found.paths[0])
    stored = read_npz(found.paths[0], "class_names", "writer", "x", "y")
    x, y, writer = pictures(stored["x"]), integers(stored["y"]), integers(stored["writer"])
    kinds = names(stored["class_names"])
    return Pool("chars74k", x, y, len(kinds), kinds, owner=writer, owner_names=_people(int(writer.max()) + 1))


def _official(path: Path) -> Pool:
    """The characters writer by writer, class by class, as the compact file has them."""
    drawn: dict[tuple[int, int], Array] = {}
    for member, data in walk_members(path, lambda member: bool(_character(member))):
        match = _character(member)
        assert match is not None
        drawn[(int(match[2]) - 1, int(match[1]) - 1)] = draw_strokes(read_strokes(f"{path}: {member}", data))
    rows = sorted(drawn)
    if not rows or max(kind for _, kind in rows) >= len(CLASSES) or min(map(min, rows)) < 0:
        given = f"classes up to {max(kind for _, kind in rows) + 1}" if rows else "no files such as Trj/img001_001.m"
        raise DataError(f"{path}: {given}; expected strokes of {len(CLASSES)} classes by 55 writers; fetch it again")
    writer, y = (np.array([row[i] for row in rows]) for i in (0, 1))
    notes = (f"chars74k: {len(rows):,} of {ROWS:,} characters",) * (len(rows) != ROWS)
    return Pool(
        "chars74k", pictures(np.stack([drawn[row] for row in rows])), integers(y), len(CLASSES), CLASSES,
        owner=integers(writer), owner_names=_people(int(writer.max()) + 1), notes=notes, published=ROWS,
    )  # fmt: skip


def _character(member: str) -> re.Match[str] | None:
    return CHARACTER.fullmatch(PurePosixPath(member).name)


def _people(count: int) -> tuple[str, ...]:
    return tuple(f"writer {k}" for k in range(count))
