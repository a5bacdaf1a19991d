"""Datasets found by name, and the way from a name, a mix of names, a function of yours or a path to a pool.

A name is a file of `data/datasets`; `a+b` are several in one pool (`mix`); `package.module:function` is a function of
your own with the signature of those files' `load`; a path is read by `data/user_files.py`.
"""

import os
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.data import datasets
from posterity.data.federation import Federation, FederationSpec, Options, check_federation
from posterity.data.official import VARIABLE, DataSource
from posterity.data.pool import DataError, Pool, check_pool
from posterity.data.tables import Columns
from posterity.data.user_files import looks_like_path, read_user_files
from posterity.settings.config import settings_where
from posterity.settings.hyperparameters import MISTAKES, Declared, declared, nearest
from posterity.settings.plugins import find_function

DIVIDING = settings_where(lambda use: use.changes == "division")
GIVEN = ("data_dir", "seed")  # what the function of a dataset is called with, besides its options


@dataclass(frozen=True)
class Dataset:
    """What `posterity datasets` shows about one dataset."""

    name: str
    description: str
    natural: bool  # has clients of its own
    source: DataSource | None = None  # None if embedded
    text: str = ""  # all that its file says about it

    @property
    def embedded(self) -> bool:
        return self.source is None


def available() -> list[Dataset]:
    """Every dataset that `load` knows by name."""
    return [find_dataset(name) for name in _names()]


def find_dataset(name: str) -> Dataset:
    """What is known about one dataset."""
    if name not in _names():
        raise DataError(f"dataset {name!r} is not known; {nearest(name, _names())}")
    module = _module(name)
    text = (module.__doc__ or "").strip()
    return Dataset(name, text.split("\n")[0], module.NATURAL, getattr(module, "SOURCE", None), text)


def options(name: str) -> dict[str, Any]:
    """Options of a dataset with their defaults."""
    return {key: known.default for key, known in _declared(name).items()}


def data_folder(given: str | Path | None) -> Path | None:
    """The folder that was named, or that of the environment variable."""
    folder = given or os.environ.get(VARIABLE)
    return Path(folder) if folder else None


def read_dataset(spec: FederationSpec) -> Pool | Federation:
    """The pool behind a registered name, a mix such as `cifar100+chars74k`, a function or a path.

    Only a function of your own may return a whole federation instead.
    """
    dataset, names = spec.dataset, _names()
    columns = Columns(spec.target, spec.client_column, spec.group)
    is_path = dataset not in names and looks_like_path(dataset)
    if columns != Columns() and not is_path:
        given = f"dataset {dataset!r} with target, client_column or group"
        raise DataError(f"{given}; expected these only with the path of your own data; leave them out")
    if is_path:
        return read_user_files(Path(dataset), columns, spec.options)
    parts = dataset.split("+")
    return _read_mix(parts, spec) if len(parts) > 1 else _read(dataset, spec, spec.options)


def _read_mix(parts: list[str], spec: FederationSpec) -> Pool:
    of_mix, of_parts = declared(mix, ("pools",)), [_declared(part) for part in parts]  # all names are known
    if unused := sorted(set(spec.options).difference(of_mix, *of_parts)):
        given = f"dataset {spec.dataset!r}: no part of the mix has the option {', '.join(unused)}"
        raise DataError(f"{given}; leave it out")
    pools = []
    for part, known in zip(parts, of_parts, strict=True):
        mine = {key: value for key, value in spec.options.items() if key in known and key not in of_mix}
        pool = _read(part, spec, mine)
        if isinstance(pool, Federation):
            raise DataError(f"dataset {part!r} returned a Federation; expected a Pool in a mix; return that")
        pools.append(pool)
    mixing = {key: value for key, value in spec.options.items() if key in of_mix}
    return mix(pools, **_converted(spec.dataset, mixing, of_mix))


def _read(name: str, spec: FederationSpec, options: Options) -> Pool | Federation:
    """What the function of one dataset returns."""
    load, known = _find(name), _declared(name)
    values = _converted(name, options, known)
    if spec.clients is not None and "clients" in known:
        values.setdefault("clients", spec.clients)  # a generator makes as many clients as were asked for
    found: Any = load(data_folder(spec.data_dir), spec.seed, **values)
    if isinstance(found, Federation):
        _check_divided(name, spec, () if "clients" in known else ("clients",))
        return check_federation(found)
    if not isinstance(found, Pool):
        kind = type(found).__name__
        raise DataError(f"dataset {name!r} returned a {kind}; expected a Pool or a Federation of posterity.data")
    return check_pool(found, name) if ":" in name else found


