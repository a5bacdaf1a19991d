"""LEAF's JSON files (S. Caldas et al. 2018): `users`, `num_samples` and `user_data`, in which each user has x and y.

The folders `train` and `test` hold any number of them; users of the same name are one client. Before LEAF splits its
data there is one folder, `all_data`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posterity.data.archives import ROOM, Array, check_file, demand, list_folder, read_file, reading
from posterity.data.files import check_labels, labelled
from posterity.data.official import Form, form
from posterity.data.pool import DataError, Pool

Convert = Callable[[list[Any]], Array]


@dataclass(frozen=True)
class UserRows:
    """The samples of one user in one file."""

    user: str
    x: Array  # (n, …)
    y: Array  # (n,) int64


def leaf_forms(*more: str) -> tuple[Form, ...]:
    """The folders that LEAF writes, each with further files or folders that are needed."""
    return (
        form("split", "LEAF's training and test files", "train", "test", *more),
        form("all", "LEAF's files before the split", "all_data", *more),
    )


def leaf_pool(name: str, folders: list[Path], convert: Convert, finish: Callable[[Array], torch.Tensor],
              class_names: tuple[str, ...]) -> Pool:  # fmt: skip
    """A pool in which every user is a client; rows of a second folder are the official test split."""
    parts = [list(read_leaf(folder, convert)) for folder in folders]
    everything = [rows for part in parts for rows in part]
    users = list(dict.fromkeys(rows.user for rows in everything))
    number = {user: k for k, user in enumerate(users)}
    y = np.concatenate([rows.y for rows in everything])
    check_labels(folders[0].parent, y, 0, len(class_names))
    test = np.arange(len(y)) >= sum(len(rows.y) for rows in parts[0])
    return labelled(
        name,
        finish(np.concatenate([rows.x for rows in everything])),
        y,
        class_names,
        owner=np.repeat([number[rows.user] for rows in everything], [len(rows.y) for rows in everything]),
        people=users,
        test=test if len(parts) == 2 else None,
    )


def read_leaf(folder: Path, convert: Convert) -> Iterator[UserRows]:
    """The users of all files of a folder, file by file; `convert` makes an array of a user's x."""
    files = [path for path in list_folder(folder) if path.suffix == ".json"]
    if not files:
        raise DataError(f"{folder}: no .json files; expected those that LEAF's preprocess.sh writes; run it")
    for path in files:
        check_file(path, "a .json file", folder)
        if (size := path.stat().st_size) > ROOM:
            raise DataError(f"{path}: {size:,} bytes; expected at most {ROOM:,}; divide it into several files")
        with reading(path, "users, num_samples and user_data, as JSON of LEAF; write it again"):
            found = json.loads(read_file(path), parse_constant=_refuse)
            for user, count in zip(found["users"], found["num_samples"], strict=True):
                rows = found["user_data"][user]
                with reading(f"{path}: user {user}", f"{count} x and y, whole numbers as y; write it again"):
                    x, y = rows["x"], np.asarray(rows["y"])
                    demand(isinstance(x, list) and len(x) == len(y) == count, f"{len(x)} x and {len(y)} y")
                    if count:
                        demand(y.ndim == 1 and y.dtype.kind in "iu", f"labels such as {rows['y'][0]}")
                        yield UserRows(user, convert(x), y.astype(np.int64))


def _refuse(constant: str) -> None:
    raise ValueError(f"it holds {constant}")
