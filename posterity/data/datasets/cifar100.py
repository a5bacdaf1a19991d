"""CIFAR-100: 60,000 colour pictures, 32×32, 100 fine or 20 coarse classes.

A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. Read from the official Python or binary
archive, from their unpacked folders, or, where there is nothing else, from a stratified half (250 training and 50 test
pictures of each fine class) stored as lossless WebP sheets.
"""

from pathlib import Path

from posterity.data.archives import read_npz
from posterity.data.datasets._cifar import Labels, read_cifar
from posterity.data.files import labelled, unsheet
from posterity.data.official import DataSource, File, form, locate_form
from posterity.data.pool import DataError, Pool

NATURAL = False
COARSE = Labels("coarse_labels", 20, "coarse_label_names")
FINE = Labels("fine_labels", 100, "fine_label_names")
BATCHES = {"train": 50_000, "test": 10_000}
BINARY = File("cifar-100-binary.tar.gz", 168_513_733, "md5 03b5dce01913d631647c71ecec9e9cb8")
PYTHON = File("cifar-100-python.tar.gz", 169_001_437, "md5 eb9058c3a382ffc7106e4002c42a8d85")
SOURCE = DataSource(
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    ("cifar100", ""),
    (
        form("binary", "binary archive", BINARY),
        form("python", "Python archive", PYTHON),
        form("binary", "binary archive, unpacked", "cifar-100-binary"),
        form("python", "Python archive, unpacked", "cifar-100-python"),
        form("half", "compact file of ours, a stratified half", "cifar100_half.npz"),
    ),
)


def load(data_dir: Path | None, seed: int, *, labels: str = "fine") -> Pool:
    if labels not in ("fine", "coarse"):
        raise DataError(f'cifar100: labels={labels!r}; expected "fine" (100 classes) or "coarse" (20); pick one')
    found, what = locate_form("cifar100", SOURCE, data_dir), "pictures"
    if found.form.key == "half":
        stored = read_npz(found.paths[0], "fine", labels, f"{labels}_names", "is_test", "offsets", "webp")
        x = unsheet(stored["webp"], stored["offsets"], 32, len(stored["fine"]))
        y, test, kinds = stored[labels], stored["is_test"], tuple(stored[f"{labels}_names"])
        what = "pictures, a stratified half"
    else:
        wanted = FINE if labels == "fine" else COARSE
        x, y, test, kinds = read_cifar(found.paths[0], found.form.key, BATCHES, (COARSE, FINE), wanted)
    return labelled("cifar100", x, y, kinds, test=test, published=60_000, what=what)
