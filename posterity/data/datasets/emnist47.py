"""EMNIST, 47 merged classes of handwritten digits and letters, 28×28: EMNIST-Balanced, or 27,613 pictures of its kind.

G. Cohen, S. Afshar, J. Tapson, A. van Schaik, "EMNIST", 2017, from NIST Special Database 19. The official files of the
balanced split are read where they are there (as `emnist` does); otherwise a compact file, in which parts of the
official splits are pooled (568 to 606 pictures of each class), so that there is no official test split.
"""

from pathlib import Path

from posterity.data.archives import read_npz
from posterity.data.datasets import emnist
from posterity.data.files import labelled
from posterity.data.official import DataSource, form, locate_form
from posterity.data.pool import Pool

NATURAL = False
SOURCE = DataSource(
    emnist.SOURCE.url,
    ("emnist47", *emnist.FOLDERS),
    (*emnist.forms("balanced"), form("compact", "compact file of ours, a part", "emnist47.npz")),
)


def load(data_dir: Path | None, seed: int) -> Pool:
    found = locate_form("emnist47", SOURCE, data_dir)
    if found.form.key != "compact":
        return emnist.read(found, "emnist47", "balanced")
    stored = read_npz(found.paths[0], "class_names", "x", "y")
    what = "pictures, of EMNIST ByMerge and Balanced"
    return labelled("emnist47", stored["x"], stored["y"], stored["class_names"], published=131_600, what=what)
