"""A network that holds its frozen leaves itself, so that nobody sends, stacks or keeps what never changes.

Parameters that ask for no gradient (a backbone under an adapter) are the same everywhere and for ever: every site makes
them from the seed, or has them with the module. `bind` puts them into the network, like its integer tables, and leaves
what moves: what is trained, and running statistics. Methods see a network that has no other leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from posterity.core.network import Network, Params


@dataclass(frozen=True, eq=False)
class Bound:
    """`model` with its frozen leaves `still`; everything else is asked of the model."""

    model: Network
    still: Params = field(repr=False)

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not made yet
            raise AttributeError(name)
        return getattr(self.model, name)

    # --- names: those of leaves that move --------------------------------------------------------------------------
    @cached_property
    def leaves(self) -> tuple[str, ...]:
        return tuple(n for n in self.model.leaves if n not in self.still)

    @cached_property
    def norms(self) -> frozenset[str]:
        return self.model.norms - self.still.keys()

    @cached_property
    def head_names(self) -> frozenset[str]:
        return self.model.head_names - self.still.keys()

    @cached_property
    def base_names(self) -> frozenset[str]:
        return self.model.base_names - self.still.keys()

    # --- calls -----------------------------------------------------------------------------------------------------
    def __call__(self, params: Params, *args: Any, **how: Any) -> Any:
        return self.model(self._all(params), *args, **how)

    def logits(self, params: Params, *args: Any, **how: Any) -> Tensor:
        output: Tensor = self(params, *args, **how)[0]
        return output

    def features(self, params: Params, *args: Any, **how: Any) -> tuple[Tensor, Params]:
        return self.model.features(self._all(params), *args, **how)

    def classify(self, params: Params, *args: Any, **how: Any) -> Tensor:
        return self.model.classify(self._all(params), *args, **how)

    def _all(self, params: Params) -> Params:
        return {**params, **self.still}

    # --- the same network otherwise --------------------------------------------------------------------------------
    def init(self, seed: int, dtype: torch.dtype = torch.float32) -> Params:
        return {n: p for n, p in self.model.init(seed, dtype).items() if n not in self.still}

    def rewired(self, way: Any) -> Network:
        other = self.model.rewired(way)
        return as_network(self if other is self.model else replace(self, model=other))

    def lowered(self, compute: torch.dtype) -> Network:
        return as_network(replace(self, model=self.model.lowered(compute)))


def bind(model: Network, params: Params) -> tuple[Network, Params]:
    """The network that holds its frozen leaves of `params` itself, and the others; unchanged if nothing moves."""
    buffers = getattr(model, "buffers", frozenset[str]())
    moving = {n: p for n, p in params.items() if n in model.trainable or n in buffers}
    if not moving or len(moving) == len(params):
        return model, params
    return as_network(Bound(model, {n: p for n, p in params.items() if n not in moving})), moving


def held(model: Network) -> Params:
    """The frozen leaves that a network holds itself."""
    return model.still if isinstance(model, Bound) else {}


def rebound(model: Network, still: Mapping[str, Tensor]) -> Network:
    """The same network with other values of the frozen leaves that it holds."""
    return as_network(replace(model, still=dict(still))) if isinstance(model, Bound) else model


def as_network(bound: Bound) -> Network:
    """What is asked of the model makes it a network, which a type checker cannot see."""
    network: Any = bound
    return network


__all__ = ["Bound", "bind", "held", "rebound"]
