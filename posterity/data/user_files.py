"""The user's own data: one file with all clients, a folder with a file per client, or picture folders.

one file       data.npz (arrays x, y, client), data.csv or data.parquet (target, client and feature columns)
file a client  folder/hospital_1.csv, folder/hospital_2.csv, …
pictures       folder/client/class/*.png

`data/tables.py` reads the tables; `data/registry.py` calls `read_user_files` for a path.
"""

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
from posterity.data.pool import LARGEST, DataError, Pool, Scaling, listed, tell_option
from posterity.data.tables import SUFFIXES, Columns, Table, read_table
from posterity.settings.hyperparameters import convert, nearest

KINDS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
LARGEST_SIDE = 4096  # pixels, when pictures are resized
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
    given = np.concatenate([table.y for table in tables if len(table.y)] or [np.zeros(0)])
    y, names, notes = _labels(path, given, task, least)
    scale = cast(Scaling, options.get("scale", "client" if tables[0].features else "none"))
    x = _features(tables, scale == "none")
    pool = Pool(
        path.stem, x, y, len(names), names, task, owner, tuple(clients), group, _official(tables), scale=scale,
        may_repeat=True, notes=tables[0].notes + notes, columns=tables[0].features,
        pictures=tables[0].x.dtype == np.uint8 and x.dim() == 4,
    )  # fmt: skip
    return pool.noting(
        *pool_remarks(pool, tables[0].features),
        *alike(tuple(groups), "groups")[:1],
        *(() if tables[0].features else _unscaled(x, options)),
    )


def _official(tables: list[Table]) -> Tensor | None:
    """Which rows the files themselves keep for testing, if all say so."""
    given = [table.official_test for table in tables if table.official_test is not None]
    return torch.from_numpy(np.concatenate(given)) if len(given) == len(tables) else None


def _check_options(path: Path, options: Options) -> None:
    for key, value in options.items():
        if key not in CHOICES:
            raise DataError(f"{path}: unknown option {key!r}; {nearest(key, CHOICES)}")
        if CHOICES[key] and value not in CHOICES[key]:
            raise DataError(f"{path}: option {key} is {value!r}; expected {' or '.join(CHOICES[key])}; pick one")
    if not str(size := options.get("size", 0)).isdigit():
        raise DataError(f"{path}: option size is {size!r}; expected a number of pixels such as 32; change it")


def _one_each(files: list[Path], columns: Columns) -> list[Table]:
    """A table per client; all must have the same features."""
    folder = files[0].parent
    if columns.client is not None:
        raise DataError(f"{folder}: client_column={columns.client!r} and a folder, in which each file is one client; "
                        "expected one of them; leave client_column out")  # fmt: skip
    for one, other in pairwise(sorted(file.stem for file in files)):
        if one == other:
            raise DataError(f"{folder}: two files for the client {one!r}; expected one for each; remove one")
    tables = [read_table(file, columns, folder) for file in files]
    first = tables[0]
    for table in tables:
        if table.features != first.features:
            odd = ", ".join(sorted(set(table.features) ^ set(first.features))) or "their order"
            raise DataError(f"{table.path}: feature columns differ from those of {first.path.name} ({odd}); expected "
                            "the same in the same order in every file; change them")  # fmt: skip
        if table.x.shape[1:] != first.x.shape[1:] or table.x.dtype != first.x.dtype:
            given, wanted = (f"{each.x.dtype} of shape {each.x.shape[1:]}" for each in (table, first))
            raise DataError(f"{table.path}: samples are {given}; expected {wanted} as in {first.path.name}")
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
        odd = names[int(shared[0])]
        where = ", ".join(clients[k] for g, k in pairs.tolist() if g == int(shared[0]))
        raise DataError(f"{table.path}: group {odd!r} has rows at the clients {where}; expected every "
                        "group at one client, or it could be trained on and tested on; mend the ids")  # fmt: skip
    return group, names


def _group_per_file(tables: list[Table]) -> tuple[Tensor | None, list[str]]:
    """Groups of all files; equal ids in two files are two groups."""
    if any(table.group is None for table in tables):
        return None, []
    joined = [np.char.add(f"{i}/", t.group.astype(np.str_)) for i, t in enumerate(tables) if t.group is not None]
    return _numbered(np.concatenate(joined))


