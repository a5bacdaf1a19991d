"""A case: what the laws look at, a method on a small federation that holds every awkward client.

`history.py` runs it, the laws compare what its runs did.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from posterity import models
from posterity.core.protocol import Method, Params
from posterity.core.random import fold, make_key, normal, permutation, uniform
from posterity.core.tree import Tree, tree_map
from posterity.data.federation import Federation, Part
from posterity.engine.loop import ORACLE
from posterity.engine.round import first_state, train_round
from posterity.engine.simulation import Simulation
from posterity.engine.store import Memory
from posterity.laws.assertions import largest_gap

SIZES = (37, 1, 21, 8, 5, 2, 30, 13, 11, 17, 3, 26, 4)  # one sample; 37, 21, 11: last batches of one
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
        """A simulation of this case; `seed` moves the draws but not the first parameters."""
        initial = self.once("initial", lambda: self.model.init(self.seed, self.dtype))
        root = make_key(self.seed if seed is None else seed)
        return replace(Simulation(method or self.method, self.model, self.federation, initial, root), **changes)

    def once(self, name: str, make: Any) -> Any:
        """`make()` the first time, and what it made from then on."""
        if name not in self.memory:
            self.memory[name] = make()
        return self.memory[name]

    def slack(self) -> float:
        """Difference that rounding alone may make: how far a start moved by 1e-15 ends up, times a hundred."""
        return float(self.once("slack", lambda: min(1e-5, GROWTH * _growth(self))))


def make_case(method: Method, model_name: str = "mlp", dtype: torch.dtype = torch.float64) -> Case:
    """`method` on the small federation with the network of that name."""
    name, shape, options = MODELS.get(model_name, (model_name, (1, 8, 8), {}))
    federation = small_federation(shape).to("cpu", dtype)
    return Case(method, models.build(name, shape, federation.classes, **options), federation, dtype=dtype)


def small_federation(shape: tuple[int, ...], classes: int = 4) -> Federation:
    """13 members of 1 to 37 samples, 2 newcomers and public rows; labels are uneven, features depend on the label."""
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
    """The same federation in which client j is called what `order[j]` was called before."""
    ids = [*order.tolist(), *range(federation.members, federation.clients)]
    train, validation, test = (
        Part.of([part.client(k) for k in ids]) for part in (federation.train, federation.validation, federation.test)
    )
    names = tuple(federation.names[k] for k in ids)
    return replace(federation, train=train, validation=validation, test=test, names=names)


def some_order(count: int, number: int = 0) -> Tensor:
    """A fixed order of `count` things that is not the identity."""
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
    """Gap after the rounds between two loops, one of which started a relative 1e-15 away."""
    key = make_key(5)
    sim = case.sim()
    moved: Params = {
        n: p * (1 + JITTER * normal(fold(key, i), p.shape, p.dtype)) for i, (n, p) in enumerate(sim.initial.items())
    }
    ends = [_end(replace(sim, initial=initial)) for initial in (sim.initial, moved)]
    return max(JITTER, largest_gap(*ends)[0])


def _end(sim: Simulation) -> Tree:
    state, store = first_state(sim), Memory(sim.federation.members)
    for number, cohort in enumerate(COHORTS, 1):
        state, _ = train_round(sim, ORACLE, state, store, torch.tensor(cohort), number, len(COHORTS))
    return tree_map(lambda leaf: leaf, (state, store.rows))
