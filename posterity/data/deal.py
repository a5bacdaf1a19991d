"""From shares to whole numbers of rows, and from numbers to rows: what the rules of `data/partition.py` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from posterity.data.pool import DataError

Counts = NDArray[np.int64]


def check(holds: bool, given: str, expected: str, remedy: str) -> None:
    if not holds:
        raise DataError(f"partition: {given}; expected {expected}; {remedy}")


def check_alpha(alpha: float) -> None:
    check(0 < alpha < np.inf, f"alpha is {alpha}", "a number above 0", "try 0.3")


def check_clients(y: Tensor, clients: int) -> None:
    given = f"{clients} clients and {len(y)} rows"
    check(1 <= clients <= len(y), given, "at least a client, and a row for each", "change the number of clients")


def count_classes(y: Tensor, clients: int) -> tuple[NDArray[np.int64], Counts]:
    """Labels renumbered over the classes present, and the size of each class."""
    check(
        not y.is_floating_point(),
        "targets are numbers, not classes",
        "integer labels",
        "use the partition iid or natural for regression",
    )
    check_clients(y, clients)
    _, labels = np.unique(y.numpy(), return_inverse=True)
    return labels.astype(np.int64), np.bincount(labels).astype(np.int64)


def cut(share: NDArray[np.float64], n: int, rng: Generator) -> Counts:
    """Whole numbers that add up to n: each is share · n rounded up or down, and share · n in expectation.

    Cumulative sums, from a random start and in a random order. (A start at 0 takes half a row of every class from the
    first client and gives it to the last; largest remainders take from shares below half a row.)
    """
    order = rng.permutation(len(share))
    ends = np.floor((np.cumsum(share[order]) * n).round(9) + rng.random()).astype(np.int64).clip(max=n)
    ends[-1] = n
    counts = np.empty(len(share), dtype=np.int64)
    counts[order] = np.diff(ends, prepend=0)
    return counts


def round_shares(law: NDArray[np.float64], n: int, order: Counts) -> Counts:
    """n·law per row by largest remainders; equal remainders are settled in the given order of classes."""
    exact = law * n
    counts = np.floor(exact + 1e-9).astype(np.int64)
    for k, row in enumerate(exact - counts):
        first = order[k][np.argsort(-row[order[k]].round(9), kind="stable")]
        counts[k, first[: n - counts[k].sum()]] += 1
    return counts


def choose_classes(clients: int, kinds: int, classes: int, rng: Generator) -> NDArray[np.bool_]:
    """Give each client `kinds` classes so that all classes are used equally often, give or take one."""
    check(1 <= kinds <= classes, f"{kinds} classes per client", f"1 to {classes}", "change the number")
    chosen = np.zeros((clients, classes), dtype=bool)
    for k in range(clients):
        tie = rng.random(classes)
        chosen[k, np.lexsort((tie, chosen.sum(0)))[:kinds]] = True
    return chosen


def resample(draw: Callable[[], Counts], rows: int, clients: int, minimum: int, tries: int) -> Counts:
    """The first draw that gives every client at least `minimum` rows."""
    check(minimum >= 1, f"minimum {minimum}", "at least 1 row a client", "raise it")
    best = 0
    for _ in range(tries if rows >= clients * minimum else 0):
        counts = draw()
        if (smallest := int(counts.sum(1).min())) >= minimum:
            return counts
        best = max(best, smallest)
    raise DataError(
        f"partition: {rows} rows over {clients} clients; expected at least {minimum} rows a client, but the best of "
        f"{tries} draws left a client with {best}; use fewer clients, a larger alpha, or a lower minimum "
        "(for example dirichlet:0.3:1)"
    )


def deal(labels: NDArray[np.int64], counts: Counts, rng: Generator) -> list[Tensor]:
    """Pick rows at random so that client k gets counts[k, c] of class c."""
    own: list[list[NDArray[Any]]] = [[] for _ in counts]
    for c in range(counts.shape[1]):
        rows = rng.permutation(np.flatnonzero(labels == c))
        for mine, piece in zip(own, np.split(rows, np.cumsum(counts[:, c]))[:-1], strict=True):
            mine.append(piece)
    return [torch.from_numpy(np.sort(np.concatenate(mine))) for mine in own]


def check_rows(owned: Any, name: str, rows: int, clients: int) -> list[Tensor]:
    """What a rule of the user's own returned, as the rows of each client in ascending order."""
    wanted = f"expected a list with the rows of each of the {clients} clients, whole numbers from 0 to {rows - 1}"
    if not isinstance(owned, list | tuple) or len(owned) != clients:
        count = f" of {len(owned)}" if isinstance(owned, list | tuple) else ""
        raise DataError(f"partition {name!r} returned a {type(owned).__name__}{count}; {wanted}")
    found = [np.sort(np.asarray(mine).flatten()) for mine in owned]
    kinds = {str(mine.dtype) for mine in found if len(mine) and mine.dtype.kind not in "iu"}
    if kinds:
        raise DataError(f"partition {name!r} returned rows of type {', '.join(sorted(kinds))}; {wanted}")
    together = np.concatenate([mine.astype(np.int64) for mine in found]) if found else np.zeros(0, dtype=np.int64)
    if len(together) and not 0 <= together.min() <= together.max() < rows:
        raise DataError(f"partition {name!r} returned rows from {together.min()} to {together.max()}; {wanted}")
    if len(np.unique(together)) < len(together):
        twice = np.flatnonzero(np.bincount(together) > 1)[0]
        raise DataError(f"partition {name!r} gives out row {twice} more than once; expected every row at most once")
    return [torch.from_numpy(mine.astype(np.int64)) for mine in found]
