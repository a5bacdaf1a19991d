"""From a pool to a federation: which client owns which rows, what is held out, who comes late.

`assemble` is the whole way: a subset (`shrink`), the rows of each client (`divide`: the data's own clients, or a rule
of `data/partition.py`), training, validation and test rows, newcomers, a scale, public rows. Each step has its own
stream of `data/rng.py`. What is asked for is a `FederationSpec`; `settings/hyperparameters.py` reads its amounts, the
sentences about wrong ones stand here.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from posterity.data.checks import remarks
from posterity.data.federation import Federation, FederationSpec, Part
from posterity.data.partition import Partition, natural, parse_partition
from posterity.data.pool import DataError, Pool, Scaling, listed, tell_option
from posterity.data.preprocess import Preprocessing, fingerprint
from posterity.data.rng import Purpose, stream
from posterity.settings.hyperparameters import MISTAKES, nearest, parse_amount, parse_share, parse_split

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
        train, held = hold_out(train, share, seed, pool.group)
    validation, test = halve(held, seed, pool.group)
    late = read_newcomers(spec.newcomers, len(train))
    order = choose_newcomers(len(train), late, seed)
    members = len(order) - late
    train, held, validation, test = ([rows[k] for k in order] for rows in (train, held, validation, test))
    fitted = fit_scaling(pool.x, train, members, pool.scale)
    x = standardise(pool.x, train, held, fitted, found.common)
    names = tuple(found.names[k] for k in order)
    y = _spoilt(pool, names, train, seed)
    notes = (*pool.notes, *found.notes, *_remarks(pool, names, train, held, share, late))
    notes = (*notes, *remarks(pool, names, train, held, members))
    public = None
    if given:
        train, public = give_public(train, members, given, seed)
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
        given = 'test_partition is "common" and every client scales its own features'
        raise DataError(f"{given}; expected one scale for all; give {tell_option('scale', 'all')}, or none")


def _spoilt(pool: Pool, names: tuple[str, ...], train: list[Tensor], seed: int) -> Tensor:
    """The labels; those of the outlier's training rows are shuffled, and what it holds out stays as it is."""
    if pool.outlier is None:
        return pool.y
    name = pool.owner_names[pool.outlier]
    if name not in names:
        given = f"outlier {name!r} is none of the clients {listed(names, 5)}"
        raise DataError(f"{given}; expected one that takes part; keep the data's own clients, all of them")
    return shuffle_labels(pool.y, train[names.index(name)], seed)


def _remarks(
    pool: Pool, names: tuple[str, ...], train: list[Tensor], held: list[Tensor], share: float, late: int
) -> Iterator[str]:
    if late:
        yield f"newcomers: the last {late} clients take no part in training"
    if untrained := sum(not len(rows) for rows in train):
        yield f"clients without training data, which are never asked to train: {untrained}"
    if share and (unscored := sum(not len(rows) for rows in held)):
        yield f"clients with too little data to hold anything out, which are not scored: {unscored}"
    if pool.outlier is not None:
        yield f"outlier: the training labels of {pool.owner_names[pool.outlier]} are shuffled"
    if pool.scale != "none":
        who = "its own" if pool.scale == "client" else "all members'"
        yield f"features are standardised for each client by {who} training rows"
    single = [name for name, rows in zip(names, train, strict=True) if len(rows) == 1]
    if pool.scale == "client" and single:
        who = f"clients with a single training row, which has no scale: {len(single)} ({listed(single, 5)})"
        yield f"{who}: their scores mean nothing; give {tell_option('scale', 'all')}"


