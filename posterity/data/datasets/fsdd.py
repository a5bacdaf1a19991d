"""Free Spoken Digit Dataset: 3,000 spoken digits of six people as log-mel pictures, 32×32.

Z. Jackson et al. (CC BY-SA 4.0). A client is a speaker.
"""

from __future__ import annotations

from pathlib import Path

from posterity.data.archive import read_npz
from posterity.data.files import integers, names, pictures
from posterity.data.pool import Pool
from posterity.data.source import DataSource, File, Form, locate_form

FILES = ("spoken_digits/fsdd_logmel.npz",)
NATURAL = True
SOURCE = DataSource(
    "https://github.com/Jakobovski/free-spoken-digit-dataset",
    ("spoken_digits", ""),
    (Form("compact", "compact file of ours: log-mel pictures", (File("fsdd_logmel.npz"),)),),
)


def load(data_dir: Path | None, seed: int) -> Pool:
    stored = read_npz(locate_form("fsdd", SOURCE, data_dir).paths[0], "speaker", "speaker_names", "x", "y")
    people = names(stored["speaker_names"])
    x, y = pictures(stored["x"]), integers(stored["y"])
    return Pool("fsdd", x, y, 10, tuple("0123456789"), owner=integers(stored["speaker"]), owner_names=people)
