"""ResNet-56 for small images: three stages of nine blocks with 16, 32 and 64 channels (He et al. 2016, §4.2)."""

from __future__ import annotations

from posterity.core.network import Task
from posterity.models._resnet import Shortcut, residual
from posterity.nn.functional import Model


def build(
    shape: tuple[int, ...],
    classes: int,
    task: Task = "classification",
    *,
    width: int = 16,  # channels of the first stage
    shortcut: Shortcut = "A",  # where the size changes: A pads with zeros, as in the paper; B projects
    eps: float = 1e-5,  # of batch norm
) -> Model:
    """0.85 M parameters for ten classes."""
    return residual("resnet56", (9, 9, 9), width, "cifar", shortcut, eps, shape, classes, task)
