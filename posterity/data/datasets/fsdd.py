"""Free Spoken Digit Dataset: 3,000 spoken digits of six people as log-mel pictures, 32×32.

Z. Jackson et al. (CC BY-SA 4.0). A client is a speaker.
"""

from __future__ import annotations

from pathlib import Path

from posterity.data.archive import read_npz
from posterity.data.files import integers, locate, names, pictures
from posterity.data.pool import Pool

FILES = ("spoken_digits/fsdd_logmel.npz",)
NATURAL = True


def load(data_dir: Path | None, seed: int) -> Pool:
    stored = read_npz(locate(data_dir, FILES[0], "fsdd"), "speaker", "speaker_names", "x", "y")
    people = names(stored["speaker_names"])
    x, y = pictures(stored["x"]), integers(stored["y"])
    return Pool("fsdd", x, y, 10, tuple("0123456789"), owner=integers(stored["speaker"]), owner_names=people)
