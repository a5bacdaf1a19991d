"""A network in which one linear layer's weights are Gaussian: a stand-in for the model of a method's `here`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from posterity.core.random import fold
from posterity.methods.wrappers.metavd.dropout import perturbed
from posterity.nn._names import unknown
from posterity.nn.functional import Model

Params = dict[str, Tensor]


def linear_layer(model: Model, name: str = "") -> str:
    """The linear layer of that name; without one, the last before the head."""
    linear = [n for n, m in model.module.named_modules() if isinstance(m, nn.Linear)]
    if name:
        if name not in linear:
            raise ValueError(unknown("linear layer", name, linear))
        return name
    before = [n for n in linear if f"{n}.weight" in model.base_names]
    if not before:
        raise ValueError(
            f"The network {model.name!r} has no linear layer before its head; name one, e.g. layer={linear[-1]!r}."
            if linear
            else f"The network {model.name!r} has no linear layer."
        )
    return before[-1]


@dataclass(frozen=True, eq=False)
class Noisy:
    """`model`, with `draws` draws of a layer's noise averaged at the output; layers before it are run once.

    New running statistics are those of the first draw. Everything else is asked of the model.
    """

    model: Any
    layer: str
    variance: Tensor  # of every weight of the layer
    key: Tensor
    draws: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, params: Params, x: Tensor, **how: Any) -> tuple[Tensor, Params]:
        def one(draw: Tensor) -> tuple[Tensor, Params]:
            key = fold(self.key, draw)
            change = {self.layer: lambda seen, output: perturbed(seen, output, self.variance, key)}
            found: tuple[Tensor, Params] = self.model(params, x, around=change, **how)
            return found

        if self.draws == 1:
            return one(torch.zeros((), dtype=torch.int64, device=x.device))
        outputs, buffers = vmap(one)(torch.arange(self.draws, device=x.device))
        return outputs.mean(0), {n: b[0] for n, b in buffers.items()}
