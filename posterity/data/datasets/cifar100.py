"""CIFAR-100: 30,000 of the 60,000 colour pictures, 32×32, 100 fine or 20 coarse classes.

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. A stratified half, 250 training and 50
test pictures of each fine class, stored as lossless WebP sheets.
"""

from __future__ import annotations

from pathlib import Path

import torch

from posterity.data.archive import read_npz
from posterity.data.files import integers, locate, names, pictures, unsheet
from posterity.data.pool import DataError, Pool

FILES = ("cifar100/cifar100_half.npz",)
NATURAL = False


def load(data_dir: Path | None, seed: int, *, labels: str = "fine") -> Pool:
    if labels not in ("fine", "coarse"):
        raise DataError(f'cifar100: labels={labels!r}; expected "fine" (100 classes) or "coarse" (20); pick one')
    stored = read_npz(
        locate(data_dir, FILES[0], "cifar100"), "fine", labels, f"{labels}_names", "is_test", "offsets", "webp"
    )
    x = unsheet(stored["webp"], stored["offsets"], 32, len(stored["fine"]))
    kinds = names(stored[f"{labels}_names"])
    official = torch.from_numpy(stored["is_test"].astype(bool))
    note = "cifar100: the stored half (30,000 of 60,000 pictures), stratified"
    y = integers(stored[labels])
    return Pool("cifar100", pictures(x), y, len(kinds), kinds, official_test=official, notes=(note,))
