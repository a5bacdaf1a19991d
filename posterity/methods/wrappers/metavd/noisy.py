"""f̄ of (4): a network in which one linear layer's weights are Gaussian, a stand-in for the model of a host's `here`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from posterity.core import Network, Params, fold
from posterity.methods.wrappers.metavd.dropout import perturbed


@dataclass(frozen=True, eq=False)
class Noisy:
    """`model`, with `draws` draws of a layer's noise averaged at the output; layers before it are run once.

    New running statistics are those of the first draw. Everything else is asked of the model.
    """

    model: Network
    layer: str
    variance: Tensor  # of every weight of the layer
    key: Tensor
    draws: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def __call__(self, params: Params, x: Tensor, *more: Any, **how: Any) -> Any:
        call: Any = self.model

        def one(draw: Tensor) -> tuple[Tensor, Params]:
            key = fold(self.key, draw)
            change = {self.layer: lambda seen, output: perturbed(seen, output, self.variance, key)}
            found: tuple[Tensor, Params] = call(params, x, *more, around=change, **how)
            return found

        if self.draws == 1:
            return one(torch.zeros((), dtype=torch.int64, device=x.device))
        outputs, buffers = vmap(one)(torch.arange(self.draws, device=x.device))
        return outputs.mean(0), {n: b[0] for n, b in buffers.items()}