def _unscaled(x: Tensor, options: Options) -> list[str]:
    """A remark on arrays of a user who did not say how they are scaled: columns of a table are, arrays are not."""
    if x.dim() != 2 or "scale" in options or not x.numel() or (top := float(x.abs().max())) <= LARGE:
        return []
    advice = f"if they are quantities, give {tell_option('scale', 'client')}"
    return [f"features go in as they are, with values up to {top:g}: {advice}"]


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
        return _targets(path, y, numbers), (), ()
    if numbers is not None and (broken := numbers != np.round(numbers)).any():
        raise DataError(f"{path}: target {numbers[broken][0]:g} is not a whole number; expected class labels; for "
                        f"regression give {tell_option('task', 'regression')}")  # fmt: skip
    number, names = _numbered(y if numbers is None or np.abs(numbers).max() > EXACT else numbers.astype(np.int64))
    assert number is not None
    if len(names) < least:
        raise DataError(f"{path}: all targets are {names[0]!r}; expected at least two classes; check the target column")
    many = numbers is not None and len(names) > max(20, len(y) / 4)
    advice = f"if the target is a quantity, give {tell_option('task', 'regression')}"
    return number, tuple(names), (f"{len(names)} classes for {len(y)} rows: {advice}",) * many


def _targets(path: Path, y: Array, numbers: Array | None) -> Tensor:
    """Numbers to predict, not all the same."""
    if numbers is None:
        raise DataError(f"{path}: targets such as {str(y[0])!r}; expected numbers for regression; use classification")
    if np.abs(numbers).max() > LARGEST or (numbers == numbers[0]).all():
        worst = numbers[np.abs(numbers).argmax()]
        where = " in every row" * bool((numbers == worst).all())
        raise DataError(f"{path}: targets such as {worst:g}{where}; expected different numbers up to {LARGEST:.1e}")
    return torch.from_numpy(numbers.astype(np.float32))


def read_image_folder(path: Path, size: int) -> list[Table]:
    """A table per client folder; pictures are resized to size×size unless size is 0; grey ones stay grey."""
    check_side(str(path), size, 0)
    clients = list_folders(path)
    files = {c: [(file, kind.name) for kind in list_folders(c) for file in list_pictures(kind)] for c in clients}
    if not any(files.values()):
        given = f"{path}: neither .csv, .npz or .parquet files nor pictures in client/class/ folders"
        raise DataError(f"{given}; expected one of these ({', '.join(KINDS)}); check the path")
    shape: tuple[int, ...] | None = None
    shots: dict[Path, list[Array]] = {client: [] for client in clients}
    for client, file in ((c, file) for c in clients for file, _ in files[c]):
        shot = read_picture(file, size, path)
        shape = shape or shot.shape
        if shot.shape != shape:
            pixels, first = (f"{side[1]}×{side[0]}" for side in (shot.shape, shape))
            wanted = f"{first} as in the first picture; to resize all give {tell_option('size', 32)}"
            raise DataError(f"{file}: {pixels} pixels; expected {wanted}")
        shots[client].append(shot)
    grey = all((shot == shot[..., :1]).all() for found in shots.values() for shot in found)
    notes = _left_out(clients)
    tables = []
    for client, found in shots.items():
        x = np.stack(found) if found else np.zeros((0, *(shape or ())), dtype=np.uint8)
        kinds = np.array([kind for _, kind in files[client]], dtype=np.str_)
        tables.append(Table(client, x[..., :1] if grey else x, kinds, notes=notes))
    return tables


def check_side(whose: str, size: int, least: int = 1) -> None:
    """Refuse pictures of no or of too many pixels."""
    if not least <= size <= LARGEST_SIDE:
        raise DataError(f"{whose}: size={size}; expected {least} to {LARGEST_SIDE} pixels; change it")


def read_picture(file: Path, size: int, root: Path) -> Array:
    """A picture (height, width, 3), which must lie inside of `root`."""
    check_file(file, "a picture", root)
    try:
        return decode(file.read_bytes(), size)
    except OSError as error:
        kinds = ", ".join(KINDS)
        raise DataError(f"{file}: cannot be read as a picture ({error}); expected {kinds}; remove it") from None


def list_folders(path: Path) -> list[Path]:
    """The folders in a folder, by name."""
    found = [p for p in list_folder(path) if p.is_dir()]
    for folder in found:
        if any("\ud800" <= c <= "\udfff" for c in folder.name):
            raise DataError(f"{folder}: a name that is not UTF-8; expected one that can be written; rename the folder")
    return found


def list_pictures(path: Path) -> list[Path]:
    """The files in a folder that are pictures by their suffix."""
    return [p for p in list_folder(path) if p.suffix.lower() in KINDS]


def _left_out(clients: list[Path]) -> tuple[str, ...]:
    """A remark on files that stand where pictures are expected, and are none."""
    files = [p for client in clients for kind in list_folders(client) for p in list_folder(kind) if not p.is_dir()]
    others = [str(p.relative_to(p.parents[2])) for p in files if p.suffix.lower() not in KINDS]
    note = f"{len(others)} files in the class folders are left out: {listed(others)} (read are {', '.join(KINDS)})"
    return (note,) * bool(others)
