"""CIFAR-100: 60,000 colour pictures, 32×32, 100 fine or 20 coarse classes.

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. Read from the official Python or binary
archive, from their unpacked folders, or, where there is nothing else, from a stratified half (250 training and 50 test
pictures of each fine class) stored as lossless WebP sheets.
"""

from __future__ import annotations

from pathlib import Path

import torch

from posterity.data.archives import read_npz
from posterity.data.datasets._cifar import BatchFile, CifarLayout, Labels, read_cifar
from posterity.data.files import integers, names, pictures, unsheet
from posterity.data.official import DataSource, File, Form, locate_form
from posterity.data.pool import DataError, Pool

FILES = ("cifar100/cifar100_half.npz",)
NATURAL = False
ROWS = 60_000
COARSE = Labels("coarse_labels", 20, "coarse_label_names", "coarse_label_names.txt")
FINE = Labels("fine_labels", 100, "fine_label_names", "fine_label_names.txt")
LAYOUT = CifarLayout((BatchFile("train", 50_000), BatchFile("test", 10_000, True)), (COARSE, FINE))
SOURCE = DataSource(
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    ("cifar100", ""),
    (
        Form("binary", "binary archive",
             (File("cifar-100-binary.tar.gz", 168_513_733, "md5 03b5dce01913d631647c71ecec9e9cb8"),)),
        Form("python", "Python archive",
             (File("cifar-100-python.tar.gz", 169_001_437, "md5 eb9058c3a382ffc7106e4002c42a8d85"),)),
        Form("binary", "binary archive, unpacked", (File("cifar-100-binary"),)),
        Form("python", "Python archive, unpacked", (File("cifar-100-python"),)),
        Form("half", "compact file of ours, a stratified half", (File("cifar100_half.npz"),)),
    ),
)  # fmt: skip


def load(data_dir: Path | None, seed: int, *, labels: str = "fine") -> Pool:
    if labels not in ("fine", "coarse"):
        raise DataError(f'cifar100: labels={labels!r}; expected "fine" (100 classes) or "coarse" (20); pick one')
    found = locate_form("cifar100", SOURCE, data_dir)
    if found.form.key == "half":
        return _half(found.paths[0], labels)
    read = read_cifar(found.paths[0], found.form.key, LAYOUT, FINE if labels == "fine" else COARSE)
    official, kinds = torch.from_numpy(read.test), read.class_names
    return Pool("cifar100", pictures(read.x), integers(read.y), len(kinds), kinds, official_test=official)


def _half(path: Path, labels: str) -> Pool:
    stored = read_npz(path, "fine", labels, f"{labels}_names", "is_test", "offsets", "webp")
    x = unsheet(stored["webp"], stored["offsets"], 32, len(stored["fine"]))
    kinds = names(stored[f"{labels}_names"])
    return Pool(
        "cifar100",
        pictures(x),
        integers(stored[labels]),
        len(kinds),
        kinds,
        official_test=torch.from_numpy(stored["is_test"].astype(bool)),
        notes=("cifar100: the stored half (30,000 of 60,000 pictures), stratified",),
        published=ROWS,
    )
