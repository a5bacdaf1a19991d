"""What is looked at once rows are divided, or handed in by somebody else: values, owners, rows in two parts.

`data/clients.py` asks for `remarks`; `data/registry.py` checks what a function of the user returned. Federations that
were put together by hand are looked at in `data/federation_checks.py`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from posterity.core.text import plain
from posterity.data.pool import DataError, Pool

if TYPE_CHECKING:
    from posterity.data.federation import Federation

T = TypeVar("T", "Pool", "Federation")  # records of tensors
COLUMNS = ("x", "y", "owner", "group", "official_test", "domain", "common")
INTEGER = re.compile(r"0*(\d+)(?:\.0*)?")  # 7, 007, 7.0
AT_ONCE = 2**24  # values that are looked at together


def check_pool(pool: Pool, name: str) -> Pool:
    """Refuse a pool whose tensors do not fit together or whose values cannot be used."""
    whose = f"dataset {name!r}"
    pool = as_tensors(pool, COLUMNS, whose)
    n = len(pool.y) if pool.y.dim() else 0
    for what in ("x", "owner", "group", "official_test", "domain"):
        column: Tensor | None = getattr(pool, what)
        if column is not None and (column.dim() < 1 or len(column) != n):
            raise DataError(f"{whose}: {what} has the shape {tuple(column.shape)} and y {n} rows; expected as "
                            "many of both; mend what is returned")  # fmt: skip
    if pool.y.dim() != 1:
        raise DataError(f"{whose}: y has the shape {tuple(pool.y.shape)}; expected ({n},); flatten it")
    check_kind(pool.y, pool.task, whose)
    if pool.task == "classification" and n:
        low, high = int(pool.y.min()), int(pool.y.max())
        if low < 0 or high >= pool.classes:
            raise DataError(f"{whose}: labels from {low} to {high} and classes={pool.classes}; expected "
                            f"labels from 0 to {pool.classes - 1}; mend labels or classes")  # fmt: skip
    if (
        pool.owner is not None
        and n
        and not -1 <= int(pool.owner.min()) <= int(pool.owner.max()) < len(pool.owner_names)
    ):
        raise DataError(f"{whose}: owner names clients up to {int(pool.owner.max())} and owner_names has "
                        f"{len(pool.owner_names)}; expected a name for each; add names")  # fmt: skip
    check_features(pool.x, whose)
    return pool


def pool_remarks(pool: Pool, features: tuple[str, ...]) -> list[str]:
    """What a user may not know about the own rows: features that never vary, names that are nearly the same."""
    return [*_constant(pool, features), *alike(pool.class_names, "classes"), *alike(pool.owner_names, "clients")]


def remarks(pool: Pool, names: tuple[str, ...], train: list[Tensor], held: list[Tensor], members: int) -> list[str]:
    """What a reader of the scores should know about the rows: held-out ones that were trained on, unlearnt classes."""
    trained = torch.cat(train[:members]) if members else torch.zeros(0, dtype=torch.int64)
    kept = torch.cat(held) if held else trained[:0]
    owned = [torch.cat(pair) for pair in zip(train, held, strict=True)]
    return [*_lonely(pool, names, owned), *_repeated(pool, trained, kept), *_unlearnt(pool, trained, kept)]


def _constant(pool: Pool, features: tuple[str, ...]) -> list[str]:
    if pool.x.dim() != 2 or len(pool) < 2:  # a picture's margin may be black
        return []
    same = torch.nonzero((pool.x == pool.x[:1]).all(0))[:, 0].tolist()
    if not same:
        return []
    has = "features have" if len(same) > 1 else "feature has"
    shown = ", ".join(plain(features[i]) if features else str(i) for i in same[:5]) + (", …" if len(same) > 5 else "")
    return [f"{len(same)} {has} the same value in every row and can teach nothing: {shown}"]


def alike(names: tuple[str, ...], what: str) -> list[str]:
    """Names that differ in capitals or spaces only, in how a number is written (7, 07, 7.0), or a character stored."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_sounds(name), []).append(name)
    said = []
    for same in (same for same in groups.values() if len(same) > 1):
        how, show = "capitals or spaces", repr
        if number := _number(same[0]):
            how = f"how the number {number} is written"
        elif len({"".join(name.split()).casefold() for name in same}) > 1:
            how, show = "capitals, spaces or how their characters are stored", ascii
        shown = " and ".join(map(show, same))
        said.append(f"the {what} {shown} differ in {how} only: write them alike if they are one")
    return said


def _sounds(name: str) -> str:
    """A name without what is easily written in another way: é may be one character, or e and an accent."""
    if not name.isascii():
        name = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) != "Cf")
    return _number(name) or "".join(name.split()).casefold()


def _number(name: str) -> str:
    """A whole number, with or without zeros around it, as it is usually written; empty if it is none."""
    found = INTEGER.fullmatch(name)
    return found[1] if found else ""


