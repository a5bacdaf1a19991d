"""A simulation: a federation of clients in one process, and everything about it that does not change.

`round.py` runs it, `client.py` says what happens to one client, `engines.py` names the ways to run many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import vmap

from posterity.core.network import Network
from posterity.core.protocol import Here, Method, Params, check_round
from posterity.core.random import fold
from posterity.core.tree import Tree, tree_map, tree_rows
from posterity.data.federation import Federation, Part
from posterity.engine import client
from posterity.engine.augment import Augmentation, augmented
from posterity.engine.batches import BuildBatch, build_batch
from posterity.engine.cache import TraceCache, play
from posterity.engine.client import Passes, Site
from posterity.engine.keys import CLIENT, SERVER, client_keys, fold_key
from posterity.engine.processes import Processes

Work = Literal["training", "scoring"]


@dataclass(frozen=True)
class Simulation:
    """One experiment's fixed things: everything but State and the personal records."""

    method: Method
    model: Network
    federation: Federation
    initial: Params
    root: Tensor  # (2,) root key
    memory: int = 2**30  # bytes that a block of stacked clients may take
    sample: int = 0  # bytes that one sample leaves behind for the backward pass; 0 = guess (see `blocks`)
    processes: Processes = Processes()  # the processes that share the work
    traces: TraceCache = field(default_factory=TraceCache, repr=False, compare=False)
    build: BuildBatch = build_batch  # makes every batch; a law puts other samples into the padding
    limit: dict[Work, int] = field(default_factory=dict, repr=False, compare=False)  # clients of work out of memory
    augment: Augmentation | None = None  # what happens to pictures that clients train on
    min_count: int = 1  # rows of a part that a client must have to be scored on it

    def __post_init__(self) -> None:
        self.traces.captures.allowed = self.memory // 2  # the other half is for the clients that are stacked

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.initial.values())).dtype

    def passes(self, epochs: int | None = None) -> Passes:
        """The passes of a round, or of `adapt(epochs)`: made once, so that their recordings are found again."""
        make = self.method.passes if epochs is None else partial(self.method.adapt, epochs)
        key = ("passes", epochs, self.augment)
        made: Passes = self.traces.once(self.method, key, lambda: augmented(make(), self.augment))
        return made

    def prepare(self) -> Passes:
        """The work before any prediction, made once too."""
        made: Passes = self.traces.once(self.method, ("passes", "prepare"), self.method.prepare)
        return made

    def fold(self, key: Tensor, data: int | Tensor) -> Tensor:
        """`fold`, by numpy or recorded: a key is a hundred small operators."""
        if key.device.type == "cpu":
            return fold_key(key, data)
        number = data if isinstance(data, Tensor) else torch.full((), data, dtype=torch.int64, device=key.device)
        folded: Tensor = play(self.traces, fold, "fold", fold, key, number)
        return folded

    @cached_property
    def server(self) -> Tensor:
        return fold(self.root, SERVER)

    @cached_property
    def visits(self) -> Tensor:
        return fold(self.root, CLIENT)

    @cached_property
    def outside(self) -> Simulation:
        """This simulation with one more client behind all others: without data or record, and with draws of its own.

        What belongs to no client is asked of it. Every process asks by itself.
        """
        federation = self.federation
        parts: dict[str, Any] = {n: getattr(federation, n).longer() for n in ("train", "validation", "test")}
        return replace(
            self, federation=replace(federation, names=(*federation.names, "nobody"), **parts), processes=Processes()
        )

    def part(self, name: str) -> Part:
        return {"train": self.federation.train, "validation": self.federation.validation}[name]

    def site(self, client: int) -> Site:
        """A client of the simulation as if it were on a machine of its own."""
        federation = self.federation
        rows = {name: self.part(name).client(client) for name in ("train", "validation")}
        number = torch.full((), client, dtype=torch.int64, device=self.root.device)
        pool = (federation.x, federation.y)
        return Site(self.method, self.model, self.initial, self.visits, number, *pool, rows, self.build, self.augment)


PER_CLIENT = ("own", "personal", "kept", "client", "n", "steps", "key")  # fields of a stacked `here` with a client axis


def select(here: Here, index: Any) -> Here:
    return replace(here, **{name: tree_rows(getattr(here, name), index) for name in PER_CLIENT})


def make_stack(sim: Simulation, clients: Tensor, round: int, shared: Tree, own: Tree) -> Here:
    """The stacked `here` of clients that have just received the broadcast; the first round is round 1."""
    check_round(round)
    number = clients.new_full((), round)
    if clients.device.type == "cpu":
        key = client_keys(sim.visits, clients, number, fold_key)
    else:
        key = play(sim.traces, client_keys, "client", client_keys, sim.visits, clients, number)
    counts = sim.federation.train.counts[clients]
    return client.make_here(sim, clients, counts, number, key, shared, own)


def at(sim: Simulation, here: Here, stage: int) -> Here:
    return replace(here, key=sim.fold(here.key, stage))


def over(function: Callable[..., Any], here: Here, *stacks: Any) -> Any:
    """`function(*stacks, here)` for every client of a stack at once.

    Only what differs between clients is mapped; the broadcast is a constant of the mapped function, which saves
    flattening it at every step.
    """
    mine = {name: getattr(here, name) for name in PER_CLIENT}
    return vmap(lambda mine, *rest: function(*rest, replace(here, **mine)))(mine, *stacks)


def solid(tree: Tree) -> Tree:
    """Outputs that depend on no client are stride-0 views; give them memory of their own."""
    return tree_map(lambda leaf: leaf.contiguous(), tree)
