"""AudioMNIST: 9,000 spoken digits of 60 people as log-mel pictures, 32×32 (stand-in for CHiME-5).

S. Becker et al., "AudioMNIST", J. Franklin Institute 2023 (MIT licence), takes 0 to 14. A client is a speaker.
"""

from __future__ import annotations

from pathlib import Path

from posterity.data.archive import read_npz
from posterity.data.files import integers, pictures
from posterity.data.pool import Pool
from posterity.data.source import DataSource, File, Form, locate_form

FILES = ("spoken_digits/audiomnist_logmel.npz",)
NATURAL = True
SOURCE = DataSource(
    "https://github.com/soerenab/AudioMNIST",
    ("spoken_digits", ""),
    (Form("compact", "compact file of ours: log-mel pictures of takes 0 to 14", (File("audiomnist_logmel.npz"),)),),
)


def load(data_dir: Path | None, seed: int) -> Pool:
    stored = read_npz(locate_form("audiomnist", SOURCE, data_dir).paths[0], "speaker", "x", "y")
    speaker = integers(stored["speaker"]) - 1  # stored from 1
    people = tuple(f"speaker {k + 1}" for k in range(int(speaker.max()) + 1))
    x, y = pictures(stored["x"]), integers(stored["y"])
    return Pool("audiomnist", x, y, 10, tuple("0123456789"), owner=speaker, owner_names=people)
