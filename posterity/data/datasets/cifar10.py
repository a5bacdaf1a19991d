"""CIFAR-10: 60,000 colour pictures, 32×32, ten classes (or the 30,000 of the stored half).

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. Stored as lossless WebP sheets in two
stratified halves; the second half is used where it is present.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from posterity.data.archive import read_npz
from posterity.data.files import integers, locate, pictures, unsheet
from posterity.data.pool import Pool

FILES = ("cifar10/cifar10_half_a.npz",)
NATURAL = False
SECOND = "cifar10/cifar10_half_b.npz"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def load(data_dir: Path | None, seed: int) -> Pool:
    first = locate(data_dir, FILES[0], "cifar10")
    second = first.with_name(Path(SECOND).name)
    halves = [read_npz(path, "index", "labels", "offsets", "webp") for path in (first, second) if path.is_file()]
    x = np.concatenate([unsheet(h["webp"], h["offsets"], 32, len(h["labels"])) for h in halves])
    y = np.concatenate([h["labels"] for h in halves])
    place = np.concatenate([h["index"] for h in halves]).astype(np.int64)  # in the official order, test from 50,000
    notes = () if len(halves) == 2 else ("cifar10: the stored half (30,000 of 60,000 pictures), stratified",)
    official = torch.from_numpy(place >= 50_000)
    return Pool("cifar10", pictures(x), integers(y), 10, CLASSES, official_test=official, notes=notes)