def shrink(pool: Pool, spec: FederationSpec) -> tuple[Pool, set[int]]:
    """The subset asked for, and the owners that had no row even before."""
    owners = len(pool.owner_names)
    before = set() if pool.owner is None else set(range(owners)) - set(pool.owner.tolist())
    if spec.subset is None:
        return pool, before
    amount = read_amount(spec.subset, len(pool), "subset")
    if amount < 1:
        raise DataError(f"subset is {spec.subset!r}, which leaves no row of {len(pool)}; expected some; raise it")
    rows = torch.from_numpy(stream(spec.seed, "subset").permutation(len(pool))[:amount]).sort().values
    note = f"subset: {amount} of {len(pool)} rows, drawn uniformly before the partition"
    return pool.take(rows).noting(note), before


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
        given = f"partition {rule!r} would divide the rows of one group among clients"
        raise DataError(f"{given}; expected natural clients; name the client column, or leave the group out")
    if pool.may_repeat and not spec.partition and count > 1:
        given = f"no column names the clients, so {rule} divides the rows among {count} made-up ones"
        notes += (f"{given}: give client_column if a column says whose a row is",)

    def apply(rule: Partition, these: Tensor, purpose: Purpose) -> list[Tensor]:
        return [these[mine] for mine in rule.divide(pool.y[these], count, stream(spec.seed, purpose))]

    owned = apply(partition, rows, "partition")
    held = None
    if spec.test_partition == "independent":
        held = apply(partition.lenient(), test, "test partition")
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
        test, rows = part_off(everything, round(share * len(pool)), stream(spec.seed, "held out"), pool.group)
        source = f"{len(test)} rows held out at random"
    if not len(test):
        given = f"test_partition {spec.test_partition!r} with split {spec.split!r}"
        raise DataError(f"{given} leaves no test rows; expected some; hold out more")
    common = spec.test_partition == "common"
    how = "one common test set" if common else "divided independently of the training rows"
    return rows, test, (f"test: {source}, {how}",)


def _natural(pool: Pool, spec: FederationSpec, partition: Partition, rows: Tensor, empty: set[int]) -> ClientRows:
    """The clients the data came with, or as many of them as were asked for."""
    if pool.owner is None:
        raise DataError(f"partition natural: {pool.name} has no clients of its own; expected an owner for each row; "
                        f"name a client column or use a law such as {DEFAULT_PARTITION}")  # fmt: skip
    if spec.test_partition == "independent":
        raise DataError('test_partition "independent" needs a law such as dirichlet:0.5, not natural clients')
    owned = [rows[g] for g in natural(pool.owner[rows], len(pool.owner_names))]
    # A client that loses all its rows to a subset is gone; one whose own file is empty stays, and is noted.
    ids = [k for k, mine in enumerate(owned) if len(mine) or k in empty]
    gone = len(owned) - len(ids)
    wanted = len(ids) if spec.clients is None else spec.clients
    if not 1 <= wanted <= len(ids):
        known = f"1 to {len(ids)}, the natural clients of {pool.name}"
        raise DataError(f"{wanted} clients asked for; expected {known}; or use a law such as {DEFAULT_PARTITION}")
    if wanted < len(ids):
        ids = sorted(stream(spec.seed, "clients").choice(ids, wanted, replace=False).tolist())
    notes = (f"{gone} clients have no rows left after the subset and are dropped",) * bool(gone)
    return ClientRows(tuple(pool.owner_names[k] for k in ids), [owned[k] for k in ids], partition, notes=notes)


def read_share(value: str | float, what: str) -> float:
    """A share in [0, 1) from "20%" or 0.2."""
    try:
        share = parse_share(value)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:  # also refuses nan
        raise DataError(f'{what} is {value!r}; expected a share below 1 such as "20%" or 0.2')
    return share


def read_amount(value: str | float, total: int, what: str) -> int:
    """How many of `total` are meant by "25%", by a share below 1, or by a whole number."""
    try:
        return parse_amount(value, total)
    except MISTAKES:
        wanted = f'a percentage such as "25%" or a whole number up to {total}'
        raise DataError(f"{what} is {value!r}; expected {wanted}") from None


def read_newcomers(value: str | float, clients: int) -> int:
    """How many of the clients come late; somebody must be left to train."""
    late = read_amount(value, clients, "newcomers")
    if late >= clients > 0:
        wanted = f"up to {clients - 1} of {clients} clients, so that somebody is left to train"
        raise DataError(f"newcomers is {value!r}; expected {wanted}; lower it")
    if not late and parse_share(value) > 0:
        raise DataError(f"newcomers is {value!r}, which is nobody of {clients} clients; expected 0 or more; raise it")
    return late


def read_split(text: str) -> float:
    """The share held out, from "80/20"."""
    try:
        train, held = parse_split(text)
    except ValueError:
        train, held = 0.0, 0.0
    if train <= 0 or held < 0 or not abs(train + held - 100) <= 1e-6:  # also refuses nan
        wanted = "two percentages that add up to 100, the first above 0"
        raise DataError(f'split is {text!r}; expected {wanted}, such as "80/20"')
    return held / 100


