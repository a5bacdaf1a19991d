"""Which client owns which rows: the data's own clients, or a law applied to a pool."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posterity.data import partition
from posterity.data.parse import read_amount
from posterity.data.pool import DataError, Pool
from posterity.data.rng import Purpose, stream
from posterity.data.scheme import Partition, parse_partition
from posterity.data.split import part_off

DEFAULT_PARTITION, DEFAULT_CLIENTS = "dirichlet:0.3", 20


@dataclass(frozen=True)
class Request:
    """How a pool becomes a federation."""

    partition: str | None = None
    clients: int | None = None
    split: str = "80/20"
    subset: str | int | float | None = None
    test_partition: str = "same"
    newcomers: str | int | float = 0
    public: str | float = 0
    seed: int = 0


@dataclass(frozen=True)
class Clients:
    """Who owns which rows, before (`held` is None) or after the split."""

    names: tuple[str, ...]
    owned: list[Tensor]
    rule: Partition
    held: list[Tensor] | None = None
    common: Tensor | None = None
    notes: tuple[str, ...] = ()


def shrink(pool: Pool, request: Request) -> tuple[Pool, set[int]]:
    """The subset asked for, and the owners that had no row even before."""
    owners = len(pool.owner_names)
    before = set() if pool.owner is None else set(range(owners)) - set(pool.owner.tolist())
    if request.subset is None:
        return pool, before
    amount = read_amount(request.subset, len(pool), "subset")
    if amount < 1:
        raise DataError(
            f"subset is {request.subset!r}, which leaves no row of {len(pool)}; expected at least one; raise it"
        )
    rows = torch.from_numpy(stream(request.seed, "subset").permutation(len(pool))[:amount]).sort().values
    note = f"subset: {amount} of {len(pool)} rows, drawn uniformly before the partition"
    return pool.take(rows).noting(note), before


def divide(pool: Pool, request: Request, share: float, empty: set[int]) -> Clients:
    """The rows of each client, and the test rows that are not taken out of them."""
    scheme = parse_partition(request.partition or ("natural" if pool.owner is not None else DEFAULT_PARTITION))
    rows, test, notes = _set_aside(pool, request, share)
    common = test if request.test_partition == "common" else None
    if scheme.name == "natural":
        clients = _natural(pool, request, scheme, rows, empty)
        return replace(clients, common=common, notes=notes + clients.notes)
    if pool.group is not None:
        raise DataError(
            f"partition {request.partition!r} would divide the rows of one group among clients; expected natural "
            "clients; name the client column and use the partition natural, or leave the group out"
        )
    count = DEFAULT_CLIENTS if request.clients is None else request.clients
    owned = _apply(pool, scheme, rows, count, request.seed, "partition")
    held = None
    if request.test_partition == "independent":
        held = _apply(pool, scheme.lenient(), test, count, request.seed, "test partition")
    if left := len(rows) - sum(map(len, owned)):
        notes += (f"partition {request.partition}: {left} of {len(rows)} rows are given to no client",)
    return Clients(tuple(f"client {k}" for k in range(count)), owned, scheme, held, common, notes)


def _set_aside(pool: Pool, request: Request, share: float) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Rows to divide among clients, test rows kept out of that, and what to tell about them."""
    everything = torch.arange(len(pool))
    official = pool.official_test
    if request.test_partition == "same":
        merged = official is not None and bool(official.any())
        return everything, everything[:0], ("the official training and test splits are merged",) * merged
    if official is not None and official.any() and not official.all():
        rows, test, source = everything[~official], everything[official], "the official test split"
    else:
        test, rows = part_off(everything, round(share * len(pool)), stream(request.seed, "held out"), pool.group)
        source = f"{len(test)} rows held out at random"
    if not len(test):
        raise DataError(
            f"test_partition {request.test_partition!r} with split {request.split!r} leaves no test rows; "
            "expected some; hold out more"
        )
    how = (
        "divided independently of the training rows"
        if request.test_partition == "independent"
        else "one common test set"
    )
    return rows, test, (f"test: {source}, {how}",)


def _natural(pool: Pool, request: Request, scheme: Partition, rows: Tensor, empty: set[int]) -> Clients:
    """The clients the data came with, or as many of them as were asked for."""
    if pool.owner is None:
        raise DataError(
            f"partition natural: {pool.name} has no clients of its own; expected an owner for each row; name a client "
            f"column or use a law such as {DEFAULT_PARTITION}"
        )
    if request.test_partition == "independent":
        raise DataError(
            'test_partition "independent" needs a law such as dirichlet:0.5, not natural clients; use "same"'
        )
    owned = [rows[g] for g in partition.natural(pool.owner[rows], len(pool.owner_names))]
    # A client that loses all its rows to a subset is gone; one whose own file is empty stays, and is noted.
    ids = [k for k, mine in enumerate(owned) if len(mine) or k in empty]
    gone = len(owned) - len(ids)
    wanted = len(ids) if request.clients is None else request.clients
    if not 1 <= wanted <= len(ids):
        raise DataError(
            f"{wanted} clients asked for; expected 1 to {len(ids)}, the natural clients of {pool.name}; lower the "
            f"number or use a law such as {DEFAULT_PARTITION}"
        )
    if wanted < len(ids):
        ids = sorted(stream(request.seed, "clients").choice(ids, wanted, replace=False).tolist())
    notes = (f"{gone} clients have no rows left after the subset and are dropped",) * bool(gone)
    return Clients(tuple(pool.owner_names[k] for k in ids), [owned[k] for k in ids], scheme, notes=notes)


def _apply(pool: Pool, scheme: Partition, rows: Tensor, clients: int, seed: int, purpose: Purpose) -> list[Tensor]:
    """Divide `rows`; the datasets of a mix that is kept apart are divided one after the other."""
    rng = stream(seed, purpose)
    if pool.domain is None:
        return [rows[g] for g in scheme.divide(pool.y[rows], clients, rng)]
    domains = sorted(set(pool.domain.tolist()))
    owned = []
    for d, chunk in zip(domains, torch.arange(clients).tensor_split(len(domains)), strict=True):
        here = rows[pool.domain[rows] == d]
        owned += [here[g] for g in scheme.divide(pool.y[here], len(chunk), rng)]
    return owned
