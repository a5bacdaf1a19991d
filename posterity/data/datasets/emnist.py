"""EMNIST: handwritten digits and letters, 28×28; option split: balanced (47 classes), byclass (62), letters, ….

G. Cohen, S. Afshar, J. Tapson, A. van Schaik, "EMNIST", 2017, from NIST Special Database 19. Read from the official
idx files, packed or not, or out of `gzip.zip` as NIST offers it. The files hold every picture with rows and columns
exchanged; here they are upright. Splits: balanced, byclass, bymerge, letters, digits, mnist.
"""

from pathlib import Path

from posterity.data.archives import read_named
from posterity.data.datasets._idx import idx_forms, idx_pool, read_idx, unpack_idx
from posterity.data.official import DataSource, File, Form, Found, form, locate_form
from posterity.data.pool import DataError, Pool
from posterity.settings.hyperparameters import nearest

NATURAL = False
DIGITS, UPPER, LOWER = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz"
MERGED = tuple(DIGITS + UPPER + "abdefghnqrt")  # small letters that do not look like their capitals
SPLITS = {  # classes, and the number of pictures
    "balanced": (MERGED, 131_600),
    "byclass": (tuple(DIGITS + UPPER + LOWER), 814_255),
    "bymerge": (MERGED, 814_255),
    "letters": (tuple(LOWER), 145_600),
    "digits": (tuple(DIGITS), 280_000),
    "mnist": (tuple(DIGITS), 70_000),
}
FOLDERS = ("emnist", "EMNIST/raw", "EMNIST", "emnist/gzip", "")


def names(split: str) -> tuple[str, ...]:
    """The four files of a split."""
    kinds = ("images-idx3", "labels-idx1")
    return tuple(f"emnist-{split}-{part}-{kind}-ubyte" for part in ("train", "test") for kind in kinds)


def forms(split: str) -> tuple[Form, ...]:
    """How a split is distributed."""
    archive = File("gzip.zip", 561_753_746, "md5 58c8d27c78d21e728a6bc7b3cc06412e")
    return (*idx_forms(names(split)), form("zip", "all splits in one archive", archive))


SOURCE = DataSource("https://www.nist.gov/itl/products-and-services/emnist-dataset", FOLDERS, forms("balanced"))


def load(data_dir: Path | None, seed: int, *, split: str = "balanced") -> Pool:
    if split not in SPLITS:
        raise DataError(f"emnist: split={split!r}; {nearest(split, SPLITS)}")
    source = DataSource(SOURCE.url, FOLDERS, forms(split))
    return read(locate_form("emnist", source, data_dir), "emnist", split)


def read(found: Found, name: str, split: str) -> Pool:
    """The pool of a split from the form that was found."""
    path = found.paths[0]
    if found.form.key == "zip":
        stored = read_named(path, [f"{name}.gz" for name in names(split)])
        arrays = [unpack_idx(stored[f"{name}.gz"], f"{path}: {name}") for name in names(split)]
    else:
        arrays, path = [read_idx(each) for each in found.paths], path.parent
    upright = [each.transpose(0, 2, 1) if each.ndim == 3 else each for each in arrays]
    classes, published = SPLITS[split]
    return idx_pool(name, upright, f"{path} ({split})", classes, published, first=int(split == "letters"))