def _converted(name: str, options: Options, known: dict[str, Declared]) -> dict[str, Any]:
    """Options as typed on a command line, in the types that the dataset declares."""
    values = {}
    for key, value in options.items():
        if key not in known:
            hint = nearest(key, known) if known else "it has none, leave them out"
            raise DataError(f"dataset {name}: unknown option {key!r}; {hint}")
        try:
            values[key] = known[key].read(value)
        except MISTAKES:
            wanted = f"a value like {known[key].default!r}"
            raise DataError(f"dataset {name}: option {key} is {value!r}; expected {wanted}; change it") from None
    return values


def _check_divided(name: str, spec: FederationSpec, more: tuple[str, ...]) -> None:
    """Refuse settings that a federation, whose rows are divided and split already, cannot follow."""
    usual = {f.name: f.default for f in fields(FederationSpec) if f.name in (*DIVIDING, *more)}
    if asked := [key for key, value in usual.items() if str(getattr(spec, key)) != str(value)]:
        given = f"dataset {name!r} returned a Federation, which is divided already"
        raise DataError(f"{given}; expected no {', '.join(asked)}; leave them out, or return a Pool")


def _names() -> list[str]:
    return sorted(found.name for found in pkgutil.iter_modules(datasets.__path__) if not found.name.startswith("_"))


def _module(name: str) -> Any:
    return import_module(f"{datasets.__name__}.{name}")


def _find(name: str) -> Callable[..., Any]:
    """The function of a dataset: `load` of a file of `data/datasets`, or one of your own."""
    if name in _names():
        return _module(name).load
    if ":" not in name:
        raise DataError(f"dataset {name!r} is not known and is not a path; {nearest(name, _names())}")
    try:
        return find_function(name, "dataset")
    except ValueError as error:
        raise DataError(str(error)) from None


def _declared(name: str) -> dict[str, Declared]:
    """Options of a dataset with their types and defaults."""
    return {key: known for key, known in declared(_find(name), GIVEN).items() if not known.required}


def mix(pools: list[Pool], size: int = 0) -> Pool:
    """One pool of all rows, the labels of each dataset after those of the one before.

    A partition sees one set of classes, so a client may have data of several datasets. Pictures take the number of
    pixels of the first dataset unless `size` is given; grey pictures are repeated over the channels.
    """
    name = "+".join(pool.name for pool in pools)
    for pool in pools:
        if pool.task != "classification" or pool.x.ndim != 4:
            raise DataError(f"mix {name}: {pool.name} holds no labelled pictures; expected pictures only; leave it out")
    side = (size, size) if size else tuple(pools[0].x.shape[2:])
    channels = max(pool.x.shape[1] for pool in pools)
    labels, owners = [], []
    classes = people = 0
    for pool in pools:
        labels.append(pool.y + classes)
        owners.append(None if (o := pool.owner) is None else torch.where(o < 0, o, o + people))
        classes += pool.classes
        people += len(pool.owner_names)
    return Pool(
        name,
        torch.cat([_shaped(pool.x, channels, side) for pool in pools]),
        torch.cat(labels),
        classes,
        tuple(f"{pool.name}: {c}" for pool in pools for c in pool.class_names),
        owner=_joined(owners),
        owner_names=tuple(f"{pool.name}: {o}" for pool in pools for o in pool.owner_names),
        official_test=_joined([pool.official_test for pool in pools]),
        notes=(
            *dict.fromkeys(note for pool in pools for note in pool.notes),
            f"mix of {name}: labels side by side, pictures {channels}×{side[0]}×{side[1]}",
        ),
    )


def _shaped(x: Tensor, channels: int, side: tuple[int, ...]) -> Tensor:
    if tuple(x.shape[2:]) != side:
        x = F.interpolate(x, size=list(side), mode="bilinear", antialias=True)
    return x if x.shape[1] == channels else x.expand(-1, channels, -1, -1)


def _joined(columns: list[Tensor | None]) -> Tensor | None:
    """A column of all pools together, where every pool has it."""
    present = [column for column in columns if column is not None]
    return torch.cat(present) if len(present) == len(columns) else None
