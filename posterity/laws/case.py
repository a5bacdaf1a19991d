"""A case: what the laws look at, a method on a small federation that holds every awkward client.

Its runs keep every message, record and state, so that several laws can look at one run. Trees of two runs are compared
here, too, and where and by how much they differ is said.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from posterity import models
from posterity.core.messages import Message
from posterity.core.network import bind
from posterity.core.protocol import Here, Method, Personal
from posterity.core.random import fold, make_key, normal, permutation, uniform
from posterity.core.tree import Tree, tree_cat, tree_map, tree_named, tree_rows
from posterity.data.federation import Federation, Part
from posterity.engine.client import Passes, Visit
from posterity.engine.engines import Engine, find_engine
from posterity.engine.round import Question, answer, first_state, train_round
from posterity.engine.server import RoundLog
from posterity.engine.simulation import Simulation
from posterity.engine.store import Store


class Broken(Exception):
    """What a law found: where, and by how much. `law` turns it into a `LawBroken` with the law's name and remedy."""


def gap(left: Tensor, right: Tensor) -> float:
    """Largest difference, as a share of the largest number in `right` (at least 1); infinite if one is not finite."""
    if left.numel() == 0 or (left.dtype == right.dtype and torch.equal(left, right)):
        return 0.0
    same = (left == right) | (left.isnan() & right.isnan())
    difference = torch.where(same, 0.0, (left.double() - right.double()).abs())
    size = torch.where(right.double().isfinite(), right.double().abs(), 0.0).max()
    largest = float((difference / size.clamp(min=1)).max())
    return largest if largest == largest else float("inf")


def shapes(tree: Tree) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    """Names, shapes and kinds of all leaves, in the tree's order."""
    return [(name, tuple(leaf.shape), leaf.dtype) for name, leaf in tree_named(tree)]


def largest_gap(left: Tree, right: Tree) -> tuple[float, str]:
    """The largest gap of two trees and the leaf that has it; leaves are paired by name."""
    ours, theirs = dict(tree_named(left)), dict(tree_named(right))
    if ours.keys() != theirs.keys():
        return float("inf"), f"(names differ: {sorted(ours.keys() ^ theirs.keys())})"
    found = (0.0, "")
    for name, leaf in ours.items():
        if leaf.shape != theirs[name].shape:
            return float("inf"), f"{name} (shapes {tuple(leaf.shape)} and {tuple(theirs[name].shape)})"
        found = max(found, (gap(leaf, theirs[name]), name))
    return found


def assert_same_bits(left: Tree, right: Tree, where: str) -> None:
    """Both trees are equal in every bit (a NaN equals a NaN)."""
    size, leaf = largest_gap(left, right)
    if size > 0:
        raise Broken(f"{where}: {_leaf(leaf)}differs by {size:.1e} where every bit must be equal")


def assert_close(left: Tree, right: Tree, where: str, slack: Callable[[], float], tolerance: float = 1e-9) -> None:
    """Both trees are equal to `tolerance`, or to `slack()` if that is more; `slack` is only asked when it matters."""
    size, leaf = largest_gap(left, right)
    if size > tolerance and size > slack():
        raise Broken(f"{where}: {_leaf(leaf)}differs by {size:.1e}; allowed is {max(tolerance, slack()):.1e}")


def _leaf(name: str) -> str:
    return f"leaf {name!r} " if name else ""


SIZES = (25, 1, 21, 8, 5, 2, 19, 13, 11, 17, 3, 16, 4)  # one sample; 25, 21, 19, 11: last batches of one
NEWCOMERS = (9, 1)  # clients 13 and 14: never in a cohort
ONE_CLASS = 3  # the client that has seen one class only
PUBLIC = 6  # rows that belong to nobody
HELD_OUT = 5  # the client with nothing held out
COHORTS = ((0, 1, 2, 3, 8, 10), (1, 4, 5, 6, 7, 8, 9), (0, 1, 2, 3, 6, 11))  # client 12 is never met
SCORED = (0, 1, 3, 5, 12)  # clients that the scoring laws look at
JITTER, GROWTH = 1e-15, 100.0

MODELS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "mlp": ("mlp", (6,), {"hidden": (8,)}),
    "mlp_dropout": ("mlp", (6,), {"hidden": (8,), "dropout": 0.25}),
    "mlp_bn": ("mlp_bn", (6,), {"hidden": (8,), "eps": 1e-2}),  # 1e-5 amplifies rounding in batches of two
    "cnn": ("cnn", (1, 8, 8), {"feature_dim": 16}),
}


