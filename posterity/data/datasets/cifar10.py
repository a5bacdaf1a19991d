"""CIFAR-10: 60,000 colour pictures, 32×32, ten classes.

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. Read from the official Python or binary
archive, from their unpacked folders, or from two stratified halves stored as lossless WebP sheets. One half alone is
read where there is nothing else, and the federation says so.
"""

from pathlib import Path

import numpy as np

from posterity.data.archives import Array, read_npz
from posterity.data.datasets._cifar import Labels, read_cifar
from posterity.data.files import labelled, unsheet
from posterity.data.official import DataSource, File, form, locate_form
from posterity.data.pool import Pool

NATURAL = False
ROWS = 60_000
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
LABELS = Labels("labels", 10)
BATCHES = dict.fromkeys((*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"), 10_000)
HALF_A, HALF_B = "cifar10_half_a.npz", "cifar10_half_b.npz"
BINARY = File("cifar-10-binary.tar.gz", 170_052_171, "md5 c32a1d4ab5d03f1284b67883e8d87530")
PYTHON = File("cifar-10-python.tar.gz", 170_498_071, "md5 c58f30108f718f92721af3b95e74349a")
SOURCE = DataSource(
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    ("cifar10", ""),
    (
        form("halves", "compact files of ours, both halves", HALF_A, HALF_B),
        form("binary", "binary archive", BINARY),
        form("python", "Python archive", PYTHON),
        form("binary", "binary archive, unpacked", "cifar-10-batches-bin"),
        form("python", "Python archive, unpacked", "cifar-10-batches-py"),
        form("half", "one half of ours", HALF_A),
    ),
)


def load(data_dir: Path | None, seed: int) -> Pool:
    found = locate_form("cifar10", SOURCE, data_dir)
    if found.form.key in ("half", "halves"):
        x, y, test = _halves(found.paths)
    else:
        x, y, test, _ = read_cifar(found.paths[0], found.form.key, BATCHES, (LABELS,), LABELS)
    what = "pictures, a stratified half" if found.form.key == "half" else "pictures"
    return labelled("cifar10", x, y, CLASSES, test=test, published=ROWS, what=what)


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
