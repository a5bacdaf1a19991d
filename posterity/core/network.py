"""What methods and engines use of a network: a pure function of its parameters, and the names of these.

`posterity.nn.functional.Model` is one, and so is whatever stands in for it in a method's `here` (MetaVD's noisy layer).
Leaves are the parameters and the running statistics by name; a network that is called returns what it computes and the
new running statistics, and never changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    def way(self) -> str:
        """How its convolutions are computed; empty if it has none."""
        ...

    def init(self, seed: int, dtype: torch.dtype = torch.float32) -> Params:
        """Initial leaves: a function of the seed alone."""
        ...

    def ways(self, device: str) -> tuple[str, ...]:
        """The ways that its convolutions could be computed in on a device, the usual one last."""
        ...

    def rewired(self, way: Any) -> Network:
        """The same network whose convolutions compute in another of its `ways`."""
        ...

    def lowered(self, compute: torch.dtype) -> Network:
        """The same network that computes in a smaller type."""
        ...


__all__ = ["Around", "Network", "Params", "Task"]
