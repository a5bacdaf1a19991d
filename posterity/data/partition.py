"""Partitions: rules that divide labelled rows among clients, each declared once, in `RULES` at the end of this file.

A rule is a pure function of labels, number of clients, a numpy generator and its own numbers, and returns the rows of
each client; no row is given out twice. Inside, a rule only decides *how many* samples of each class a client gets;
which ones is drawn afterwards. No rule knows the clients' numbers: before anything is drawn, all have the same
distribution. `data/assemble.py` applies them. A rule of your own is `package.module:function` on the command line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from torch import Tensor

from posterity.data.pool import DataError
from posterity.settings.hyperparameters import MISTAKES, Declared, declared, nearest, split_name
from posterity.settings.plugins import find_function

Counts = NDArray[np.int64]


GIVEN = ("y", "clients", "rng")  # what every rule is called with, besides its numbers
TRIES = 100  # draws, where a client must have a minimum of rows
LENIENT = {"minimum": 1, "samples": None}  # for a held-out part, which is smaller: one row a client, what fits


@dataclass(frozen=True)
class Rule:
    """The declaration of a partition: how it is typed, what divides the rows, with which numbers, and the version."""

    name: str  # as typed; `package.module:function` for one of your own
    function: Callable[..., Any] | None  # of y, clients, rng and the numbers; None for the data's own clients
    parameters: tuple[str, ...] = ()  # what the numbers are called in the function, and in a run's folder
    version: int = 1  # which rows a rule gives out for a seed may change with the version, and only with it

    @property
    def declared(self) -> dict[str, Declared]:
        """Types and defaults of the numbers."""
        known = declared(self.function) if self.function else {}
        return {name: known[name] for name in self.parameters}

    @property
    def usage(self) -> str:
        """How it is typed; numbers in brackets may be left out."""
        forms = (f":{n.upper()}" if d.required else f"[:{n.upper()}]" for n, d in self.declared.items())
        return self.name + "".join(forms)

    @property
    def defaults(self) -> dict[str, Any]:
        """The values of numbers that may be left out; 0 for the others."""
        return {name: 0 if each.required else each.default for name, each in self.declared.items()}

    def read(self, text: str, numbers: list[str]) -> Partition:
        """The partition that was typed as `text`."""
        known = self.declared
        if not sum(each.required for each in known.values()) <= len(numbers) <= len(known):
            given = f"partition {text!r}: {len(numbers)} numbers after the name"
            raise DataError(f"{given}; expected the form {self.usage}")
        try:
            typed = {
                name: each.read_given(number) for (name, each), number in zip(known.items(), numbers, strict=False)
            }
        except MISTAKES as error:
            raise DataError(f"partition {text!r}: {error}; expected the form {self.usage} with numbers in it") from None
        return Partition(self.name, tuple((self.defaults | typed).items()))


@dataclass(frozen=True)
class Partition:
    """A rule by its name, and its numbers."""

    name: str
    numbers: tuple[tuple[str, Any], ...] = ()  # by the names of the rule's parameters

    @property
    def version(self) -> int:
        return find_rule(self.name).version

    def facts(self) -> dict[str, Any]:
        """The rule, its version and the numbers that it was given, for a run's folder."""
        defaults = find_rule(self.name).defaults
        return {"rule": self.name, "version": self.version, **{n: v for n, v in self.numbers if v != defaults[n]}}

    def divide(self, y: Tensor, clients: int, rng: Generator) -> list[Tensor]:
        """Rows of each client."""
        function = find_rule(self.name).function
        if function is None:
            raise DataError("partition 'natural': natural clients need an owner column; expected one, or a law")
        owned = function(y=y, clients=clients, rng=rng, **dict(self.numbers))
        return owned if self.name in RULES else check_rows(owned, self.name, len(y), clients)

    def lenient(self) -> Partition:
        """The same rule for a held-out part."""
        return replace(self, numbers=tuple((n, LENIENT.get(n, v)) for n, v in self.numbers))


def parse_partition(text: str) -> Partition:
    """Read a partition as written on the command line: `dirichlet:0.3`, `pathological:3:100`, `my_module:rule:2`, …"""
    name, numbers = split_name(text)
    if name not in RULES and numbers and numbers[0].isidentifier():
        name, numbers = f"{name}:{numbers[0]}", numbers[1:]
    return find_rule(name).read(text, numbers)