@dataclass(frozen=True, eq=False)
class Case:
    """A method, the network and the federation that it is tried on; runs are made once and kept in `memory`."""

    method: Method
    model: models.Model
    federation: Federation
    seed: int = 0
    dtype: torch.dtype = torch.float64
    memory: dict[str, Any] = field(default_factory=dict, repr=False)

    def sim(self, seed: int | None = None, method: Any = None, **changes: Any) -> Simulation:
        """`seed` moves the draws but not the first parameters."""
        model, initial = self.once("initial", lambda: bind(self.model, self.model.init(self.seed, self.dtype)))
        root = make_key(self.seed if seed is None else seed)
        return replace(Simulation(method or self.method, model, self.federation, initial, root), **changes)

    def once(self, name: str, make: Any) -> Any:
        """`make()` the first time, and what it made from then on."""
        if name not in self.memory:
            self.memory[name] = make()
        return self.memory[name]

    def slack(self) -> float:
        """Difference that rounding alone may make: how far a start moved by 1e-15 ends up, times a hundred."""
        return float(self.once("slack", lambda: min(1e-5, GROWTH * _growth(self))))


def make_case(method: Method, model_name: str = "mlp", dtype: torch.dtype = torch.float64) -> Case:
    name, shape, options = MODELS.get(model_name, (model_name, (1, 8, 8), {}))
    federation = small_federation(shape).to("cpu", dtype)
    return Case(method, models.build(name, shape, federation.classes, **options), federation, dtype=dtype)


def small_federation(shape: tuple[int, ...], classes: int = 4) -> Federation:
    """13 members of 1 to 25 samples, 2 newcomers and public rows; labels are uneven, features depend on the label."""
    sizes = (*SIZES, *NEWCOMERS)
    held = [0 if k == HELD_OUT else 1 + k % 4 for k in range(len(sizes))]
    blocks, place = [], 0
    for counts in (sizes, held, held):
        blocks.append([torch.arange(place + sum(counts[:k]), place + sum(counts[: k + 1])) for k in range(len(sizes))])
        place += sum(counts)
    parts = [Part.of(groups) for groups in blocks]
    y = _labels(parts, place, classes)
    centre = normal(make_key(1), (classes, *shape), torch.float64)
    x = centre[y] + normal(make_key(2), (place, *shape), torch.float64)
    names = tuple(f"client {k}" for k in range(len(sizes)))
    free = torch.arange(PUBLIC) % classes  # the classes of rows that belong to nobody; a server sees none of them
    x = torch.cat((x, centre[free] + normal(make_key(6), (PUBLIC, *shape), torch.float64)))
    train, validation, test = parts
    return Federation("laws", "classification", x, torch.cat((y, free)), classes, train, validation, test, len(SIZES),
                      names, public=torch.arange(place, place + PUBLIC))  # fmt: skip


def renumbered(federation: Federation, order: Tensor) -> Federation:
    """Client j is called what `order[j]` was called before."""
    ids = [*order.tolist(), *range(federation.members, federation.clients)]
    parts = (federation.train, federation.validation, federation.test)
    train, validation, test = (Part.of([part.client(k) for k in ids]) for part in parts)
    names = tuple(federation.names[k] for k in ids)
    return replace(federation, train=train, validation=validation, test=test, names=names)


def some_order(count: int, number: int = 0) -> Tensor:
    return permutation(fold(make_key(3), number), count)


def _labels(parts: list[Part], rows: int, classes: int) -> Tensor:
    """Every client prefers two classes of its own; one client has a single class."""
    rng, y = uniform(make_key(4), (rows,), torch.float64), torch.zeros(rows, dtype=torch.int64)
    for part in parts:
        owner = part.owners()
        rare = (rng[part.rows] * 10 * classes).long() % classes
        liked = (owner + (rng[part.rows] > 0.4).long()) % classes
        y[part.rows] = torch.where(owner == ONE_CLASS, 1, torch.where(rng[part.rows] > 0.8, rare, liked))
    return y


def _growth(case: Case) -> float:
    """Gap after the rounds between two runs, one of which started a relative 1e-15 away."""
    sim, key = case.sim(), make_key(5)
    leaves = enumerate(sim.initial.items())
    moved = {n: p * (1 + JITTER * normal(fold(key, i), p.shape, p.dtype)) for i, (n, p) in leaves}
    one, two = history(case, "stacked").rounds[-1], run(replace(sim, initial=moved), "stacked").rounds[-1]
    return max(JITTER, largest_gap((one.state, one.rows), (two.state, two.rows))[0])


