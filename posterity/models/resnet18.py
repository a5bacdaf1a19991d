"""ResNet-18, by default with the stem for small images (3×3, no max-pool) of the FedNP paper's experiments."""

from __future__ import annotations

from posterity.core.network import Task
from posterity.models._resnet import Shortcut, Stem, residual
from posterity.nn.functional import Model


def build(
    shape: tuple[int, ...],
    classes: int,
    task: Task = "classification",
    *,
    stem: Stem = "cifar",  # for 64×64 also "halved" (3×3, stride 2); "imagenet" is 7×7, stride 2 and max-pool
    width: int = 64,  # channels of the first stage
    shortcut: Shortcut = "B",  # where the size changes: A pads with zeros, B projects
    eps: float = 1e-5,  # of batch norm
) -> Model:
    """Four stages of two blocks; 11.17 M parameters and the head."""
    return residual("resnet18", (2, 2, 2, 2), width, stem, shortcut, eps, shape, classes, task)
