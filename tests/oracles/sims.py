"""Small federations, and an experiment that a test drives by hand through either engine."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from predicted import score
from torch import Tensor, nn

from posterity import models
from posterity.core.passes import Training
from posterity.core.random import make_key
from posterity.core.tree import tree_named
from posterity.data.federation import Federation, Part
from posterity.engine.engines import ORACLE, STACKED
from posterity.engine.round import first_state, train_round
from posterity.engine.server import RoundLog
from posterity.engine.simulation import Simulation
from posterity.engine.store import Store

ENGINES = (ORACLE, STACKED)
each_engine = pytest.mark.parametrize(  # that they agree is a law for every method: one by one is for `make test-all`
    "engine", [pytest.param(ORACLE, marks=pytest.mark.everything), STACKED], ids=lambda engine: engine.name
)
DOUBLE = torch.float64
WEIGHT = "head.weight"


class Run:
    """One experiment: its simulation, an engine, the server's state and the clients' records."""

    def __init__(self, method, federation, model, engine=STACKED, initial=None, dtype=DOUBLE, seed=0):
        initial = model.init(seed, dtype) if initial is None else initial
        self.sim = Simulation(method, model, federation.to("cpu", dtype), initial, make_key(seed))
        self.engine, self.store, self.played = engine, Store(federation.clients), 0
        self.state, self.logs = first_state(self.sim), list[RoundLog]()

    def rounds(self, count: int = 1, cohort=None) -> Run:
        clients = torch.arange(self.sim.federation.clients) if cohort is None else torch.tensor(cohort)
        for _ in range(count):
            self.played += 1  # the first round is round 1
            self.state, log = train_round(
                self.sim, self.engine, self.state, self.store, clients, self.played, self.played
            )
            self.logs.append(log)
        return self

    def outputs(self, point: str, part: Part | None = None, epochs: int | None = None, newcomers=False) -> list[Tensor]:
        federation = self.sim.federation
        clients = torch.arange(federation.clients)
        parts = [federation.test if part is None else part]
        return score(self.sim, self.engine, self.state, self.store, clients, self.now, parts, point, epochs, newcomers)[
            0
        ]

    @property
    def now(self) -> int:
        """The round that was last, or will be first: what clients that are scored are told."""
        return max(self.played, 1)

    def scalar(self) -> float:
        """The server's one parameter of `scalar_model`."""
        return float(self.state.params[WEIGHT])

    def personal(self) -> list[float]:
        """Each client's one parameter of `scalar_model`, where records hold the whole network."""
        return self.store.rows[WEIGHT].flatten().tolist()


def federate(train, classes=0, validation=None, test=None) -> Federation:
    """A federation of one (x, y) per client; parts that are not given are empty."""
    x, y, groups, place = [], [], [], 0
    for part in (train, validation, test):
        rows = []
        for some_x, some_y in part if part is not None else [(None, None)] * len(train):
            size = 0 if some_x is None else len(some_x)
            rows.append(torch.arange(place, place + size))
            place += size
            if size:
                x.append(some_x)
                y.append(some_y)
        groups.append(Part.of(rows))
    names = tuple(f"client {k}" for k in range(len(train)))
    task = "classification" if classes else "regression"
    return Federation("toy", task, torch.cat(x), torch.cat(y), classes, *groups, len(train), names)


def scalar_model() -> models.Model:
    """f(x) = θx: one parameter and no bias."""
    net = nn.Sequential(OrderedDict(head=nn.Linear(1, 1, bias=False)))
    return models.wrap(net, "head", 1, "regression", shape=(1,))


def at(value: float, dtype=DOUBLE) -> dict[str, Tensor]:
    """The leaves of `scalar_model` at θ = value."""
    return {WEIGHT: torch.full((1, 1), value, dtype=dtype)}


def quadratics(curvature, centre, copies=None) -> Federation:
    """Client k has f_k(θ) = ½ a_k (θ − c_k)²: the sample x = √a_k, y = c_k x, repeated to give it a weight."""
    copies = [1] * len(curvature) if copies is None else copies
    train = []
    for a, c, n in zip(curvature, centre, copies, strict=True):
        x = torch.full((n, 1), a**0.5, dtype=DOUBLE)
        train.append((x, c * x[:, 0]))
    return federate(train, test=[(torch.ones(1, 1, dtype=DOUBLE), torch.zeros(1, dtype=DOUBLE))] * len(train))


def q2(copies: int = 1) -> Federation:
    """The closed-form test bed: f_1 = ½(θ − 0)², f_2 = ½·4·(θ − 3)², equal weights."""
    return quadratics([1.0, 4.0], [0.0, 3.0], [copies, copies])


def full_batch(steps: int, lr: float = 0.1, **how) -> Training:
    """`steps` steps of gradient descent on all data."""
    return Training(lr=lr, epochs=steps, batch=10_000, **how)


def points(sizes=(23, 9, 17, 1, 12, 5, 2), classes=3, inputs=6, seed=0, held=6, dtype=DOUBLE) -> Federation:
    """Labelled Gaussian clouds, shifted by a vector of each client; `held` samples for validation and for test."""
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(classes, inputs, generator=generator, dtype=dtype)

    def draw(n, k):
        y = torch.randint(0, classes, (n,), generator=generator)
        noise = torch.randn(n, inputs, generator=generator, dtype=dtype)
        return centres[y] + noise + 0.3 * torch.sin(torch.arange(inputs, dtype=dtype) * (k + 1)), y

    parts = [[draw(n, k) for k, n in enumerate(counts)] for counts in (sizes, [held] * len(sizes), [held] * len(sizes))]
    return federate(parts[0], classes, parts[1], parts[2])


def images(sizes=(7, 4, 5), classes=3, seed=0, dtype=DOUBLE) -> Federation:
    generator = torch.Generator().manual_seed(seed)
    train = [
        (
            torch.randn(n, 1, 8, 8, generator=generator, dtype=dtype),
            torch.randint(0, classes, (n,), generator=generator),
        )
        for n in sizes
    ]
    return federate(train, classes)


def mlp(federation: Federation, hidden=(8,), **options) -> models.Model:
    return models.build("mlp", federation.shape, federation.classes, hidden=hidden, **options)


def leaves(tree) -> dict[str, Tensor]:
    return dict(tree_named(tree))


def same_bits(left, right) -> bool:
    """Whether two trees hold the same names and the same bits."""
    a, b = leaves(left), leaves(right)
    return a.keys() == b.keys() and all(a[n].dtype == b[n].dtype and torch.equal(a[n], b[n]) for n in a)


def worst(left, right) -> float:
    """Largest difference between two trees of the same names."""
    a, b = leaves(left), leaves(right)
    assert a.keys() == b.keys()
    return max(float((a[n].double() - b[n].double()).abs().max()) for n in a)
