"""A law about what is not sent: the statistics of a class of too few samples, where a method must declare them.

It is looked at from outside. A client trains; then the samples of a class that is rare there are moved, or get another
label, and everything that is *gathered* is gathered again with the parameters as they were. What follows the samples of
one class, in the row of this class alone, is a statistic of that class; nothing of it may be seen in the message of a
client that withholds rare classes (`core/wrapper.py`).

It cannot see statistics that are gathered while a pass learns, since parameters move there as well, nor those that
`kept` and the message hold in no row of their class; and leaves of the network are no statistics of a class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posterity.core.messages import Message
from posterity.core.protocol import Carry, Here, Personal
from posterity.core.tree import Tree, tree_named, tree_rows
from posterity.core.wrapper import Withholding
from posterity.data.federation import Federation
from posterity.engine import client, keys
from posterity.engine.client import Site
from posterity.laws.case import COHORTS, Broken, Case, gap, history
from posterity.laws.law import law

TOLERANCE = 1e-9
MOVED = 1.0  # added to every number of a sample


@dataclass(frozen=True)
class RareClass:
    client: int
    label: int
    common: int
    rows: Tensor  # its samples in the pool

    @property
    def least(self) -> int:
        """Samples that a class must have to be told: one more than it has."""
        return len(self.rows) + 1


def find_rare(federation: Federation, clients: tuple[int, ...]) -> RareClass:
    """The smallest class of the first of some clients that has two classes or more."""
    for number in clients:
        rows = federation.train.client(number)
        counts = federation.y[rows].bincount(minlength=federation.classes)
        label = int(torch.where(counts > 0, counts, len(rows) + 1).argmin())
        if counts[label] < counts.max():
            return RareClass(number, label, int(counts.argmax()), rows[federation.y[rows] == label])
    raise AssertionError("every client of the small federation has one class, or as many samples of each")


@law(
    "withholding",
    "With min_count, nothing that a client says follows the samples of a class that is too small: what is gathered by "
    "class, and the parts of the message that are made of it, are declared in class_statistics.",
    "sums, counts or rows by class in `kept` that class_statistics does not name. Declare them with the parts that are "
    'made of them, class_statistics = {"features": ("prototypes",)}, and gather them as `sum_classes` does: then '
    "classes of too few samples are taken out before `message`.",
)
def law_withholding(case: Case) -> None:
    number = len(COHORTS)
    rare = find_rare(case.federation, COHORTS[-1])
    sim = case.sim(method=Withholding(case.method, rare.least))
    state, store = history(case, "stacked").before(number)
    record = tree_rows(store.rows, rare.client) if bool(store.known[rare.client]) else None
    offer = sim.method.offer(state, torch.tensor(rare.client))
    _look(_Visited.of(sim.site(rare.client), offer, record, number, rare))


@dataclass(frozen=True)
class _Visited:
    """One client's visit, and what it gathers when samples of the rare class are moved or get another label."""

    site: Site
    here: Here
    carry: Carry
    others: Mapping[str, Mapping[str, Tree]]  # `kept` by what was done to the samples
    rare: RareClass

    @staticmethod
    def of(site: Site, offer: tuple[Tree, Tree], record: Personal | None, round: int, rare: RareClass) -> _Visited:
        here = site.receive(*offer, record, round)
        carries = _walk(site, here)
        x, y = site.x.clone(), site.y.clone()
        x[rare.rows] += MOVED
        y[rare.rows] = rare.common
        changed = {"moved": replace(site, x=x), "relabelled": replace(site, y=y)}
        others = {name: _walk(other, here, carries)[-1].kept for name, other in changed.items()}
        return _Visited(site, here, carries[-1], others, rare)

    def message(self, kept: Mapping[str, Tree] | None = None) -> Message:
        """What the client says, with something else in place of some of what it gathered."""
        carry = replace(self.carry, kept={**self.carry.kept, **(kept or {})})
        return client.send(self.site, client.at(self.here, keys.MESSAGE), carry).message

    def differs(self, kept: Mapping[str, Tree]) -> dict[str, str]:
        one, two = self.message(), self.message(kept)
        return {name: leaf for name, part in one.items() if (leaf := _other_leaf(part, two[name]))}


def _walk(site: Site, here: Here, held: Sequence[Carry] = ()) -> list[Carry]:
    """A client's carry before each pass and after the last; with `held`, the parameters are as they were there."""
    carries = [client.start(site, client.at(here, keys.START))]
    for number, each in enumerate(site.passes()):
        then = replace(held[number], kept=carries[-1].kept) if held else carries[-1]
        carries.append(client.work(site, (each,), then, client.at(here, number), keys.TRAIN))
    return carries


def _look(visited: _Visited) -> None:
    rare, declared, classes = visited.rare, visited.site.method.class_statistics, visited.site.model.classes
    who = f"client {rare.client}, class {rare.label} of {len(rare.rows)} samples with min_count = {rare.least}"
    for name in visited.carry.kept:
        mine = visited.carry.kept[name]
        found = {how: visited.differs({name: kept[name]}) for how, kept in visited.others.items()}
        if name in declared:
            for part, leaf in found["moved"].items():
                raise Broken(f"{who}: {name!r} is declared, and yet {part!r} ({leaf!r}) follows its samples")
            for part in (each for each in found["relabelled"] if each not in declared[name]):
                raise Broken(f"{who}: {part!r} is made of {name!r}, but class_statistics lists {declared[name]} for it")
        elif row := _class_row(mine, [kept[name] for kept in visited.others.values()], rare, classes):
            for part, leaf in (each for parts in found.values() for each in parts.items()):
                raise Broken(f"{who}: {part!r} ({leaf!r}) follows its samples; it is made of {name!r}, which is by "
                             f"class ({row!r}) and not declared")  # fmt: skip
    says = [visited.message(kept) for kept in visited.others.values()]
    for part, mine in visited.message().items():
        if leaf := _class_row(mine, [each[part] for each in says], rare, classes):
            raise Broken(f"{who}: the row of this class in {part!r} ({leaf!r}), and no other, follows its samples")


def _class_row(mine: Tree, others: list[Tree], rare: RareClass, classes: int) -> str:
    """A leaf with a row for each class, of which only the rare one's follows its samples; empty: there is none."""
    moved, relabelled = (dict(tree_named(other)) for other in others)
    for name, leaf in tree_named(mine):
        pairs = [each.get(name) for each in (moved, relabelled)]
        if any(other is None or other.shape != leaf.shape for other in pairs):
            continue
        for axis in (a for a, size in enumerate(leaf.shape) if size == classes):
            one, two = (_changed_rows(leaf, other, axis) for other in pairs if other is not None)
            if rare.label in one | two and one <= {rare.label} and two <= {rare.label, rare.common}:
                return name or "itself"
    return ""


def _changed_rows(one: Tensor, two: Tensor, axis: int) -> set[int]:
    pairs = zip(one.unbind(axis), two.unbind(axis), strict=True)
    return {row for row, (left, right) in enumerate(pairs) if gap(left, right) > TOLERANCE}


def _other_leaf(one: Tree, two: Tree) -> str:
    theirs = dict(tree_named(two))
    for name, leaf in tree_named(one):
        if name not in theirs or theirs[name].shape != leaf.shape or gap(leaf, theirs[name]) > TOLERANCE:
            return name or "itself"
    return ""
