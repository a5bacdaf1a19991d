"""AudioMNIST: spoken digits of 60 people as log-mel pictures, 32×32 (stand-in for CHiME-5); 30,000, or 9,000 of them.

S. Becker et al., "AudioMNIST", J. Franklin Institute 2023 (MIT licence). A client is a speaker. Read from the folder
`data` of its repository (01 … 60, files `DIGIT_SPEAKER_TAKE.wav` at 48 kHz) or GitHub's archive of it, or, where there
is neither, from a compact file with takes 0 to 14. Sound becomes pictures as `posterity/data/datasets/_sound.py` says.
"""

from pathlib import Path

from posterity.data.archives import read_npz
from posterity.data.datasets._sound import DIGITS, read_spoken
from posterity.data.files import labelled
from posterity.data.official import DataSource, form, locate_form
from posterity.data.pool import Pool

NATURAL = True
CLIPS = 30_000
SOURCE = DataSource(
    "https://github.com/soerenab/AudioMNIST",
    ("AudioMNIST", "audiomnist", "spoken_digits", ""),
    (
        form("official", "GitHub's archive of the repository", "AudioMNIST-master.zip"),
        form("official", "the repository's folders of speakers", "data/01", "data/60"),
        form("compact", "compact file of ours: log-mel pictures of takes 0 to 14", "audiomnist_logmel.npz"),
    ),
)


def load(data_dir: Path | None, seed: int) -> Pool:
    found = locate_form("audiomnist", SOURCE, data_dir)
    path = found.paths[0]
    if found.form.key == "official":
        return read_spoken("audiomnist", path.parent if path.is_dir() else path, CLIPS, _person)
    stored = read_npz(path, "speaker", "x", "y")
    owner = stored["speaker"].astype(int) - 1  # stored from 1
    people = [_person(str(k + 1)) for k in range(int(owner.max()) + 1)]
    return labelled(
        "audiomnist", stored["x"], stored["y"], DIGITS, owner=owner, people=people, published=CLIPS,
        what="clips, takes 0 to 14",
    )  # fmt: skip


def _person(number: str) -> str:
    return f"speaker {int(number)}" if number.isdecimal() else number
