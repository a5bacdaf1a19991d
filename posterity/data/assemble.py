"""From a pool to a federation: who owns what, what is held out, who comes late."""

from __future__ import annotations

from torch import Tensor

from posterity.data import split as parts
from posterity.data.clients import Request, divide, shrink
from posterity.data.federation import Federation, Part
from posterity.data.parse import nearest, read_amount, read_share, read_split
from posterity.data.pool import DataError, Pool

TEST_PARTITIONS = ("same", "independent", "common")


def assemble(pool: Pool, request: Request) -> Federation:
    """Divide, split, choose newcomers, standardise, give public rows: in this order, each with its own stream."""
    _check(request, pool)
    share, given, seed = read_split(request.split), read_share(request.public, "public"), request.seed
    pool, empty = shrink(pool, request)
    found = divide(pool, request, share, empty)
    train, held = found.owned, found.held
    if held is None:
        train, held = parts.hold_out(train, share, seed, pool.group)
    validation, test = parts.halve(held, seed, pool.group)
    late = read_amount(request.newcomers, len(train) - 1, "newcomers") if request.newcomers else 0
    order = parts.choose_newcomers(len(train), late, seed)
    members = len(order) - late
    train, held, validation, test = ([rows[k] for k in order] for rows in (train, held, validation, test))
    x = parts.standardise(pool.x, train, held, members, pool.scale, found.common)
    names = tuple(found.names[k] for k in order)
    y = _spoilt(pool, names, train, seed)
    notes = (*pool.notes, *found.notes, *_remarks(pool, train, held, share, late))
    public = None
    if given:
        train, public = parts.give_public(train, members, given, seed)
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
        partition=found.rule,
        notes=notes,
    )


def _check(request: Request, pool: Pool) -> None:
    kind = request.test_partition
    if kind not in TEST_PARTITIONS:
        raise DataError(f"test_partition is {kind!r}; {nearest(kind, TEST_PARTITIONS)}")
    if kind == "common" and pool.scale == "client":
        raise DataError(
            'test_partition is "common" and every client scales its own features; expected one scale for rows that '
            'belong to no client; give options={"scale": "all"} or "none"'
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
    return parts.shuffle_labels(pool.y, train[names.index(name)], seed)


def _remarks(pool: Pool, train: list[Tensor], held: list[Tensor], share: float, late: int) -> list[str]:
    notes = []
    if late:
        notes.append(f"newcomers: the last {late} clients take no part in training")
    if untrained := sum(not len(rows) for rows in train):
        notes.append(f"{untrained} clients have no training data: they are never asked to train")
    if share and (unscored := sum(not len(rows) for rows in held)):
        notes.append(f"{unscored} clients have too little data to hold anything out: they are not scored")
    if pool.outlier is not None:
        notes.append(f"outlier: the training labels of {pool.owner_names[pool.outlier]} are shuffled")
    if pool.scale != "none":
        who = "its own" if pool.scale == "client" else "all members'"
        notes.append(f"features are standardised for each client by {who} training rows")
    return notes
