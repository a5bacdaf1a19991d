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

from posterity.data.archives import ROOM, Array, check_file, list_folder, read_file
from posterity.data.files import check_labels, labelled
from posterity.data.official import Form, form
from posterity.data.pool import DataError, Pool

Convert = Callable[[list[Any], str], Array]
WRONG = (ValueError, TypeError, OverflowError)


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
    if not folder.is_dir():
        raise DataError(f"{folder}: is no folder; expected one of LEAF's .json files; name the right one")
    files = [path for path in list_folder(folder) if path.suffix == ".json"]
    if not files:
        raise DataError(f"{folder}: no .json files; expected those that LEAF's preprocess.sh writes; run it")
    for path in files:
        check_file(path, "a .json file", folder)
        yield from _users(path, _parsed(path), convert)


def _refuse(constant: str) -> None:
    raise ValueError(f"it holds {constant}")


def _parsed(path: Path) -> dict[str, Any]:
    if (size := path.stat().st_size) > ROOM:
        raise DataError(f"{path}: {size:,} bytes; expected at most {ROOM:,}; divide it into several files")
    try:
        found = json.loads(read_file(path), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        why = str(error)[:80]
        raise DataError(f"{path}: cannot be read as JSON ({why}); expected a file of LEAF's, complete") from None
    keys = [*found] if isinstance(found, dict) else []
    if not {"users", "num_samples", "user_data"} <= set(keys) or not isinstance(found["user_data"], dict):
        shown = ", ".join(keys[:5]) or "nothing"
        raise DataError(f"{path}: holds {shown}; expected users, num_samples and user_data; is it a file of LEAF's?")
    return dict(found)


def _users(path: Path, found: dict[str, Any], convert: Convert) -> Iterator[UserRows]:
    users, counts = found["users"], found["num_samples"]
    if not isinstance(users, list) or not isinstance(counts, list) or len(users) != len(counts):
        raise DataError(f"{path}: users and num_samples differ in length; expected a number each; write it again")
    for user, count in zip(users, counts, strict=True):
        where = f"{path}: user {str(user)[:40]}"
        rows = found["user_data"].get(user) if isinstance(user, str) else None
        x, y = (rows.get("x"), rows.get("y")) if isinstance(rows, dict) else (None, None)
        if not isinstance(x, list) or not isinstance(y, list) or not len(x) == len(y) == count:
            given = [len(each) if isinstance(each, list) else "no" for each in (x, y)]
            raise DataError(f"{where} has {given[0]} x and {given[1]} y; expected {count} of each; write it again")
        if count:
            yield UserRows(str(user), convert(x, where), _labels(y, where))


def _labels(y: list[Any], where: str) -> Array:
    try:
        labels = np.asarray(y)
        integral = labels.ndim == 1 and labels.dtype.kind in "iu"
    except WRONG:
        integral = False
    if not integral:
        raise DataError(f"{where} has labels such as {str(y[0])[:20]}; expected whole numbers; write the file again")
    return labels.astype(np.int64)
