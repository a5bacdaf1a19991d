"""A wider LeNet for colour images: two 5×5 convolutions (64, 64), fully connected 384 and 192, a head."""

from __future__ import annotations

from torch import nn

from posterity.core.network import Task
from posterity.models._images import Padding, padded, stack
from posterity.nn.assembly import assemble
from posterity.nn.functional import Model


def build(
    shape: tuple[int, ...],
    classes: int,
    task: Task = "classification",
    *,
    width: int = 64,  # channels of both convolutions; FedBPS does not print its own
    padding: Padding = None,  # None: 0, but 2 for images smaller than 16 pixels
) -> Model:
    """ReLU and max pooling; the features are the 192 units after their activation."""
    pads, outputs = padded(shape, padding), 1 if task == "regression" else classes

    def make() -> nn.Module:
        return stack(shape, (width, width), (384, 192), outputs, pads)

    return assemble(make, "head", shape, classes, task, "lenet_wide")
