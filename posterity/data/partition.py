"""Laws that divide labelled rows among clients.

Every law is a pure function of labels, number of clients and a numpy generator, and returns the rows of each client;
no row is given out twice. Inside, a law only decides *how many* samples of each class a client gets; `_deal` then
picks which ones. No law knows the clients' numbers: before anything is drawn, all have the same distribution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from posterity.data.pool import DataError

Counts = NDArray[np.int64]


def dirichlet(
    y: Tensor, clients: int, alpha: float, rng: Generator, minimum: int = 10, tries: int = 100
) -> list[Tensor]:
    """Each class is divided by its own draw from Dirichlet(alpha, …, alpha); small alpha means few classes a client.

    Draws that leave a client with fewer than `minimum` rows are repeated, at most `tries` times.
    """
    labels, sizes = _classes(y, clients)
    _check_alpha(alpha)

    def draw() -> Counts:
        shares = rng.dirichlet(np.full(clients, alpha), len(sizes))  # (classes, clients)
        return np.stack([_cut(p, n, rng) for p, n in zip(shares, sizes, strict=True)], axis=1)

    return _deal(labels, _resample(draw, len(y), clients, minimum, tries), rng)


def capped(y: Tensor, clients: int, alpha: float, rng: Generator, minimum: int = 10, tries: int = 100) -> list[Tensor]:
    """Per-class Dirichlet shares, in which a client that already holds its N/K rows takes no part (PFNM, NIID-Bench).

    Classes come in the order of their numbers. Shares that are set to 0 and renormalised are a draw from the Dirichlet
    of the others, which is what is drawn here.
    """
    labels, sizes = _classes(y, clients)
    _check_alpha(alpha)

    def draw() -> Counts:
        counts = np.zeros((clients, len(sizes)), dtype=np.int64)
        for c, n in enumerate(sizes):
            open_to = np.flatnonzero(counts.sum(1) * clients < len(y))  # never empty: a row is left for somebody
            counts[open_to, c] = _cut(rng.dirichlet(np.full(len(open_to), alpha)), n, rng)
        return counts

    return _deal(labels, _resample(draw, len(y), clients, minimum, tries), rng)


def balanced_dirichlet(
    y: Tensor, clients: int, alpha: float, rng: Generator, minimum: int = 10, tries: int = 100
) -> list[Tensor]:
    """Per-class Dirichlet shares, the largest to the client that is smallest so far: nearly equal sizes (FedNP)."""
    labels, sizes = _classes(y, clients)
    _check_alpha(alpha)

    def draw() -> Counts:
        counts = np.zeros((clients, len(sizes)), dtype=np.int64)
        for c, n in enumerate(sizes):
            smallest_first = np.lexsort((rng.random(clients), counts.sum(1)))  # equals in a random order
            share = np.sort(rng.dirichlet(np.full(clients, alpha)))[::-1]
            counts[smallest_first, c] = _cut(share, n, rng)
        return counts

    return _deal(labels, _resample(draw, len(y), clients, minimum, tries), rng)


def pathological(y: Tensor, clients: int, kinds: int, rng: Generator, samples: int | None = None) -> list[Tensor]:
    """Each client gets `kinds` classes and `samples` rows of each; without `samples`, as many as fit for everybody."""
    labels, sizes = _classes(y, clients)
    chosen = _hand_out(clients, kinds, len(sizes), rng)  # (clients, classes)
    wanted = chosen.sum(0)
    fits = int((sizes[wanted > 0] // wanted[wanted > 0]).min())
    _check(
        1 <= (fits if samples is None else samples) <= fits,
        f"{clients} clients with {kinds} classes and {samples or 'some'} rows of each",
        f"at most {fits} rows of a class per client, since the rarest class has {sizes.min()}",
        "lower the samples or classes per client, or the number of clients",
    )
    return _deal(labels, chosen * (samples or fits), rng)


def major(
    y: Tensor, clients: int, rng: Generator, kinds: int = 2, share: float = 0.2, literal: bool = False
) -> list[Tensor]:
    """Equal clients with `kinds` major classes each (FedBPS).

    By default `share` of a client is uniform over all classes and the rest is uniform over its major classes, the
    convention the paper cites. `literal` is what it prints: the major classes make up `share` of a client.
    """
    labels, sizes = _classes(y, clients)
    _check(0 <= share <= 1, f"share {share}", "a number from 0 to 1", "the paper has 0.2")
    chosen = _hand_out(clients, kinds, len(sizes), rng)
    rest = len(sizes) - kinds
    if literal:
        _check(rest > 0 or share == 1, f"{kinds} major classes of {len(sizes)}", "a minor class", "lower the number")
        law = np.where(chosen, share / kinds, (1 - share) / max(rest, 1))
    else:
        law = share / len(sizes) + chosen * (1 - share) / kinds  # (clients, classes), rows sum to 1
    n = int((sizes / law.sum(0)).min())
    order = np.stack([rng.permutation(len(sizes)) for _ in range(clients)])
    while n > 0 and (_rounded(law, n, order).sum(0) > sizes).any():
        n -= 1  # rounding up may ask for a row too many of some class
    _check(n > 0, f"{clients} clients and {len(y)} rows", "a row for each client", "use fewer clients")
    return _deal(labels, _rounded(law, n, order), rng)


def quantity(
    y: Tensor,
    clients: int,
    alpha: float,
    rng: Generator,
    law: Literal["dirichlet", "power"] = "dirichlet",
    minimum: int = 10,
    tries: int = 100,
) -> list[Tensor]:
    """Clients differ in size only: sizes from Dirichlet(alpha), or proportional to rank^-alpha; labels are IID."""
    _check_clients(y, clients)
    _check_alpha(alpha)

    def draw() -> Counts:
        if law == "dirichlet":
            return _cut(rng.dirichlet(np.full(clients, alpha)), len(y), rng)[:, None]
        weight = rng.permutation(np.arange(1, clients + 1) ** -float(alpha))
        return _cut(weight / weight.sum(), len(y), rng)[:, None]

    return _deal(np.zeros(len(y), dtype=np.int64), _resample(draw, len(y), clients, minimum, tries), rng)


def iid(y: Tensor, clients: int, rng: Generator) -> list[Tensor]:
    """Equal random parts."""
    _check_clients(y, clients)
    sizes = _cut(np.full(clients, 1 / clients), len(y), rng)
    return _deal(np.zeros(len(y), dtype=np.int64), sizes[:, None], rng)


def natural(owner: Tensor, clients: int | None = None) -> list[Tensor]:
    """The rows of each owner; owners -1 belong to nobody."""
    count = int(owner.max()) + 1 if clients is None else clients
    return [torch.nonzero(owner == k).flatten() for k in range(count)]


def _check(holds: bool, given: str, expected: str, remedy: str) -> None:
    if not holds:
        raise DataError(f"partition: {given}; expected {expected}; {remedy}")


def _check_alpha(alpha: float) -> None:
    _check(0 < alpha < np.inf, f"alpha is {alpha}", "a number above 0", "try 0.3")


def _check_clients(y: Tensor, clients: int) -> None:
    given = f"{clients} clients and {len(y)} rows"
    _check(1 <= clients <= len(y), given, "at least a client, and a row for each", "change the number of clients")


def _classes(y: Tensor, clients: int) -> tuple[NDArray[np.int64], Counts]:
    """Labels renumbered over the classes present, and the size of each class."""
    _check(
        not y.is_floating_point(),
        "targets are numbers, not classes",
        "integer labels",
        "use the partition iid or natural for regression",
    )
    _check_clients(y, clients)
    _, labels = np.unique(y.numpy(), return_inverse=True)
    return labels.astype(np.int64), np.bincount(labels).astype(np.int64)


def _cut(share: NDArray[np.float64], n: int, rng: Generator) -> Counts:
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


def _rounded(law: NDArray[np.float64], n: int, order: Counts) -> Counts:
    """n·law per row by largest remainders; equal remainders are settled in the given order of classes."""
    exact = law * n
    counts = np.floor(exact + 1e-9).astype(np.int64)
    for k, row in enumerate(exact - counts):
        first = order[k][np.argsort(-row[order[k]].round(9), kind="stable")]
        counts[k, first[: n - counts[k].sum()]] += 1
    return counts


def _hand_out(clients: int, kinds: int, classes: int, rng: Generator) -> NDArray[np.bool_]:
    """Give each client `kinds` classes so that all classes are used equally often, give or take one."""
    _check(1 <= kinds <= classes, f"{kinds} classes per client", f"1 to {classes}", "change the number")
    chosen = np.zeros((clients, classes), dtype=bool)
    for k in range(clients):
        tie = rng.random(classes)
        chosen[k, np.lexsort((tie, chosen.sum(0)))[:kinds]] = True
    return chosen


def _resample(draw: Callable[[], Counts], rows: int, clients: int, minimum: int, tries: int) -> Counts:
    """The first draw that gives every client at least `minimum` rows."""
    _check(minimum >= 1, f"minimum {minimum}", "at least 1 row a client", "raise it")
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


def _deal(labels: NDArray[np.int64], counts: Counts, rng: Generator) -> list[Tensor]:
    """Pick rows at random so that client k gets counts[k, c] of class c."""
    own: list[list[NDArray[Any]]] = [[] for _ in counts]
    for c in range(counts.shape[1]):
        rows = rng.permutation(np.flatnonzero(labels == c))
        for mine, piece in zip(own, np.split(rows, np.cumsum(counts[:, c]))[:-1], strict=True):
            mine.append(piece)
    return [torch.from_numpy(np.sort(np.concatenate(mine))) for mine in own]
