"""Finding a layer of a network by its kind, for methods that treat one layer in a way of their own."""

from __future__ import annotations

from torch import nn

from posterity.core.network import Network
from posterity.nn._names import unknown


def linear_layer(model: Network, name: str = "") -> str:
    """The linear layer of that name; without one, the last before the head."""
    layers = model.module.named_modules()
    linear = [n for n, m in layers if isinstance(m, nn.Linear) and f"{n}.weight" in model.leaves]  # none that is frozen
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


__all__ = ["linear_layer"]
