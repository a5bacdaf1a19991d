"""LeNet-5 with ReLU and max pooling: two 5×5 convolutions (6, 16), fully connected 120 and 84, a head."""

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
    padding: Padding = None,  # None: 0, but 2 for images smaller than 16 pixels; (2, 0) on 28×28 is the original
) -> Model:
    """44,426 parameters on 1×28×28 with ten classes, 61,706 with padding=(2, 0)."""
    pads, outputs = padded(shape, padding), 1 if task == "regression" else classes

    def make() -> nn.Module:
        return stack(shape, (6, 16), (120, 84), outputs, pads)

    return assemble(make, "head", shape, classes, task, "lenet5")
