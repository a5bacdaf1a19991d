"""What methods and engines use of a network: a pure function of its parameters, and the names of these.

`posterity.nn.model.Model` is one, and so is whatever stands in for it in a method's `here` (MetaVD's noisy layer).
Leaves are the parameters and the running statistics by name; a network that is called returns what it computes and the
new running statistics, and never changes.

Parameters that ask for no gradient (a backbone under an adapter) are the same everywhere and for ever: every site makes
them from the seed, or has them with the module. `bind` puts them into the network, like its integer tables, so that
nobody sends, stacks or keeps them. Methods see a network whose leaves are what is trained, and running statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, Protocol, overload

import torch
from torch import Tensor, nn

Params = dict[str, Tensor]
Task = Literal["classification", "regression"]
Around = Mapping[str, Callable[[Tensor, Tensor], Tensor]]  # layer: its input and output to another output


class Network(Protocol):
    """A network without its weights, split where its head begins."""

    # --- names of leaves ----------------------------------------------------------------------------------------------
    @property
    def leaves(self) -> tuple[str, ...]:
        """All parameters and floating buffers, in the module's order."""
        ...

    @property
    def trainable(self) -> frozenset[str]:
        """Leaves that gradients move."""
        ...

    @property
    def buffers(self) -> frozenset[str]:
        """Leaves that are computed, not trained: running statistics."""
        ...

    @property
    def norms(self) -> frozenset[str]:
        """Leaves of normalisation layers, running statistics included."""
        ...

    @property
    def head_names(self) -> frozenset[str]:
        """Leaves of the head, its buffers included."""
        ...

    @property
    def base_names(self) -> frozenset[str]:
        """Leaves before the head."""
        ...

    # --- what it is ---------------------------------------------------------------------------------------------------
    @property
    def name(self) -> str: ...

    @property
    def module(self) -> nn.Module:
        """The layers, to look at and not to call."""
        ...

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the layers that the head is made of; features are what the first of them is given."""
        ...

    @property
    def task(self) -> Task: ...

    @property
    def classes(self) -> int: ...

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of one input, where known."""
        ...

    @property
    def feature_dim(self) -> int:
        """Length of the feature vector that `features` returns and `classify` takes."""
        ...

    # --- calls --------------------------------------------------------------------------------------------------------
    @overload
    def __call__(
        self,
        params: Params,
        x: Tensor,
        mask: Tensor | None = None,
        train: bool = False,
        key: Tensor | None = None,
        around: Around | None = None,
    ) -> tuple[Tensor, Params]: ...

    @overload
    def __call__(
        self,
        params: Params,
        x: Tensor,
        mask: Tensor | None = None,
        train: bool = False,
        key: Tensor | None = None,
        around: Around | None = None,
        *,
        want: tuple[str, ...],
    ) -> tuple[Tensor, Params, Params]: ...

    def __call__(self, *args: Any, **how: Any) -> Any:
        """Logits (B, C) or values (B,), and new buffers ({} unless `train`); with `want`, also inputs seen by layers.

        `mask` (B,) is 1 for real rows and 0 for padding, None if all are real; `key` feeds dropout.
        """
        ...

    def features(
        self, params: Params, x: Tensor, mask: Tensor | None = None, train: bool = False, key: Tensor | None = None
    ) -> tuple[Tensor, Params]:
        """What the head is given (B, d), and new buffers."""
        ...

    def classify(
        self, params: Params, z: Tensor, mask: Tensor | None = None, train: bool = False, key: Tensor | None = None
    ) -> Tensor:
        """The head alone: logits (B, C), or values (B,), of features z (B, d)."""
        ...

    # --- for engines --------------------------------------------------------------------------------------------------
    @property
    def unstackable(self) -> tuple[str, ...]:
        """Reasons why many clients cannot run at once; none if they can."""
        ...

    @property
    def conv_backend(self) -> str:
        """How its convolutions are computed; empty if it has none."""
        ...

    def init(self, seed: int, dtype: torch.dtype = torch.float32) -> Params:
        """Initial leaves: a function of the seed alone."""
        ...

    def conv_backends(self, device: str) -> tuple[str, ...]:
        """What could compute its convolutions on a device, the usual one last."""
        ...

    def with_conv_backend(self, backend: Any) -> Network:
        """The same network whose convolutions are computed by another of its `conv_backends`."""
        ...

    def with_compute_dtype(self, compute: torch.dtype) -> Network:
        """The same network that computes in a smaller type."""
        ...


@dataclass(frozen=True, eq=False)
class Instead:
    """`model`, called with other parameters than those that it is given; everything else is asked of the model."""

    model: Network

    def replaced(self, given: Params) -> Params:
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not made yet
            raise AttributeError(name)
        return getattr(self.model, name)

    def __call__(self, params: Params, *args: Any, **how: Any) -> Any:
        return self.model(self.replaced(params), *args, **how)

    def logits(self, params: Params, *args: Any, **how: Any) -> Tensor:
        output: Tensor = self(params, *args, **how)[0]
        return output

    def features(self, params: Params, *args: Any, **how: Any) -> tuple[Tensor, Params]:
        return self.model.features(self.replaced(params), *args, **how)

    def classify(self, params: Params, *args: Any, **how: Any) -> Tensor:
        return self.model.classify(self.replaced(params), *args, **how)


@dataclass(frozen=True, eq=False)
class Bound(Instead):
    """`model` with its frozen leaves `still`; its names are those of leaves that move."""

    still: Params = field(repr=False)

    def replaced(self, given: Params) -> Params:
        return {**given, **self.still}

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

    def init(self, seed: int, dtype: torch.dtype = torch.float32) -> Params:
        return {n: p for n, p in self.model.init(seed, dtype).items() if n not in self.still}

    def with_conv_backend(self, backend: Any) -> Network:
        other = self.model.with_conv_backend(backend)
        return as_network(self if other is self.model else replace(self, model=other))

    def with_compute_dtype(self, compute: torch.dtype) -> Network:
        return as_network(replace(self, model=self.model.with_compute_dtype(compute)))


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
