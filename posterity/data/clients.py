"""From a pool to a federation: which client owns which rows, what is held out, who comes late.

`assemble` is the whole way: a subset (`shrink`), the rows of each client (`divide`: the data's own clients, or a rule
of `data/partition.py`), then the steps of `data/split.py`. What was asked for is a `FederationSpec` of
`data/federation.py`; the pool comes from `data/registry.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posterity.core.hyperparameters import nearest
from posterity.core.text import plain
from posterity.data import split
from posterity.data.checks import remarks
from posterity.data.federation import Federation, FederationSpec, Part
from posterity.data.parse import read_amount, read_newcomers, read_share, read_split
from posterity.data.partition import Partition, natural, parse_partition
from posterity.data.pool import DataError, Pool, tell_option
from posterity.data.preprocess import Preprocessing, fingerprint
from posterity.data.rng import Purpose, stream

DEFAULT_PARTITION, DEFAULT_CLIENTS = "dirichlet:0.3", 20
TEST_PARTITIONS = ("same", "independent", "common")


@dataclass(frozen=True)
class ClientRows:
    """Who owns which rows, before (`held` is None) or after the split."""

    names: tuple[str, ...]
    owned: list[Tensor]
    partition: Partition
    held: list[Tensor] | None = None
    common: Tensor | None = None
    notes: tuple[str, ...] = ()


def assemble(pool: Pool, spec: FederationSpec) -> Federation:
    """Divide, split, choose newcomers, standardise, give public rows: in this order, each with its own stream."""
    _check(spec, pool)
    share, given, seed = read_split(spec.split), read_share(spec.public, "public"), spec.seed
    pool, empty = shrink(pool, spec)
    found = divide(pool, spec, share, empty)
    train, held = found.owned, found.held
    if held is None:
        train, held = split.hold_out(train, share, seed, pool.group)
    validation, test = split.halve(held, seed, pool.group)
    late = read_newcomers(spec.newcomers, len(train))
    order = split.choose_newcomers(len(train), late, seed)
    members = len(order) - late
    train, held, validation, test = ([rows[k] for k in order] for rows in (train, held, validation, test))
    x = split.standardise(pool.x, train, held, members, pool.scale, found.common)
    fitted = split.fit_scaling(pool.x, train, members, pool.scale)
    names = tuple(found.names[k] for k in order)
    y = _spoilt(pool, names, train, seed)
    notes = (
        *pool.notes,
        *found.notes,
        *_remarks(pool, names, train, held, share, late),
        *remarks(pool, names, train, held, members),
    )
    public = None
    if given:
        train, public = split.give_public(train, members, given, seed)
        notes += (f"public: {len(public)} unlabelled rows were taken out of the members' training data",)
    return Federation(
        pool.name,
        pool.task,
        x,
        y,
        pool.classes,
        Part.of(train),
        Part.of(validation),
        Part.of(test),
        members,
        names,
        class_names=pool.class_names,
        common=pool.common if found.common is None else found.common,
        public=public,
        partition=found.partition,
        notes=notes,
        preprocessing=Preprocessing(pool.columns, pool.pictures, *(fitted or ())),
        fingerprint=fingerprint((pool.x, y, *train, *validation, *test)) if fitted else "",
    )


def _check(spec: FederationSpec, pool: Pool) -> None:
    kind = spec.test_partition
    if kind not in TEST_PARTITIONS:
        raise DataError(f"test_partition is {kind!r}; {nearest(kind, TEST_PARTITIONS)}")
    if kind == "common" and pool.scale == "client":
        raise DataError(
            'test_partition is "common" and every client scales its own features; expected one scale for rows that '
            f"belong to no client; give {tell_option('scale', 'all')}, or none instead of all"
        )


def _spoilt(pool: Pool, names: tuple[str, ...], train: list[Tensor], seed: int) -> Tensor:
    """The labels; those of the outlier's training rows are shuffled, and what it holds out stays as it is."""
    if pool.outlier is None:
        return pool.y
    name = pool.owner_names[pool.outlier]
    if name not in names:
        raise DataError(
            f"outlier {name!r} is none of the clients {', '.join(names[:5])} …; expected one that takes part; keep the "
            "data's own clients, all of them"
        )
    return split.shuffle_labels(pool.y, train[names.index(name)], seed)


