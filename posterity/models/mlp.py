"""Fully connected networks: `mlp`, with batch norm `mlp_bn`, without a hidden layer `linear`."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from itertools import pairwise
from math import prod

from torch import nn

from posterity.core.network import Task
from posterity.nn.adopt import assemble
from posterity.nn.model import Model


def linear(shape: tuple[int, ...], classes: int, task: Task = "classification", *, unit: bool = False) -> Model:
    """One linear layer: logistic or linear regression; all of it is head.

    Inputs of any shape are flattened; the features are the inputs.
    """
    return replace(mlp(shape, classes, task, hidden=(), unit=unit), name="linear")


def mlp_bn(
    shape: tuple[int, ...],
    classes: int,
    task: Task = "classification",
    *,
    hidden: tuple[int, ...] = (64,),  # widths of the hidden layers
    eps: float = 1e-5,  # 1e-2 is well conditioned even for batches of two
    dropout: float = 0.0,  # after each activation
    unit: bool = False,  # two classes by a single sigmoid unit
) -> Model:
    """Fully connected network with batch norm before each activation.

    `mlp` with `norm=True`.
    """
    made = mlp(shape, classes, task, hidden=hidden, norm=True, eps=eps, dropout=dropout, unit=unit)
    return replace(made, name="mlp_bn")


def mlp(
    shape: tuple[int, ...],
    classes: int,
    task: Task = "classification",
    *,
    hidden: tuple[int, ...] = (64,),  # widths of the hidden layers; (32, 16) is FedMAP's
    norm: bool = False,  # batch norm before each activation
    eps: float = 1e-5,  # of batch norm
    dropout: float = 0.0,  # after each activation
    unit: bool = False,  # two classes by a single sigmoid unit
) -> Model:
    """Fully connected network: hidden layers with ReLU, then one linear head.

    Inputs of any shape are flattened; the features are the last hidden layer after its activation.
    """
    if unit and (classes != 2 or task != "classification"):
        raise ValueError(f"unit=True is one sigmoid unit for two classes; here are {classes} classes ({task}).")
    widths = [prod(shape), *hidden]
    outputs = 1 if unit or task == "regression" else classes

    def make() -> nn.Module:
        base: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
        for i, (before, after) in enumerate(pairwise(widths), 1):
            base[f"fc{i}"] = nn.Linear(before, after)
            if norm:
                base[f"norm{i}"] = nn.BatchNorm1d(after, eps=eps)
            base[f"relu{i}"] = nn.ReLU()
            if dropout > 0:
                base[f"drop{i}"] = nn.Dropout(dropout)
        return nn.Sequential(OrderedDict(base=nn.Sequential(base), head=nn.Linear(widths[-1], outputs)))

    return assemble(make, "head", shape, classes, task, "mlp")