Change = Callable[[Tensor, Message, Personal], tuple[Message, Personal]] | None


@dataclass(frozen=True)
class RoundHistory:
    """Messages and records are in the order of the clients."""

    clients: Tensor
    sent: Message
    records: Tree
    state: Tree
    known: Tensor
    rows: Tree  # of all members
    log: RoundLog


@dataclass(frozen=True)
class History:
    first: Tree
    rounds: tuple[RoundHistory, ...]

    @property
    def state(self) -> Tree:
        return self.rounds[-1].state

    def at(self, number: int) -> RoundHistory:
        """The round of that number; the first is round 1."""
        return self.rounds[number - 1]

    def store(self, after: int | None = None) -> Store:
        """The records as they were after a round (before the first: 0), free to be written to."""
        end = self.rounds[-1] if after is None else self.at(max(after, 1))
        store = Store(len(end.known))
        if after is None or after >= 1:
            store.known, store.rows = end.known.clone(), copied(end.rows)
        return store

    def before(self, number: int) -> tuple[Tree, Store]:
        return (self.first if number == 1 else self.at(number - 1).state), self.store(number - 1)


def copied(tree: Tree) -> Tree:
    return tree_map(lambda leaf: leaf.clone(), tree)


@dataclass(frozen=True)
class Spy:
    """An engine whose visits are noted in `seen` after `change` had its way with them."""

    engine: Engine
    seen: list[tuple[Tensor, Message, Personal]]
    change: Change = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)  # everything else is the engine's

    def visit(self, sim: Simulation, passes: Passes, here: Here) -> Visit:
        done = self.engine.visit(sim, passes, here)
        sent, records = done.message, done.record
        sent, records = self.change(here.client, sent, records) if self.change else (sent, records)
        self.seen.append((here.client, sent, records))
        return Visit(sent, records, done.loss)


def one_round(
    sim: Simulation, engine: str, state: Tree, store: Store, cohort: Sequence[int], number: int, change: Change = None
) -> RoundHistory:
    """One round; `store` is written to, as the engine does."""
    seen: list[tuple[Tensor, Message, Personal]] = []
    ids = torch.tensor(cohort, dtype=torch.int64)
    state, log = train_round(sim, Spy(find_engine(engine), seen, change), state, store, ids, number, len(COHORTS))
    clients = torch.cat([c for c, _, _ in seen])
    order = torch.argsort(clients)
    sent, records = (tree_rows(tree_cat([v[i] for v in seen]), order) for i in (1, 2))
    return RoundHistory(clients[order], sent, records, state, store.known.clone(), copied(store.rows), log)


def run(sim: Simulation, engine: str, cohorts: Sequence[Sequence[int]] = COHORTS) -> History:
    state = first = first_state(sim)
    store, rounds = Store(sim.federation.members), []
    for number, cohort in enumerate(cohorts, 1):
        rounds.append(one_round(sim, engine, state, store, cohort, number))
        state = rounds[-1].state
    return History(first, tuple(rounds))


def history(case: Case, engine: str) -> History:
    made: History = case.once(f"trace {engine}", lambda: run(case.sim(), engine))
    return made


def predictions(
    sim: Simulation, engine: str, state: Tree, store: Store, clients: Iterable[int], point: str, newcomers: bool = False
) -> list[Tensor]:
    """Outputs on everything held out, one tensor per client."""
    ids, parts = torch.tensor(list(clients)), [sim.federation.test, sim.federation.validation]
    asked = Question(ids, parts, point, newcomers=newcomers)
    found = answer(sim, find_engine(engine), state, store, asked, len(COHORTS))
    return [torch.cat(pair) for pair in zip(*found, strict=True)]


def outputs(case: Case, engine: str, point: str, newcomers: bool = False) -> list[Tensor]:
    """Outputs for every scored client (or newcomer) after the last round, made once."""
    clients = range(case.federation.members, case.federation.clients) if newcomers else SCORED

    def make() -> list[Tensor]:
        end = history(case, "stacked")
        return predictions(case.sim(), engine, end.state, end.store(), clients, point, newcomers)

    made: list[Tensor] = case.once(f"outputs {engine} {point} {newcomers}", make)
    return made
