"""AudioMNIST: spoken digits of 60 people as log-mel pictures, 32×32 (stand-in for CHiME-5); 30,000, or 9,000 of them.

S. Becker et al., "AudioMNIST", J. Franklin Institute 2023 (MIT licence). A client is a speaker. Read from the folder
`data` of its repository (01 … 60, files `DIGIT_SPEAKER_TAKE.wav` at 48 kHz) or GitHub's archive of it, or, where there
is neither, from a compact file with takes 0 to 14. Sound becomes pictures as `posterity/data/datasets/_sound.py` says.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from posterity.data.archives import read_npz
from posterity.data.datasets._sound import DIGITS, read_spoken
from posterity.data.files import integers, pictures
from posterity.data.official import DataSource, File, Form, locate_form
from posterity.data.pool import Pool

FILES = ("spoken_digits/audiomnist_logmel.npz",)
NATURAL = True
CLIPS = 30_000
SOURCE = DataSource(
    "https://github.com/soerenab/AudioMNIST",
    ("AudioMNIST", "audiomnist", "spoken_digits", ""),
    (
        Form("official", "GitHub's archive of the repository", (File("AudioMNIST-master.zip"),)),
        Form("official", "the repository's folders of speakers", (File("data/01"), File("data/60"))),
        Form("compact", "compact file of ours: log-mel pictures of takes 0 to 14", (File("audiomnist_logmel.npz"),)),
    ),
)


def load(data_dir: Path | None, seed: int) -> Pool:
    found = locate_form("audiomnist", SOURCE, data_dir)
    path = found.paths[0]
    if found.form.key == "official":
        pool = read_spoken("audiomnist", path.parent if path.is_dir() else path, CLIPS)
        return replace(pool, owner_names=tuple(_person(name) for name in pool.owner_names))
    stored = read_npz(path, "speaker", "x", "y")
    speaker = integers(stored["speaker"]) - 1  # stored from 1
    people = tuple(_person(str(k + 1)) for k in range(int(speaker.max()) + 1))
    x, y = pictures(stored["x"]), integers(stored["y"])
    note = f"audiomnist: {len(y):,} of {CLIPS:,} clips, takes 0 to 14"
    return Pool(
        "audiomnist", x, y, 10, DIGITS, owner=speaker, owner_names=people, notes=(note,) * (len(y) != CLIPS),
        published=CLIPS,
    )  # fmt: skip


def _person(number: str) -> str:
    return f"speaker {int(number)}" if number.isdecimal() else number
