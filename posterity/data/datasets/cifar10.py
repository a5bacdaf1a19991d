"""CIFAR-10: 60,000 colour pictures, 32×32, ten classes.

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. Read from the official Python or binary
archive, from their unpacked folders, or from two stratified halves stored as lossless WebP sheets. One half alone is
read where there is nothing else, and the federation says so.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from posterity.data.archives import Array, read_npz
from posterity.data.datasets._cifar import BatchFile, CifarLayout, Labels, read_cifar
from posterity.data.files import integers, pictures, unsheet
from posterity.data.official import DataSource, File, Form, locate_form
from posterity.data.pool import Pool

FILES = ("cifar10/cifar10_half_a.npz",)
NATURAL = False
ROWS = 60_000
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
LABELS = Labels("labels", 10)
LAYOUT = CifarLayout(
    (*(BatchFile(f"data_batch_{k}", 10_000) for k in range(1, 6)), BatchFile("test_batch", 10_000, True)), (LABELS,)
)
HALF_A, HALF_B = File("cifar10_half_a.npz"), File("cifar10_half_b.npz")
SOURCE = DataSource(
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    ("cifar10", ""),
    (
        Form("halves", "compact files of ours, both halves", (HALF_A, HALF_B)),
        Form("binary", "binary archive",
             (File("cifar-10-binary.tar.gz", 170_052_171, "md5 c32a1d4ab5d03f1284b67883e8d87530"),)),
        Form("python", "Python archive",
             (File("cifar-10-python.tar.gz", 170_498_071, "md5 c58f30108f718f92721af3b95e74349a"),)),
        Form("binary", "binary archive, unpacked", (File("cifar-10-batches-bin"),)),
        Form("python", "Python archive, unpacked", (File("cifar-10-batches-py"),)),
        Form("halves", "one half of ours", (HALF_A,)),
    ),
)  # fmt: skip


def load(data_dir: Path | None, seed: int) -> Pool:
    found = locate_form("cifar10", SOURCE, data_dir)
    notes: tuple[str, ...] = ()
    if found.form.key == "halves":
        x, y, test = _halves(found.paths)
        if len(found.paths) == 1:
            notes = (f"cifar10: the stored half ({len(y):,} of {ROWS:,} pictures), stratified",)
    else:
        read = read_cifar(found.paths[0], found.form.key, LAYOUT, LABELS)
        x, y, test = read.x, read.y, read.test
    official = torch.from_numpy(test)
    return Pool("cifar10", pictures(x), integers(y), 10, CLASSES, official_test=official, notes=notes, published=ROWS)


def _halves(paths: tuple[Path, ...]) -> tuple[Array, Array, Array]:
    """Pictures, labels and which are for testing; both halves together are in the official order."""
    halves = [read_npz(path, "index", "labels", "offsets", "webp") for path in paths]
    x = np.concatenate([unsheet(h["webp"], h["offsets"], 32, len(h["labels"])) for h in halves])
    y = np.concatenate([h["labels"] for h in halves])
    place = np.concatenate([h["index"] for h in halves]).astype(np.int64)  # in the official order, test from 50,000
    if len(halves) == 2:  # the same seed then gives the same clients as from the archives
        order = np.argsort(place, kind="stable")
        x, y, place = x[order], y[order], place[order]
    return x, y, place >= 50_000