def hold_out(
    owned: list[Tensor], share: float, seed: int, group: Tensor | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Training and held-out rows of each client: at least one row of each where the client has two to divide."""
    train, held = list(owned), list(owned)
    for k, rows in enumerate(owned):
        amount = min(max(round(share * len(rows)), 1 if share > 0 else 0), len(rows) - 1)
        held[k], train[k] = part_off(rows, amount, stream(seed, "split", k), group)
    return train, held


def halve(held: list[Tensor], seed: int, group: Tensor | None = None) -> tuple[list[Tensor], list[Tensor]]:
    """Validation and test rows of each client; a single held-out row is a test row."""
    pairs = [part_off(rows, len(rows) // 2, stream(seed, "halve", k), group) for k, rows in enumerate(held)]
    return [validation for validation, _ in pairs], [test for _, test in pairs]


def part_off(rows: Tensor, amount: int, rng: Generator, group: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """About `amount` random rows, and the others: whole groups, and never everything."""
    if amount <= 0:
        return rows[:0], rows
    if group is None:
        order = torch.from_numpy(rng.permutation(len(rows)))
        return rows[order[:amount]].sort().values, rows[order[amount:]].sort().values
    kinds, which, sizes = np.unique(group[rows].numpy(), return_inverse=True, return_counts=True)
    taken, total = np.zeros(len(kinds), dtype=bool), 0
    for g in rng.permutation(len(kinds)):
        if total + sizes[g] / 2 <= amount and taken.sum() < len(kinds) - 1:
            taken[g] = True
            total += sizes[g]
    if not taken.any() and len(kinds) > 1:
        taken[sizes.argmin()] = True  # every group is larger than wanted: the smallest is nearest
    mask = torch.from_numpy(taken[which])
    return rows[mask], rows[~mask]


def choose_newcomers(clients: int, count: int, seed: int) -> list[int]:
    """An order of the clients in which `count` random ones come last."""
    last = set(stream(seed, "newcomers").choice(clients, count, replace=False).tolist())
    return [k for k in range(clients) if k not in last] + sorted(last)


def give_public(train: list[Tensor], members: int, share: float, seed: int) -> tuple[list[Tensor], Tensor]:
    """Training rows that remain with the clients, and those that members give to the public set."""
    kept, given = list(train), []
    for k in range(members):
        amount = min(round(share * len(train[k])), len(train[k]) - 1)
        public, kept[k] = part_off(train[k], amount, stream(seed, "public", k))
        given.append(public)
    return kept, torch.cat(given)


def fit_scaling(x: Tensor, train: list[Tensor], members: int, scale: Scaling) -> tuple[Tensor, Tensor] | None:
    """Mean and sd of each feature on training rows, (clients, *shape), or (1, *shape) for all members together.

    Only training rows are looked at. A feature that is constant there is only centred; who has none leaves x as it is.
    """
    if scale == "none":
        return None
    groups, shape = [torch.cat(train[:members])] if scale == "all" else train, x.shape[1:]
    nothing = torch.zeros(shape).double(), torch.ones(shape).double()
    found = [_moments(x[mine]) if len(mine) else nothing for mine in groups]
    return torch.stack([mean for mean, _ in found]), torch.stack([sd for _, sd in found])


def standardise(
    x: Tensor,
    train: list[Tensor],
    held: list[Tensor],
    fitted: tuple[Tensor, Tensor] | None,
    common: Tensor | None = None,
) -> Tensor:
    """Features with mean 0 and sd 1 on training rows, by what `fit_scaling` found; rows of nobody by all members'."""
    if fitted is None:
        return x
    x, (mean, sd) = x.clone(), fitted
    groups = [torch.cat(pair) for pair in zip(train, held, strict=True)]
    if len(mean) == 1 and common is not None:
        groups.append(common)
    for k, rows in enumerate(groups):
        which = k if len(mean) > 1 else 0
        x[rows] = ((x[rows].double() - mean[which]) / sd[which]).to(x.dtype)
    return x


def shuffle_labels(y: Tensor, rows: Tensor, seed: int) -> Tensor:
    """Labels in which those of `rows` have changed places at random: as many of each class, and nothing to learn."""
    order = torch.from_numpy(stream(seed, "outlier").permutation(len(rows)))
    y = y.clone()
    y[rows] = y[rows[order]]
    return y


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and sd of each feature in double precision; sd 1 where a feature does not vary, whatever its unit."""
    mean, sd = x.double().mean(0), x.double().std(0, correction=0)
    return mean, torch.where(sd > 1e-6 * mean.abs(), sd, torch.ones_like(sd))  # less is float32's rounding
