"""The pFedVMP paper's network (Table 4): two 5×5 convolutions (32, 64), one fully connected layer (512), a head."""

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
    feature_dim: int = 512,  # the paper studies 128 to 640
    padding: Padding = None,  # None: 0 as in the paper, but 2 for images smaller than 16 pixels
) -> Model:
    """LeakyReLU(0.1) throughout; the features are the fully connected layer after its activation."""
    pads, outputs = padded(shape, padding), 1 if task == "regression" else classes

    def make() -> nn.Module:
        return stack(shape, (32, 64), (feature_dim,), outputs, pads, lambda: nn.LeakyReLU(0.1))

    return assemble(make, "head", shape, classes, task, "cnn")