def _remarks(
    pool: Pool, names: tuple[str, ...], train: list[Tensor], held: list[Tensor], share: float, late: int
) -> list[str]:
    notes = []
    if late:
        notes.append(f"newcomers: the last {late} clients take no part in training")
    if untrained := sum(not len(rows) for rows in train):
        notes.append(f"clients without training data, which are never asked to train: {untrained}")
    if share and (unscored := sum(not len(rows) for rows in held)):
        notes.append(f"clients with too little data to hold anything out, which are not scored: {unscored}")
    if pool.outlier is not None:
        notes.append(f"outlier: the training labels of {pool.owner_names[pool.outlier]} are shuffled")
    if pool.scale != "none":
        who = "its own" if pool.scale == "client" else "all members'"
        notes.append(f"features are standardised for each client by {who} training rows")
    single = [plain(name) for name, rows in zip(names, train, strict=True) if len(rows) == 1]
    if pool.scale == "client" and single:
        shown = ", ".join(single[:5]) + (", …" if len(single) > 5 else "")
        notes.append(f"clients with a single training row: {len(single)} ({shown}). It says where their features lie "
                     "and not how far they spread, so their other rows are in raw units and their scores and "
                     f"predictions mean nothing: give {tell_option('scale', 'all')}")  # fmt: skip
    return notes


def shrink(pool: Pool, spec: FederationSpec) -> tuple[Pool, set[int]]:
    """The subset asked for, and the owners that had no row even before."""
    owners = len(pool.owner_names)
    before = set() if pool.owner is None else set(range(owners)) - set(pool.owner.tolist())
    if spec.subset is None:
        return pool, before
    amount = read_amount(spec.subset, len(pool), "subset")
    if amount < 1:
        raise DataError(
            f"subset is {spec.subset!r}, which leaves no row of {len(pool)}; expected at least one; raise it"
        )
    rows = torch.from_numpy(stream(spec.seed, "subset").permutation(len(pool))[:amount]).sort().values
    note = f"subset: {amount} of {len(pool)} rows, drawn uniformly before the partition{_of_stored(pool, amount)}"
    return pool.take(rows).noting(note), before


def _of_stored(pool: Pool, amount: int) -> str:
    """A share is one of the rows that are stored: say so where the dataset has more."""
    if pool.published <= len(pool):
        return ""
    return (
        f"; {len(pool):,} of the {pool.published:,} rows of {pool.name} are stored, so this is "
        f"{100 * amount / len(pool):.3g} % of the stored part and {100 * amount / pool.published:.3g} % of the dataset"
    )


def divide(pool: Pool, spec: FederationSpec, share: float, empty: set[int]) -> ClientRows:
    """The rows of each client, and the test rows that are not taken out of them."""
    rule = spec.partition or ("natural" if pool.owner is not None else DEFAULT_PARTITION)
    partition = parse_partition(rule)
    rows, test, notes = _set_aside(pool, spec, share)
    common = test if spec.test_partition == "common" else None
    if partition.name == "natural":
        clients = _natural(pool, spec, partition, rows, empty)
        return replace(clients, common=common, notes=notes + clients.notes)
    count = DEFAULT_CLIENTS if spec.clients is None else spec.clients
    if pool.group is not None and count > 1:  # one client has whole groups whatever the law
        raise DataError(
            f"partition {rule!r} would divide the rows of one group among clients; expected natural "
            "clients; name the client column and use the partition natural, or leave the group out"
        )
    if pool.may_repeat and not spec.partition and count > 1:
        notes += (f"no column names the clients, so {rule} divides the rows among {count} made-up ones: give "
                  "client_column if a column says whose a row is",)  # fmt: skip
    owned = _apply(pool, partition, rows, count, spec.seed, "partition")
    held = None
    if spec.test_partition == "independent":
        held = _apply(pool, partition.lenient(), test, count, spec.seed, "test partition")
    if left := len(rows) - sum(map(len, owned)):
        notes += (f"partition {rule}: {left} of {len(rows)} rows are given to no client",)
    return ClientRows(tuple(f"client {k}" for k in range(count)), owned, partition, held, common, notes)


