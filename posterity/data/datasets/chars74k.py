"""Chars74K by writer: 62 handwritten characters of each of 55 people, 28×28 (stand-in for FEMNIST).

T. de Campos, B. Babu, M. Varma, "Character Recognition in Natural Images", VISAPP 2009: the hand-drawn English part,
rendered from pen strokes. A client is a writer, with one picture of each class.
"""

from __future__ import annotations

from pathlib import Path

from posterity.data.archive import read_npz
from posterity.data.files import integers, names, pictures
from posterity.data.pool import Pool
from posterity.data.source import DataSource, File, Form, locate_form

FILES = ("chars74k_writers/chars74k_hnd_28.npz",)
NATURAL = True
SOURCE = DataSource(
    "http://www.ee.surrey.ac.uk/CVSSP/demos/chars74k/",
    ("chars74k_writers", ""),
    (Form("compact", "compact file of ours: pen strokes of EnglishHnd as pictures", (File("chars74k_hnd_28.npz"),)),),
)


def load(data_dir: Path | None, seed: int) -> Pool:
    stored = read_npz(locate_form("chars74k", SOURCE, data_dir).paths[0], "class_names", "writer", "x", "y")
    kinds, writer = names(stored["class_names"]), integers(stored["writer"])
    people = tuple(f"writer {k}" for k in range(int(writer.max()) + 1))
    x, y = pictures(stored["x"]), integers(stored["y"])
    return Pool("chars74k", x, y, len(kinds), kinds, owner=writer, owner_names=people)
