"""EMNIST, 47 merged classes: 27,613 handwritten digits and letters, 28×28 (stand-in for EMNIST-Balanced).

G. Cohen, S. Afshar, J. Tapson, A. van Schaik, "EMNIST", 2017, from NIST Special Database 19. Parts of the official
splits are pooled (568 to 606 pictures of each class), so there is no official test split.
"""

from __future__ import annotations

from pathlib import Path

from posterity.data.archive import read_npz
from posterity.data.files import integers, locate, names, pictures
from posterity.data.pool import Pool

FILES = ("emnist47/emnist47.npz",)
NATURAL = False


def load(data_dir: Path | None, seed: int) -> Pool:
    stored = read_npz(locate(data_dir, FILES[0], "emnist47"), "class_names", "x", "y")
    note = "emnist47: 27,613 pictures of EMNIST ByMerge/Balanced, not the whole of EMNIST-Balanced"
    kinds = names(stored["class_names"])
    return Pool("emnist47", pictures(stored["x"]), integers(stored["y"]), len(kinds), kinds, notes=(note,))
