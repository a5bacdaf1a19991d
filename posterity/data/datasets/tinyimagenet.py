"""TinyImageNet: 8,000 of its colour pictures, 64×64, 200 classes.

Stanford CS231n, from ImageNet (non-commercial research). 30 training and 10 validation pictures of each class; the
validation pictures count as the official test split, as in the literature.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from posterity.data.archive import read_npz
from posterity.data.files import decode_all, integers, locate, names, pictures
from posterity.data.pool import Pool

FILES = ("tinyimagenet_subset/tinyimagenet_subset.npz",)
NATURAL = False


def load(data_dir: Path | None, seed: int) -> Pool:
    stored = read_npz(locate(data_dir, FILES[0], "tinyimagenet"), "class_names", "is_val", "jpeg", "labels", "offsets")
    x = pictures(np.stack(decode_all(stored["jpeg"], stored["offsets"])))
    kinds = names(stored["class_names"])
    official = torch.from_numpy(stored["is_val"].astype(bool))
    note = "tinyimagenet: 8,000 of 110,000 pictures"
    y = integers(stored["labels"])
    return Pool("tinyimagenet", x, y, len(kinds), kinds, official_test=official, notes=(note,))
