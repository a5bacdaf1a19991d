"""The user's own data: one file with all clients, a folder with a file per client, or picture folders.

one file       data.npz (arrays x, y, client), data.csv or data.parquet (target, client and feature columns)
file a client  folder/hospital_1.csv, folder/hospital_2.csv, …
pictures       folder/client/class/*.png

`data/tables.py` reads the tables, `data/user_files.py` the pictures; `data/registry.py` calls this for a path.

A user's image folder, `client/class/*.png`, as one table per client: `data/user_files.py` joins them.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from posterity.core.network import Task
from posterity.data.archives import Array, check_file, list_folder
from posterity.data.checks import alike, pool_remarks
from posterity.data.federation import Options
from posterity.data.files import decode, pictures
from posterity.data.pool import DataError, Pool, Scaling, tell_option
from posterity.data.tables import LARGEST, SUFFIXES, Columns, Table, read_table
from posterity.settings.hyperparameters import convert, nearest

KINDS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
LARGEST_SIDE = 4096  # pixels, when pictures are resized


def read_image_folder(path: Path, size: int) -> list[Table]:
    """A table per client folder; pictures are resized to size×size unless size is 0; grey ones stay grey."""
    if size > LARGEST_SIDE:
        raise DataError(f"{path}: option size is {size}; expected at most {LARGEST_SIDE} pixels; lower it")
    clients = list_folders(path)
    files = {
        client: [(f, kind.name) for kind in list_folders(client) for f in list_pictures(kind)] for client in clients
    }
    if not any(files.values()):
        raise DataError(
            f"{path}: neither .csv, .npz or .parquet files nor pictures in client/class/ folders; expected one of "
            f"these ({', '.join(KINDS)}); check the path"
        )
    shape: tuple[int, ...] | None = None
    tables = {}
    for client, listed in files.items():
        shots = []
        for file, _ in listed:
            shot = read_picture(file, size, path)
            shape = shape or shot.shape
            if shot.shape != shape:
                raise DataError(
                    f"{file}: {shot.shape[1]}×{shot.shape[0]} pixels; expected {shape[1]}×{shape[0]} as in the first "
                    f"picture; give {tell_option('size', 32)} to resize all"
                )
            shots.append(shot)
        tables[client] = shots
    grey = all((shot == shot[..., :1]).all() for shots in tables.values() for shot in shots)
    notes = _left_out(clients)
    return [
        _table(client, shots, [kind for _, kind in files[client]], shape, grey, notes)
        for client, shots in tables.items()
    ]


def _table(
    client: Path,
    shots: list[Array],
    kinds: list[str],
    shape: tuple[int, ...] | None,
    grey: bool,
    notes: tuple[str, ...],
) -> Table:
    x = np.stack(shots) if shots else np.zeros((0, *(shape or ())), dtype=np.uint8)
    return Table(client, x[..., :1] if grey else x, np.array(kinds, dtype=np.str_), notes=notes)


def read_picture(file: Path, size: int, root: Path) -> Array:
    """A picture (height, width, 3), which must lie inside of `root`."""
    check_file(file, "a picture", root)
    try:
        return decode(file.read_bytes(), size)
    except OSError as error:
        raise DataError(
            f"{file}: cannot be read as a picture ({error}); expected {', '.join(KINDS)}; remove it"
        ) from None


def list_folders(path: Path) -> list[Path]:
    """The folders in a folder, by name."""
    found = [p for p in list_folder(path) if p.is_dir()]
    for folder in found:
        if not folder.name.isprintable() and any("\ud800" <= c <= "\udfff" for c in folder.name):
            raise DataError(f"{folder}: a name that is not UTF-8; expected one that can be written; rename the folder")
    return found


def list_pictures(path: Path) -> list[Path]:
    """The files in a folder that are pictures by their suffix."""
    return [p for p in list_folder(path) if p.suffix.lower() in KINDS]


def _left_out(clients: list[Path]) -> tuple[str, ...]:
    """A remark on files that stand where pictures are expected, and are none."""
    kinds = [kind for client in clients for kind in list_folders(client)]
    others = [p for kind in kinds for p in list_folder(kind) if p.suffix.lower() not in KINDS and not p.is_dir()]
    if not others:
        return ()
    shown = ", ".join(str(p.relative_to(p.parents[2])) for p in others[:3]) + (", …" if len(others) > 3 else "")
    return (
        f"{len(others)} files in the class folders are left out, since they are none of {', '.join(KINDS)}: {shown}",
    )


EXACT = 2**53  # whole numbers up to here are one float each
LARGE = 10  # a feature beyond was hardly standardised
CHOICES = {"scale": ("none", "client", "all"), "task": ("classification", "regression"), "size": ()}


def looks_like_path(dataset: str) -> bool:
    return bool(dataset) and ("/" in dataset or "\\" in dataset or dataset.endswith(SUFFIXES) or Path(dataset).exists())


def read_user_files(path: Path, columns: Columns, options: Options, least: int = 2) -> Pool:
    """A pool from the user's files; options are `scale`, `task` and, for pictures, `size`.

    Fewer classes than `least` are refused: all clients' files must have two, and one client's may have a single one.
    """
    _check_options(path, options)
    task = cast(Task, options.get("task", "classification"))
    if path.is_dir():
        files = [p for p in list_folder(path) if p.suffix.lower() in SUFFIXES]
        tables = _one_each(files, columns) if files else read_image_folder(path, convert(options.get("size", 0), int))
        clients = [table.path.stem if files else table.path.name for table in tables]
        sizes = [len(table.y) for table in tables]
        owner: Tensor | None = torch.repeat_interleave(torch.arange(len(tables)), torch.tensor(sizes))
        group, groups = _group_per_file(tables)
    else:
        tables = [read_table(path, columns)]
        owner, clients = _numbered(tables[0].client)
        group, groups = _group_of_one(tables[0], owner, clients)
    y, names, notes = _labels(
        path, np.concatenate([table.y for table in tables if len(table.y)] or [np.zeros(0)]), task, least
    )
    scale = cast(Scaling, options.get("scale", "client" if tables[0].features else "none"))
    x = _features(tables, scale == "none")
    pool = Pool(
        path.stem, x, y, len(names), names, task, owner, tuple(clients), group, _official(tables), scale=scale,
        may_repeat=True, notes=tables[0].notes + notes, columns=tables[0].features,
        pictures=tables[0].x.dtype == np.uint8 and x.dim() == 4,
    )  # fmt: skip
    return pool.noting(
        *pool_remarks(pool, tables[0].features),
        *_split_groups(groups),
        *(() if tables[0].features else _unscaled(x, options)),
    )


def _official(tables: list[Table]) -> Tensor | None:
    """Which rows the files themselves keep for testing, if all say so."""
    told = [table.official_test for table in tables if table.official_test is not None]
    return torch.from_numpy(np.concatenate(told)) if len(told) == len(tables) else None


def _check_options(path: Path, options: Options) -> None:
    for key, value in options.items():
        if key not in CHOICES:
            raise DataError(f"{path}: unknown option {key!r}; {nearest(key, CHOICES)}")
        if CHOICES[key] and value not in CHOICES[key]:
            raise DataError(f"{path}: option {key} is {value!r}; expected {' or '.join(CHOICES[key])}; pick one")
    if not str(options.get("size", 0)).isdigit():
        raise DataError(
            f"{path}: option size is {options['size']!r}; expected a number of pixels such as 32; change it"
        )


def _one_each(files: list[Path], columns: Columns) -> list[Table]:
    """A table per client; all must have the same features."""
    if columns.client is not None:
        raise DataError(
            f"{files[0].parent}: client_column={columns.client!r} and a folder; expected one or the other, since each "
            "file of a folder is one client; leave client_column out"
        )
    for one, other in pairwise(sorted(file.stem for file in files)):
        if one == other:
            raise DataError(f"{files[0].parent}: two files for the client {one!r}; expected one for each; remove one")
    tables = [read_table(file, columns, file.parent) for file in files]
    first = tables[0]
    for table in tables:
        if table.features != first.features:
            odd = set(table.features) ^ set(first.features)
            what = ", ".join(sorted(odd)) if odd else "their order"
            raise DataError(
                f"{table.path}: feature columns differ from those of {first.path.name} ({what}); expected the same "
                "columns in the same order in every file; rename, add, drop or reorder columns"
            )
        if table.x.shape[1:] != first.x.shape[1:] or table.x.dtype != first.x.dtype:
            raise DataError(
                f"{table.path}: samples are {table.x.dtype} of shape {table.x.shape[1:]}; expected {first.x.dtype} "
                f"{first.x.shape[1:]} as in {first.path.name}; convert them"
            )
    return tables


def _features(tables: list[Table], keep_integers: bool = False) -> Tensor:
    """All samples as float32, integers as such; bytes are pictures, with channels last or without channels."""
    x = np.concatenate([table.x for table in tables])
    if x.dtype == np.uint8 and (x.ndim == 3 or (x.ndim == 4 and x.shape[3] in (1, 3))):
        return pictures(x)
    if x.dtype == np.uint8 and x.ndim == 4:
        return pictures(x.transpose(0, 2, 3, 1))
    if x.dtype.kind in "iu" and keep_integers:  # indices of words: a network that wants other numbers converts them
        return torch.from_numpy(x.astype(np.int64))
    return torch.from_numpy(x.astype(np.float32))


def _numbered(values: Array | None) -> tuple[Tensor | None, list[str]]:
    """Numbers for the different values, in numerical order where all are numbers, and their names."""
    if values is None:
        return None, []
    found, number = np.unique(values.astype(np.str_), return_inverse=True)
    try:
        order = np.argsort(found.astype(np.float64), kind="stable")
    except ValueError:
        order = np.arange(len(found))
    rank = np.empty(len(found), dtype=np.int64)
    rank[order] = np.arange(len(found))
    return torch.from_numpy(rank[number]), [str(found[i]) for i in order]


def _group_of_one(table: Table, owner: Tensor | None, clients: list[str]) -> tuple[Tensor | None, list[str]]:
    """Which group each row is of, and the names of groups."""
    group, names = _numbered(table.group)
    if group is None or owner is None:
        return group, names
    pairs = np.unique(torch.stack([group, owner], 1).numpy(), axis=0)  # (pairs, 2)
    shared = np.flatnonzero(np.bincount(pairs[:, 0]) > 1)
    if len(shared):
        where = [clients[k] for g, k in pairs.tolist() if g == int(shared[0])]
        raise DataError(
            f"{table.path}: group {names[int(shared[0])]!r} has rows at the clients {', '.join(where)}; expected every "
            "group at one client, or its rows could be in training and test; use ids that are unique, or mend them"
        )
    return group, names


def _group_per_file(tables: list[Table]) -> tuple[Tensor | None, list[str]]:
    """Groups of all files; equal ids in two files are two groups."""
    if any(table.group is None for table in tables):
        return None, []
    joined = [np.char.add(f"{i}/", t.group.astype(np.str_)) for i, t in enumerate(tables) if t.group is not None]
    return _numbered(np.concatenate(joined))


def _unscaled(x: Tensor, options: Options) -> list[str]:
    """A remark on arrays of a user who did not say how they are scaled: columns of a table are, arrays are not."""
    if x.dim() != 2 or "scale" in options or not x.numel() or float(x.abs().max()) <= LARGE:
        return []
    return [f"features go in as they are, with values up to {float(x.abs().max()):g}: if they are quantities, give "
            f"{tell_option('scale', 'client')}"]  # fmt: skip


def _split_groups(names: list[str]) -> list[str]:
    """A remark on groups that may be one: its rows could be trained on and tested on."""
    told = alike(tuple(names), "groups")
    return [*told[:1], *([f"{len(told) - 1} more such cases among the groups"] if len(told) > 1 else [])]


def _labels(path: Path, y: Array, task: Task, least: int) -> tuple[Tensor, tuple[str, ...], tuple[str, ...]]:
    """Targets for the task, names of the classes, and remarks."""
    if not len(y):
        raise DataError(f"{path}: no rows at all; expected samples; fill in the file")
    try:
        numbers = y.astype(np.float64)
    except ValueError:
        numbers = None
    if numbers is not None and not np.isfinite(numbers).all():
        row = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise DataError(f"{path}: target {y[row]} in row {row}; expected a label; fill it in or drop the row")
    if task == "regression":
        if numbers is None:
            raise DataError(
                f"{path}: targets such as {str(y[0])!r}; expected numbers for regression; use classification"
            )
        if np.abs(numbers).max() > LARGEST or (numbers == numbers[0]).all():
            worst = numbers[np.abs(numbers).argmax()]
            raise DataError(
                f"{path}: targets such as {worst:g}{' in every row' * bool((numbers == worst).all())}; "
                f"expected different numbers up to {LARGEST:.1e}; check the target column"
            )
        return torch.from_numpy(numbers.astype(np.float32)), (), ()
    if numbers is not None and (broken := numbers != np.round(numbers)).any():
        raise DataError(
            f"{path}: target {numbers[broken][0]:g} is not a whole number; expected class labels; for regression give "
            f"{tell_option('task', 'regression')}"
        )
    number, names = _numbered(y if numbers is None or np.abs(numbers).max() > EXACT else numbers.astype(np.int64))
    assert number is not None
    if len(names) < least:
        raise DataError(f"{path}: all targets are {names[0]!r}; expected at least two classes; check the target column")
    many = numbers is not None and len(names) > max(20, len(y) / 4)
    note = (
        f"{len(names)} classes for {len(y)} rows: if the target is a quantity, give {tell_option('task', 'regression')}"
    )
    return number, tuple(names), (note,) * many
