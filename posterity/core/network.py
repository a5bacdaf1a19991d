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
from typing import Any, Literal

import torch
from torch import Tensor, nn

Params = dict[str, Tensor]
Task = Literal["classification", "regression"]
Change = Callable[[Tensor, Tensor], Tensor]  # of a layer's input and output to what it is to return
Around = Mapping[str, Change]  # by the layer's name


class Network:
    """A network without its weights, split where its head begins."""

    # names of leaves: parameters and floating buffers, in the module's order
    leaves: tuple[str, ...]
    trainable: frozenset[str]  # leaves that gradients move
    buffers: frozenset[str]  # leaves that are computed, not trained: running statistics
    norms: frozenset[str]  # leaves of normalisation layers, running statistics included
    head_names: frozenset[str]  # leaves of the head, its buffers included
    base_names: frozenset[str]  # leaves before the head

    # what it is
    name: str
    module: nn.Module  # the layers, to look at and not to call
    heads: tuple[str, ...]  # layers that the head is made of; features are what the first of them is given
    task: Task
    classes: int
    shape: tuple[int, ...] | None  # of one input, where known
    feature_dim: int  # length of the feature vector that `features` returns and `classify` takes

    # for engines
    unstackable: tuple[str, ...]  # reasons why many clients cannot run at once; none if they can
    conv_backend: str  # how its convolutions are computed; empty if it has none
    conv_backends: Callable[[str], tuple[str, ...]]  # what could compute them on a device, the usual one last
    with_conv_backend: Callable[[Any], Network]  # the same network whose convolutions are computed by another of these
    with_compute_dtype: Callable[[torch.dtype], Network]  # the same network that computes in a smaller type

    init: Callable[..., Params]  # (seed, dtype): initial leaves, a function of the seed alone
    classify: Callable[..., Tensor]  # (params, z, mask, train, key): the head alone, of features z (B, d)

    def __call__(
        self,
        params: Params,
        x: Tensor,
        mask: Tensor | None = None,
        train: bool = False,
        key: Tensor | None = None,
        around: Around | None = None,
        want: tuple[str, ...] = (),
    ) -> Any:
        """Logits (B, C) or values (B,), and new buffers ({} unless `train`); with `want`, also inputs seen by layers.

        `mask` (B,) is 1 for real rows and 0 for padding, None if all are real; `key` feeds dropout;
        `around={layer: f(input, output)}` replaces a layer's output. Entries of `params` that the network does not know
        are ignored.
        """
        raise NotImplementedError

    def logits(self, params: Params, x: Tensor, **how: Any) -> Tensor:
        """The output alone: logits (B, C), or values (B,) for regression."""
        output: Tensor = self(params, x, **how)[0]
        return output

    def features(self, params: Params, x: Tensor, **how: Any) -> tuple[Tensor, Params]:
        """What the head is given (B, d), and new buffers."""
        first = self.heads[0]
        _, buffers, seen = self(params, x, want=(first,), **how)
        return seen[first].flatten(1), buffers


@dataclass(frozen=True, eq=False)
class Instead(Network):
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
        return self if other is self.model else replace(self, model=other)

    def with_compute_dtype(self, compute: torch.dtype) -> Network:
        return replace(self, model=self.model.with_compute_dtype(compute))


def bind(model: Network, params: Params) -> tuple[Network, Params]:
    """The network that holds its frozen leaves of `params` itself, and the others; unchanged if nothing moves."""
    buffers = getattr(model, "buffers", frozenset[str]())
    moving = {n: p for n, p in params.items() if n in model.trainable or n in buffers}
    if not moving or len(moving) == len(params):
        return model, params
    return Bound(model, {n: p for n, p in params.items() if n not in moving}), moving


def held(model: Network) -> Params:
    """The frozen leaves that a network holds itself."""
    return model.still if isinstance(model, Bound) else {}


def rebound(model: Network, still: Mapping[str, Tensor]) -> Network:
    """The same network with other values of the frozen leaves that it holds."""
    return replace(model, still=dict(still)) if isinstance(model, Bound) else model