def find_rule(name: str) -> Rule:
    """The rule called `name`, or one of your own."""
    if name in RULES:
        return RULES[name]
    if ":" not in name:
        raise DataError(f"partition {name!r} is unknown; {nearest(name, RULES)}")
    try:
        function = find_function(name, "partition")
    except ValueError as error:
        raise DataError(f"partition {name!r}: {error}; by name, {nearest(name.split(':')[0], RULES)}") from None
    known = declared(function)
    if missing := [n for n in GIVEN if n not in known]:
        wanted = f"{name.split(':')[1]}({', '.join(GIVEN)}, …its numbers…) that returns the rows of each client"
        raise DataError(f"partition {name!r}: the function has no parameter {', '.join(missing)}; expected {wanted}")
    own = sorted((n for n in known if n not in GIVEN), key=lambda n: not known[n].required)
    return Rule(name, function, tuple(own), getattr(function, "version", 1))


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
    remedy = "use the partition iid or natural for regression"
    check(not y.is_floating_point(), "targets are numbers, not classes", "integer labels", remedy)
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


def resample(draw: Callable[[], Counts], rows: int, clients: int, minimum: int) -> Counts:
    """The first draw that gives every client at least `minimum` rows."""
    check(minimum >= 1, f"minimum {minimum}", "at least 1 row a client", "raise it")
    best = 0
    for _ in range(TRIES if rows >= clients * minimum else 0):
        counts = draw()
        if (smallest := int(counts.sum(1).min())) >= minimum:
            return counts
        best = max(best, smallest)
    given = f"partition: {rows} rows over {clients} clients; expected at least {minimum} rows a client"
    remedy = "use fewer clients, a larger alpha, or a lower minimum (for example dirichlet:0.3:1)"
    raise DataError(f"{given}, but the best of {TRIES} draws left a client with {best}; {remedy}")


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
    wanted = f"a list with the rows of each of the {clients} clients, whole numbers from 0 to {rows - 1}"
    if not isinstance(owned, list | tuple) or len(owned) != clients:
        given = f"returned a {type(owned).__name__}, and not one entry a client"
        raise DataError(f"partition {name!r} {given}; expected {wanted}")
    found = [np.sort(np.asarray(mine).flatten()) for mine in owned]
    together = np.concatenate(found)
    count = Counter(together.tolist())
    if odd := [row for row, times in count.items() if times > 1 or row not in range(rows)]:
        raise DataError(f"partition {name!r} gives out row {odd[0]}; expected {wanted}, each at most once")
    return [torch.from_numpy(mine.astype(np.int64)) for mine in found]


def dirichlet(y: Tensor, clients: int, alpha: float, rng: Generator, minimum: int = 10) -> list[Tensor]:
    """Each class is divided by its own draw from Dirichlet(alpha, …, alpha); small alpha means few classes a client.

    Draws that leave a client with fewer than `minimum` rows are repeated, at most 100 times.
    """
    labels, sizes = count_classes(y, clients)
    check_alpha(alpha)

    def draw() -> Counts:
        shares = rng.dirichlet(np.full(clients, alpha), len(sizes))  # (classes, clients)
        return np.stack([cut(p, n, rng) for p, n in zip(shares, sizes, strict=True)], axis=1)

    return deal(labels, resample(draw, len(y), clients, minimum), rng)


def capped(y: Tensor, clients: int, alpha: float, rng: Generator, minimum: int = 10) -> list[Tensor]:
    """Per-class Dirichlet shares, in which a client that already holds its N/K rows takes no part (PFNM, NIID-Bench).

    Classes come in the order of their numbers. Shares that are set to 0 and renormalised are a draw from the Dirichlet
    of the others, which is what is drawn here.
    """
    labels, sizes = count_classes(y, clients)
    check_alpha(alpha)

    def draw() -> Counts:
        counts = np.zeros((clients, len(sizes)), dtype=np.int64)
        for c, n in enumerate(sizes):
            open_to = np.flatnonzero(counts.sum(1) * clients < len(y))  # never empty: a row is left for somebody
            counts[open_to, c] = cut(rng.dirichlet(np.full(len(open_to), alpha)), n, rng)
        return counts

    return deal(labels, resample(draw, len(y), clients, minimum), rng)


