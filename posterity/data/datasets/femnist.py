"""FEMNIST: handwritten digits and letters by writer, 28×28, 62 classes, as LEAF prepares them.

S. Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018, from EMNIST. A client is a writer. Read from LEAF's
JSON files (run its data/femnist/preprocess.sh): `users`, `num_samples` and `user_data`, in which each user has x and y;
a picture is 784 numbers from 0 (ink) to 1 (paper). The folders `train` and `test` hold any number of files; users of
the same name are one client. Before LEAF splits its data there is one folder, `all_data`.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posterity.data.archives import ROOM, Array, check_file, demand, list_folder, read_file, reading
from posterity.data.files import check_labels, labelled
from posterity.data.official import DataSource, form, locate_form
from posterity.data.pool import DataError, Pool

NATURAL = True
CLASSES = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
SOURCE = DataSource(
    "https://github.com/TalwalkarLab/leaf",
    ("femnist/data", "femnist", "leaf/data/femnist/data"),
    (
        form("split", "LEAF's training and test files", "train", "test"),
        form("all", "LEAF's files before the split", "all_data"),
    ),
)
Writer = tuple[str, Array, Array]  # name, pictures (n, 784), labels (n,)


def load(data_dir: Path | None, seed: int) -> Pool:
    """Every writer is a client; rows of the second folder are the official test split."""
    folders = locate_form("femnist", SOURCE, data_dir).paths
    parts = [list(read_leaf(folder)) for folder in folders]
    writers = [writer for part in parts for writer in part]
    names = list(dict.fromkeys(name for name, _, _ in writers))
    number = {name: k for k, name in enumerate(names)}
    x = torch.from_numpy(np.concatenate([x for _, x, _ in writers]))
    y = np.concatenate([y for _, _, y in writers])
    check_labels(folders[0].parent, y, 0, len(CLASSES))
    owner = np.repeat([number[name] for name, _, _ in writers], [len(y) for _, _, y in writers])
    test = np.arange(len(y)) >= sum(len(y) for _, _, y in parts[0]) if len(parts) == 2 else None
    x = x.mul_(2.0).sub_(1.0).reshape(-1, 1, 28, 28)
    return labelled("femnist", x, y, CLASSES, owner=owner, people=names, test=test)


def read_leaf(folder: Path) -> Iterator[Writer]:
    """The users of all files of a folder, file by file."""
    files = [path for path in list_folder(folder) if path.suffix == ".json"]
    if not files:
        raise DataError(f"{folder}: no .json files; expected those that LEAF's preprocess.sh writes; run it")
    for path in files:
        check_file(path, "a .json file", folder)
        if (size := path.stat().st_size) > ROOM:
            raise DataError(f"{path}: {size:,} bytes; expected at most {ROOM:,}; divide it into several files")
        with reading(path, "users, num_samples and user_data, as JSON of LEAF; write it again"):
            found = json.loads(read_file(path))
            for user, count in zip(found["users"], found["num_samples"], strict=True):
                with reading(f"{path}: user {user}", f"{count} x and y, whole numbers as y; write it again"):
                    if count:
                        yield user, *_rows(found["user_data"][user], count)


def _rows(stored: dict[str, Any], count: int) -> tuple[Array, Array]:
    x, y = stored["x"], np.asarray(stored["y"])
    demand(isinstance(x, list) and len(x) == len(y) == count, f"{len(x)} x and {len(y)} y")
    demand(y.ndim == 1 and y.dtype.kind in "iu", f"labels such as {stored['y'][0]}")
    pixels = np.asarray(x, dtype=np.float32)
    fits = pixels.shape == (count, 784) and pixels.min() >= 0 and pixels.max() <= 1  # also refuses nan
    demand(bool(fits), "pictures that are not 784 numbers from 0 to 1")
    return pixels, y.astype(np.int64)
