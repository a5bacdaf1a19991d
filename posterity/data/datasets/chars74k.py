"""Chars74K by writer: 62 handwritten characters of each of 55 people, 28×28 (stand-in for FEMNIST).

T. de Campos, B. Babu, M. Varma, "Character Recognition in Natural Images", VISAPP 2009: the hand-drawn English part,
rendered from pen strokes. A client is a writer, with one picture of each class. Read from a compact file, or from the
strokes in the official `EnglishHnd.tgz` or its unpacked folder, drawn as `posterity/data/datasets/_strokes.py` says.
"""

import re
from pathlib import Path

import numpy as np

from posterity.data.archives import Array, read_npz, walk_matching
from posterity.data.datasets._strokes import draw_strokes, read_strokes
from posterity.data.files import labelled
from posterity.data.official import DataSource, form, locate_form
from posterity.data.pool import DataError, Pool

NATURAL = True
CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
ROWS = 3_410
CHARACTER = re.compile(r"img([0-9]{3})[_-]([0-9]{3})\.m")  # class and writer, both from 1
SOURCE = DataSource(
    "http://www.ee.surrey.ac.uk/CVSSP/demos/chars74k/",
    ("chars74k_writers", "chars74k", "Chars74K", ""),
    (
        form("compact", "compact file of ours: pen strokes of EnglishHnd as pictures", "chars74k_hnd_28.npz"),
        form("official", "archive of the hand-drawn English part", "EnglishHnd.tgz"),
        form("official", "archive, unpacked", "English/Hnd/Trj"),
    ),
)


def load(data_dir: Path | None, seed: int) -> Pool:
    """The characters writer by writer, class by class, in either form."""
    found = locate_form("chars74k", SOURCE, data_dir)
    kinds = CLASSES
    if found.form.key == "official":
        drawn = _drawn(found.paths[0])
        rows = sorted(drawn)
        x, (writer, y) = np.stack([drawn[row] for row in rows]), np.array(rows).T
    else:
        stored = read_npz(found.paths[0], "class_names", "writer", "x", "y")
        x, y, writer, kinds = stored["x"], stored["y"], stored["writer"], tuple(stored["class_names"])
    people = [f"writer {k}" for k in range(int(writer.max()) + 1)]
    return labelled("chars74k", x, y, kinds, owner=writer, people=people, published=ROWS, what="characters")


def _drawn(path: Path) -> dict[tuple[int, int], Array]:
    """Pictures by writer and class, both from 0."""
    drawn = {
        (int(match[2]) - 1, int(match[1]) - 1): draw_strokes(read_strokes(where, data))
        for match, where, data in walk_matching(path, CHARACTER)
    }
    if not drawn or max(kind for _, kind in drawn) >= len(CLASSES) or min(map(min, drawn)) < 0:
        given = f"classes up to {max(kind for _, kind in drawn) + 1}" if drawn else "no files such as Trj/img001_001.m"
        raise DataError(f"{path}: {given}; expected strokes of {len(CLASSES)} classes by 55 writers; fetch it again")
    return drawn
