"""Fully connected network with batch norm before each activation."""

from __future__ import annotations

from dataclasses import replace

from posterity.core.network import Task
from posterity.models import mlp
from posterity.nn.functional import Model


def build(
    shape: tuple[int, ...],
    classes: int,
    task: Task = "classification",
    *,
    hidden: tuple[int, ...] = (64,),
    eps: float = 1e-5,  # 1e-2 is well conditioned even for batches of two
    dropout: float = 0.0,
    unit: bool = False,
) -> Model:
    """`mlp` with `norm=True`."""
    made = mlp.build(shape, classes, task, hidden=hidden, norm=True, eps=eps, dropout=dropout, unit=unit)
    return replace(made, name="mlp_bn")
