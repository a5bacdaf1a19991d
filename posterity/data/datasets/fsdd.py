"""Free Spoken Digit Dataset: 3,000 spoken digits of six people as log-mel pictures, 32×32.

Z. Jackson et al. (CC BY-SA 4.0). A client is a speaker. Read from a compact file, from the folder `recordings` of its
repository (files `DIGIT_SPEAKER_TAKE.wav` at 8 kHz) or from GitHub's archive of it. Sound becomes pictures as
`posterity/data/datasets/_sound.py` says.
"""

from pathlib import Path

from posterity.data.archives import read_npz
from posterity.data.datasets._sound import DIGITS, read_spoken
from posterity.data.files import labelled
from posterity.data.official import DataSource, form, locate_form
from posterity.data.pool import Pool

NATURAL = True
CLIPS = 3_000
SOURCE = DataSource(
    "https://github.com/Jakobovski/free-spoken-digit-dataset",
    ("free-spoken-digit-dataset", "fsdd", "spoken_digits", ""),
    (
        form("compact", "compact file of ours: log-mel pictures", "fsdd_logmel.npz"),
        form("official", "GitHub's archive of the repository", "free-spoken-digit-dataset-master.zip"),
        form("official", "the repository's folder of recordings", "recordings"),
    ),
)


def load(data_dir: Path | None, seed: int) -> Pool:
    found = locate_form("fsdd", SOURCE, data_dir)
    if found.form.key == "official":
        return read_spoken("fsdd", found.paths[0], CLIPS)
    stored = read_npz(found.paths[0], "speaker", "speaker_names", "x", "y")
    owner, people = stored["speaker"], stored["speaker_names"]
    return labelled("fsdd", stored["x"], stored["y"], DIGITS, owner=owner, people=people)
