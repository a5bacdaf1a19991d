"""CelebA: smiling or not, pictures of celebrities by person, resized to 84×84, as LEAF prepares them.

Z. Liu, P. Luo, X. Wang, X. Tang, "Deep Learning Face Attributes in the Wild", ICCV 2015 (non-commercial research);
S. Caldas et al., "LEAF", 2018. A client is a person. Read from LEAF's JSON files, which name pictures, and the folder
`img_align_celeba`; option `size`: pixels.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from posterity.data.archive import Array
from posterity.data.files import pictures
from posterity.data.image_folder import LARGEST, read_picture
from posterity.data.leaf_json import leaf_forms, leaf_pool
from posterity.data.pool import DataError, Pool
from posterity.data.source import DataSource, locate_form

FILES = ("celeba/data/train", "celeba/data/test", "celeba/data/raw/img_align_celeba")
NATURAL = True
CLASSES = ("not smiling", "smiling")
SOURCE = DataSource(
    "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html and https://github.com/TalwalkarLab/leaf",
    ("celeba/data", "celeba", "leaf/data/celeba/data"),
    (*leaf_forms("raw/img_align_celeba"), *leaf_forms("img_align_celeba")),
)


def load(data_dir: Path | None, seed: int, *, size: int = 84) -> Pool:
    if not 1 <= size <= LARGEST:
        raise DataError(f"celeba: size={size}; expected 1 to {LARGEST} pixels; change it")
    found = locate_form("celeba", SOURCE, data_dir)
    *folders, shots = found.paths
    return leaf_pool("celeba", folders, partial(_converted, folder=shots, size=size), pictures, CLASSES)


def _converted(x: list[Any], where: str, folder: Path, size: int) -> Array:
    for name in x:
        if not isinstance(name, str) or Path(name).name != name or name in ("", ".", ".."):
            raise DataError(f"{where} has the picture {str(name)[:60]!r}; expected the name of a file in {folder}")
    return np.stack([read_picture(folder / name, size, folder) for name in x])
