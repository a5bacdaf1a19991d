"""Datasets found by name, and the way from a name, a mix of names or a path to a pool."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from posterity.data import datasets
from posterity.data.mix import mix
from posterity.data.parse import nearest
from posterity.data.pool import DataError, Pool
from posterity.data.tables import Columns
from posterity.data.user_files import looks_like_path, read_own

Options = Mapping[str, str | int | float]


@dataclass(frozen=True)
class Dataset:
    """What `posterity datasets` shows about one dataset."""

    name: str
    description: str
    natural: bool  # has clients of its own
    files: tuple[str, ...]  # needed in the data folder

    @property
    def embedded(self) -> bool:
        return not self.files


def available() -> list[Dataset]:
    """Every dataset that `load` knows by name."""
    found = []
    for name in _names():
        module = _module(name)
        found.append(Dataset(name, (module.__doc__ or "").split("\n")[0], module.NATURAL, module.FILES))
    return found


def read_pool(
    dataset: str, data_dir: Path | None, seed: int, clients: int | None, columns: Columns, options: Options
) -> Pool:
    """The pool behind a registered name, a mix such as `cifar100+chars74k`, or a path."""
    names = _names()
    if columns != Columns() and not (dataset not in names and looks_like_path(dataset)):
        raise DataError(
            f"dataset {dataset!r} with target, client_column or group; expected these only with the path of your own "
            "data; leave them out"
        )
    if dataset in names:
        return _call(dataset, data_dir, seed, clients, options)
    if looks_like_path(dataset):
        return read_own(Path(dataset), columns, options)
    parts = dataset.split("+")
    for part in parts:
        if part not in names:
            raise DataError(f"dataset {part!r} is not known and is not a path; {nearest(part, names)}")
    mixing = {key: value for key, value in options.items() if key in ("mixing", "size")}
    rest = {key: value for key, value in options.items() if key not in mixing}
    pools = [_call(part, data_dir, seed, clients, _accepted(part, rest)) for part in parts]
    if unused := sorted(set(rest) - {key for part in parts for key in _accepted(part, rest)}):
        raise DataError(f"dataset {dataset!r}: no part of the mix has the option {', '.join(unused)}; leave it out")
    return mix(pools, **{key: _coerced(dataset, key, value, {"size": 0}.get(key, "")) for key, value in mixing.items()})


def _names() -> list[str]:
    return sorted(found.name for found in pkgutil.iter_modules(datasets.__path__))


def _module(name: str) -> Any:
    return import_module(f"{datasets.__name__}.{name}")


def _parameters(name: str) -> dict[str, Any]:
    """Options of a dataset with their defaults."""
    signature = inspect.signature(_module(name).load)
    return {p.name: p.default for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}


def _accepted(name: str, options: Options) -> Options:
    return {key: value for key, value in options.items() if key in _parameters(name)}


def _call(name: str, data_dir: Path | None, seed: int, clients: int | None, options: Options) -> Pool:
    known = _parameters(name)
    for key in options:
        if key not in known:
            hint = nearest(key, known) if known else "it has none, leave them out"
            raise DataError(f"dataset {name}: unknown option {key!r}; {hint}")
    values = {key: _coerced(name, key, value, known[key]) for key, value in options.items()}
    if clients is not None and "clients" in known:
        values.setdefault("clients", clients)  # a generator makes as many clients as were asked for
    pool: Pool = _module(name).load(data_dir, seed, **values)
    return pool


def _coerced(name: str, key: str, value: str | int | float, default: Any) -> Any:
    """An option as typed on a command line, in the type of its default."""
    try:
        return type(default)(value)
    except ValueError:
        raise DataError(
            f"dataset {name}: option {key} is {value!r}; expected a value like {default!r}; change it"
        ) from None
