"""TinyImageNet: 110,000 colour pictures, 64×64, 200 classes.

Stanford CS231n, from ImageNet (non-commercial research). 500 training and 50 validation pictures of each class; the
validation pictures count as the official test split, as in the literature. Read from the official ZIP file or its
unpacked folder, or, where there is neither, from a compact file with 30 and 10 of each class.
"""

from pathlib import Path

import numpy as np

from posterity.data.archives import Array, demand, read_members, read_npz, reading
from posterity.data.files import decode_all, decode_member, labelled
from posterity.data.official import DataSource, File, form, locate_form
from posterity.data.pool import Pool

NATURAL = False
ROWS, SIDE = 110_000, 64
TOP, NOTED = "tiny-imagenet-200/", "val/val_annotations.txt"
ARCHIVE = File("tiny-imagenet-200.zip", 248_100_043, "md5 90528d7ca1a48142e341f4ef8d21d0de")
SOURCE = DataSource(
    "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    ("tinyimagenet", "tiny-imagenet", "", "tinyimagenet_subset"),
    (
        form("official", "archive", ARCHIVE),
        form("official", "archive, unpacked", "tiny-imagenet-200"),
        form("compact", "compact file of ours, a part", "tinyimagenet_subset.npz"),
    ),
)


def load(data_dir: Path | None, seed: int) -> Pool:
    found = locate_form("tinyimagenet", SOURCE, data_dir)
    if found.form.key == "official":
        x, y, kinds, test = _official(found.paths[0])
    else:
        stored = read_npz(found.paths[0], "class_names", "is_val", "jpeg", "labels", "offsets")
        x = np.stack(decode_all(stored["jpeg"], stored["offsets"]))
        y, kinds, test = stored["labels"], list(stored["class_names"]), stored["is_val"]
    return labelled("tinyimagenet", x, y, kinds, test=test, published=ROWS)


def _official(path: Path) -> tuple[Array, Array, list[str], Array]:
    """Training pictures class by class, then the validation pictures in the order of their annotations."""
    stored = {name.removeprefix(TOP): data for name, data in read_members(path, _wanted).items()}
    train = [name for name in stored if name.startswith("train/")]
    ids = sorted({name.split("/")[1] for name in train})
    with reading(path, f"train/CLASS/images/*.JPEG of {SIDE}×{SIDE} pixels and {NOTED}; fetch the archive again"):
        lines = [line.split("\t") for line in stored[NOTED].decode("utf-8", "replace").splitlines() if line.strip()]
        pairs = [*((name, name.split("/")[1]) for name in train), *((f"val/images/{v[0]}", v[1]) for v in lines)]
        demand(bool(ids), "no training pictures")
        x = np.empty((len(pairs), SIDE, SIDE, 3), dtype=np.uint8)
        for row, (name, _) in enumerate(pairs):
            shot = decode_member(f"{path}: {name}", stored[name])
            demand(shot.shape == x.shape[1:], f"{name} has {shot.shape[1]}×{shot.shape[0]} pixels")
            x[row] = shot
        y = np.array([ids.index(kind) for _, kind in pairs])
    words = (line.partition("\t") for line in stored.get("words.txt", b"").decode("utf-8", "replace").splitlines())
    known = {word: meaning.strip() for word, _, meaning in words}
    return x, y, [known.get(each) or each for each in ids], np.arange(len(pairs)) >= len(train)


def _wanted(member: str) -> bool:
    name = member.removeprefix(TOP)
    parts = name.split("/")
    folders = (len(parts) == 4 and parts[0] == "train") or (len(parts) == 3 and parts[0] == "val")
    return name in (NOTED, "words.txt") or (folders and parts[-2] == "images" and name.upper().endswith(".JPEG"))