def _lonely(pool: Pool, names: tuple[str, ...], groups: list[Tensor]) -> list[str]:
    """A remark on clients whose rows are all of one class, in files of the user."""
    if not pool.may_repeat or pool.task == "regression":
        return []
    owner = torch.repeat_interleave(torch.arange(len(names)), torch.tensor([len(rows) for rows in groups]))
    cells = torch.unique(torch.stack([owner, pool.y[torch.cat(groups)]], 1), dim=0)  # (cells, 2)
    kinds = torch.bincount(cells[:, 0], minlength=len(names))
    lonely = [name for name, kind in zip(names, kinds.tolist(), strict=True) if kind == 1]
    if not lonely:
        return []
    shown = ", ".join(map(plain, lonely[:5])) + (", …" if len(lonely) > 5 else "")
    return [f"{len(lonely)} clients have one class only ({shown}): AUROC means nothing there, accuracy little"]


def _repeated(pool: Pool, trained: Tensor, kept: Tensor) -> list[str]:
    if not pool.may_repeat or not len(kept):
        return []
    x, y = pool.x.numpy(), pool.y.numpy()
    seen = {hash((x[row].tobytes(), y[row].item())) for row in trained.tolist()}
    again = [hash((x[row].tobytes(), y[row].item())) for row in kept.tolist()]
    copies = sum(row in seen for row in again)
    if not copies:
        return []
    return [f"{copies} of {len(kept)} held-out rows equal a training row in all features and the target: their scores "
            "say little about new rows; drop copies, or keep what belongs together in one part (--group)"]  # fmt: skip


def _unlearnt(pool: Pool, trained: Tensor, kept: Tensor) -> list[str]:
    if pool.task != "classification" or not len(kept):
        return []
    there, asked = (torch.bincount(pool.y[rows], minlength=pool.classes) for rows in (trained, kept))
    found = torch.nonzero((there == 0) & (asked > 0))[:, 0].tolist()
    if not found:
        return []
    names = ", ".join(repr(pool.class_names[c]) if pool.class_names else str(c) for c in found[:5])
    more = f" and {len(found) - 5} others" if len(found) > 5 else ""
    rows = int(asked[found].sum())
    return [f"no member trains on the class {names}{more}, which {rows} held-out rows have: nobody can learn it"]


def check_features(
    x: Tensor, whose: str, used: Tensor | None = None, owner: Callable[[int], str] = lambda row: ""
) -> None:  # fmt: skip
    """Refuse features that are missing or infinite in a row that is `used` (on the host; None: all are)."""
    if not x.is_floating_point() or not x.numel():
        return
    bad = _not_finite(x)
    bad = bad if used is None else bad & used
    if not bool(bad.any()):
        return
    flat = x.reshape(len(x), -1)
    none = torch.nonzero(~flat.isfinite().any(0))[:, 0]
    if len(none):
        more = f", as are {len(none) - 1} others" if len(none) > 1 else ""
        raise DataError(
            f"{whose}: feature {int(none[0])} is missing or infinite in all {len(x)} rows{more}; expected numbers; "
            "remove it"
        )
    row = int(torch.nonzero(bad)[0, 0])
    feature = int(torch.nonzero(~flat[row].isfinite())[0, 0])
    raise DataError(f"{whose}: feature {feature} of row {row}{owner(row)} is {float(flat[row, feature])}; expected "
                    "numbers; fill or drop it")  # fmt: skip


def _not_finite(x: Tensor) -> Tensor:
    """Which rows hold a missing or infinite value, on the host; x is read once, some rows at a time."""
    each = max(1, AT_ONCE // max(1, x[0].numel()))
    return torch.cat([~some.reshape(len(some), -1).isfinite().all(1).cpu() for some in torch.split(x, each)])


def check_kind(y: Tensor, task: str, whose: str) -> None:
    """Refuse labels that are no whole numbers."""
    if task == "classification" and (y.is_floating_point() or y.is_complex()):
        raise DataError(f"{whose}: y is of type {y.dtype} and the task is classification; expected labels of type "
                        "torch.int64; convert them, or set the task to regression")  # fmt: skip


def as_tensors(record: T, names: tuple[str, ...], whose: str) -> T:
    """The record with tensors where somebody gave arrays, and labels of a type that can be counted."""
    made: dict[str, Any] = {}
    for name in names:
        given = getattr(record, name)
        if given is None:
            continue
        value = given if isinstance(given, Tensor) else tensor_of(given, f"{whose}: {name}")
        small = name == "y" and not value.is_floating_point() and value.dtype not in (torch.int64, torch.int32)
        if value is not given or small:
            made[name] = value.long() if small else value
    return replace(record, **made) if made else record


def tensor_of(given: Any, what: str) -> Tensor:
    """Numbers as a tensor, whatever their order of bytes."""
    array = np.asarray(given)
    if array.dtype.kind not in "biuf":
        raise DataError(f"{what} is a {type(given).__name__} of type {array.dtype}; expected a tensor or an array of "
                        "numbers; convert it")  # fmt: skip
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))
