"""MNIST-M: digits blended over colour photographs, 32×32; all 68,002 of them, or 2,000.

Y. Ganin et al., "Domain-Adversarial Training of Neural Networks", 2016. Read from the official `mnist_m.tar.gz` or its
unpacked folder (pictures, and text files with their labels), or, where there is neither, from a compact file with 200
of each digit from the test set.
"""

from pathlib import Path, PurePosixPath

import numpy as np

from posterity.data.archives import Array, demand, read_members, read_npz, reading
from posterity.data.files import check_labels, decode_member, labelled, unsheet
from posterity.data.official import DataSource, form, locate_form
from posterity.data.pool import Pool

NATURAL = False
PARTS = ("mnist_m_train", "mnist_m_test")
ROWS, SIDE = 68_002, 32
SOURCE = DataSource(
    "http://yaroslav.ganin.net/",
    ("mnist_m", ""),
    (
        form("official", "archive", "mnist_m.tar.gz"),
        form("official", "archive, unpacked", *(name for part in PARTS for name in (part, f"{part}_labels.txt"))),
        form("compact", "compact file of ours, a part", "mnist_m_2k.npz"),
    ),
)


def load(data_dir: Path | None, seed: int) -> Pool:
    found = locate_form("mnist_m", SOURCE, data_dir)
    path, test = found.paths[0], None
    if found.form.key == "official":
        x, y, test = _official(path if path.is_file() else path.parent)
    else:
        stored = read_npz(path, "labels", "offsets", "webp")
        y = stored["labels"]
        x = unsheet(stored["webp"], stored["offsets"], SIDE, len(y))
    return labelled("mnist_m", x, y, "0123456789", test=test, published=ROWS)


def _official(path: Path) -> tuple[Array, Array, Array]:
    """Training pictures, then those for testing, in the order of the files with the labels; which are for testing."""
    stored = {_short(name): data for name, data in read_members(path, lambda name: bool(_short(name))).items()}
    rows: list[tuple[str, int]] = []
    for part in PARTS:
        with reading(f"{path}: {part}_labels.txt", "lines of a picture and its digit; fetch it again"):
            lines = [line.split() for line in stored[f"{part}_labels.txt"].decode("latin-1").splitlines()]
            demand(any(lines), "nothing")
            rows += [(f"{part}/{name}", int(label)) for name, label in filter(None, lines)]
    y = np.array([label for _, label in rows])
    check_labels(path, y, 0, 10)
    x = np.stack([decode_member(f"{path}: {name}", stored.get(name), SIDE) for name, _ in rows])
    return x, y, np.array([name.startswith(PARTS[1]) for name, _ in rows])


def _short(member: str) -> str:
    """`mnist_m_train/0.png` or `mnist_m_train_labels.txt`, whatever folder they are in; nothing for other members."""
    place = PurePosixPath(member)
    if place.name in {f"{part}_labels.txt" for part in PARTS}:
        return place.name
    return f"{place.parent.name}/{place.name}" if place.parent.name in PARTS and place.suffix == ".png" else ""
