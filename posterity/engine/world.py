"""What a simulation works on, and the record that a visit starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posterity.core.draw import fold
from posterity.core.method import Batch, Here, Method, Params
from posterity.core.tree import Tree, tree_map, tree_rows
from posterity.data.federation import Federation, Part
from posterity.engine.keys import client_keys

PREDICT_ROWS = 128  # samples of one client that are predicted at once; part of the draws of methods with noise


@dataclass(frozen=True)
class World:
    """One experiment's fixed things: everything but State and the personal records."""

    method: Method
    model: Any
    federation: Federation
    initial: Params
    root: Tensor  # (2,) root key
    memory: int = 2**30  # bytes that a block of stacked clients may take

    @property
    def dtype(self) -> torch.dtype:
        return next(iter(self.initial.values())).dtype

    def part(self, name: str) -> Part:
        return {"train": self.federation.train, "validation": self.federation.validation}[name]

    def batch(self, rows: Tensor, mask: Tensor) -> Batch:
        return Batch(self.federation.x[rows], self.federation.y[rows], mask.to(self.dtype))


def dims(here: Here) -> Here:
    """Which axis of each field of a stacked `here` counts clients: 0, or None for what all clients share."""
    return Here(None, 0, 0, 0, 0, 0, 0, None, None, 0, None, here.model)  # type: ignore[arg-type]


def select(here: Here, index: Any) -> Here:
    """Some clients of a stacked `here`, or one of them unstacked."""
    per_client = ("own", "personal", "kept", "client", "n", "steps", "key")
    return replace(here, **{name: tree_rows(getattr(here, name), index) for name in per_client})


def arrive(world: World, clients: Tensor, round: int, shared: Tree, own: Tree) -> Here:
    """The stacked `here` of clients that have just received the broadcast."""
    count = world.federation.train.counts[clients]
    return Here(
        shared=shared,
        own=own,
        personal=(),
        kept={},
        client=clients,
        n=count.to(world.dtype),
        steps=torch.zeros_like(clients),
        step=clients.new_zeros(()),
        round=clients.new_full((), round),
        key=client_keys(world.root, clients, round),
        initial=world.initial,
        model=world.model,
    )


def at(here: Here, stage: int) -> Here:
    """`here` with the key of a stage of the visit."""
    return replace(here, key=fold(here.key, stage))


def over(function: Callable[..., Any], *axes: Any) -> Callable[..., Any]:
    """`function` for a stack of clients; outputs that depend on no client are copied out of their stride-0 views."""
    mapped = torch.func.vmap(function, in_dims=axes)
    return lambda *args: tree_map(lambda leaf: leaf.contiguous(), mapped(*args))