def _set_aside(pool: Pool, spec: FederationSpec, share: float) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Rows to divide among clients, test rows kept out of that, and what to tell about them."""
    everything = torch.arange(len(pool))
    official = pool.official_test
    if spec.test_partition == "same":
        merged = official is not None and bool(official.any())
        return everything, everything[:0], ("the official training and test splits are merged",) * merged
    if official is not None and official.any() and not official.all():
        rows, test, source = everything[~official], everything[official], "the official test split"
    else:
        test, rows = split.part_off(everything, round(share * len(pool)), stream(spec.seed, "held out"), pool.group)
        source = f"{len(test)} rows held out at random"
    if not len(test):
        raise DataError(
            f"test_partition {spec.test_partition!r} with split {spec.split!r} leaves no test rows; "
            "expected some; hold out more"
        )
    how = (
        "divided independently of the training rows" if spec.test_partition == "independent" else "one common test set"
    )
    return rows, test, (f"test: {source}, {how}",)


def _natural(pool: Pool, spec: FederationSpec, partition: Partition, rows: Tensor, empty: set[int]) -> ClientRows:
    """The clients the data came with, or as many of them as were asked for."""
    if pool.owner is None:
        raise DataError(
            f"partition natural: {pool.name} has no clients of its own; expected an owner for each row; name a client "
            f"column or use a law such as {DEFAULT_PARTITION}"
        )
    if spec.test_partition == "independent":
        raise DataError(
            'test_partition "independent" needs a law such as dirichlet:0.5, not natural clients; use "same"'
        )
    owned = [rows[g] for g in natural(pool.owner[rows], len(pool.owner_names))]
    # A client that loses all its rows to a subset is gone; one whose own file is empty stays, and is noted.
    ids = [k for k, mine in enumerate(owned) if len(mine) or k in empty]
    gone = len(owned) - len(ids)
    wanted = len(ids) if spec.clients is None else spec.clients
    if not 1 <= wanted <= len(ids):
        raise DataError(
            f"{wanted} clients asked for; expected 1 to {len(ids)}, the natural clients of {pool.name}; lower the "
            f"number or use a law such as {DEFAULT_PARTITION}"
        )
    if wanted < len(ids):
        ids = sorted(stream(spec.seed, "clients").choice(ids, wanted, replace=False).tolist())
    notes = (f"{gone} clients have no rows left after the subset and are dropped",) * bool(gone)
    return ClientRows(tuple(pool.owner_names[k] for k in ids), [owned[k] for k in ids], partition, notes=notes)


def _apply(pool: Pool, partition: Partition, rows: Tensor, clients: int, seed: int, purpose: Purpose) -> list[Tensor]:
    """Divide `rows`; the datasets of a mix that is kept apart are divided one after the other."""
    rng = stream(seed, purpose)
    if pool.domain is None:
        return [rows[g] for g in partition.divide(pool.y[rows], clients, rng)]
    domains = sorted(set(pool.domain.tolist()))
    owned = []
    for d, chunk in zip(domains, torch.arange(clients).tensor_split(len(domains)), strict=True):
        here = rows[pool.domain[rows] == d]
        owned += [here[g] for g in partition.divide(pool.y[here], len(chunk), rng)]
    return owned
