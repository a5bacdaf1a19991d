"""One linear layer: logistic or linear regression; all of it is head."""

from __future__ import annotations

from dataclasses import replace

from posterity.core.network import Task
from posterity.models import mlp
from posterity.nn.functional import Model


def build(shape: tuple[int, ...], classes: int, task: Task = "classification", *, unit: bool = False) -> Model:
    """Inputs of any shape are flattened; the features are the inputs."""
    return replace(mlp.build(shape, classes, task, hidden=(), unit=unit), name="linear")
