"""Fashion-MNIST: 70,000 grey pictures of clothes, 28×28, ten classes.

H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST", 2017 (MIT licence). Read from the four original idx files, packed or
not, which Debian has as the package dataset-fashion-mnist.
"""

from pathlib import Path

from posterity.data.datasets._idx import PARTS, idx_forms, idx_pool, read_idx
from posterity.data.official import DataSource, locate_form
from posterity.data.pool import Pool

NATURAL = False
CLASSES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
PUBLISHED = (
    (26_421_880, "md5 8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    (29_515, "md5 25c81989df183df01b3e8a0aad5dffbe"),
    (4_422_102, "md5 bef4ecab320f06d8554ea6380940ec79"),
    (5_148, "md5 bb300cfdad3c16e7a12a480ee83cd310"),
)
SOURCE = DataSource(
    "https://github.com/zalandoresearch/fashion-mnist",
    ("fashion_mnist", "fashion-mnist", "fmnist", "FashionMNIST/raw"),
    idx_forms(PARTS, PUBLISHED),
    Path("/usr/share/datasets/fashion-mnist"),  # of Debian's package
    "on Debian and Ubuntu apt-get install dataset-fashion-mnist will do (its files are packed anew: other sizes)",
)


def load(data_dir: Path | None, seed: int) -> Pool:
    paths = locate_form("fmnist", SOURCE, data_dir).paths
    return idx_pool("fmnist", [read_idx(path) for path in paths], paths[0].parent, CLASSES, 70_000)