def balanced_dirichlet(y: Tensor, clients: int, alpha: float, rng: Generator, minimum: int = 10) -> list[Tensor]:
    """Per-class Dirichlet shares, the largest to the client that is smallest so far: nearly equal sizes (FedNP)."""
    labels, sizes = count_classes(y, clients)
    check_alpha(alpha)

    def draw() -> Counts:
        counts = np.zeros((clients, len(sizes)), dtype=np.int64)
        for c, n in enumerate(sizes):
            smallest_first = np.lexsort((rng.random(clients), counts.sum(1)))  # equals in a random order
            share = np.sort(rng.dirichlet(np.full(clients, alpha)))[::-1]
            counts[smallest_first, c] = cut(share, n, rng)
        return counts

    return deal(labels, resample(draw, len(y), clients, minimum), rng)


def pathological(y: Tensor, clients: int, kinds: int, rng: Generator, samples: int | None = None) -> list[Tensor]:
    """Each client gets `kinds` classes and `samples` rows of each; without `samples`, as many as fit for everybody."""
    labels, sizes = count_classes(y, clients)
    chosen = choose_classes(clients, kinds, len(sizes), rng)  # (clients, classes)
    wanted = chosen.sum(0)
    fits = int((sizes[wanted > 0] // wanted[wanted > 0]).min())
    given = f"{clients} clients with {kinds} classes and {samples or 'some'} rows of each"
    wanted = f"at most {fits} rows of a class per client, since the rarest class has {sizes.min()}"
    check(1 <= (fits if samples is None else samples) <= fits, given, wanted, "lower one of these numbers")
    return deal(labels, chosen * (samples or fits), rng)


def major(y: Tensor, clients: int, rng: Generator, kinds: int, share: float, literal: bool = False) -> list[Tensor]:
    """Equal clients with `kinds` major classes each (FedBPS).

    By default `share` of a client is uniform over all classes and the rest is uniform over its major classes, the
    convention the paper cites. `literal` is what it prints: the major classes make up `share` of a client.
    """
    labels, sizes = count_classes(y, clients)
    check(0 <= share <= 1, f"share {share}", "a number from 0 to 1", "the paper has 0.2")
    chosen = choose_classes(clients, kinds, len(sizes), rng)
    rest = len(sizes) - kinds
    if literal:
        check(rest > 0 or share == 1, f"{kinds} major classes of {len(sizes)}", "a minor class", "lower the number")
        law = np.where(chosen, share / kinds, (1 - share) / max(rest, 1))
    else:
        law = share / len(sizes) + chosen * (1 - share) / kinds  # (clients, classes), rows sum to 1
    n = int((sizes / law.sum(0)).min())
    order = np.stack([rng.permutation(len(sizes)) for _ in range(clients)])
    while n > 0 and (round_shares(law, n, order).sum(0) > sizes).any():
        n -= 1  # rounding up may ask for a row too many of some class
    check(n > 0, f"{clients} clients and {len(y)} rows", "a row for each client", "use fewer clients")
    return deal(labels, round_shares(law, n, order), rng)


def quantity(y: Tensor, clients: int, alpha: float, rng: Generator, minimum: int = 10) -> list[Tensor]:
    """Clients differ in size only: sizes from Dirichlet(alpha); labels are IID."""
    check_clients(y, clients)
    check_alpha(alpha)

    def draw() -> Counts:
        return cut(rng.dirichlet(np.full(clients, alpha)), len(y), rng)[:, None]

    return deal(np.zeros(len(y), dtype=np.int64), resample(draw, len(y), clients, minimum), rng)


def iid(y: Tensor, clients: int, rng: Generator) -> list[Tensor]:
    """Equal random parts."""
    check_clients(y, clients)
    sizes = cut(np.full(clients, 1 / clients), len(y), rng)
    return deal(np.zeros(len(y), dtype=np.int64), sizes[:, None], rng)


def natural(owner: Tensor, clients: int) -> list[Tensor]:
    """The rows of each owner; owners -1 belong to nobody."""
    return [torch.nonzero(owner == k).flatten() for k in range(clients)]


RULES = {
    rule.name: rule
    for rule in (
        # Version 2: shares become whole numbers from a random start, not from the first client on.
        Rule("dirichlet", dirichlet, ("alpha", "minimum"), 2),
        Rule("balanced", balanced_dirichlet, ("alpha", "minimum"), 2),
        Rule("capped", capped, ("alpha", "minimum")),
        Rule("pathological", pathological, ("kinds", "samples")),
        Rule("major", major, ("kinds", "share")),
        Rule("major-literal", partial(major, literal=True), ("kinds", "share")),
        Rule("quantity", quantity, ("alpha", "minimum"), 2),
        Rule("iid", iid, (), 2),
        Rule("natural", None),
    )
}
