"""Fully connected networks: `mlp`, with batch norm `mlp_bn`, without a hidden layer `linear`."""

from collections import OrderedDict
from itertools import pairwise
from math import prod

from torch import nn


def linear(shape: tuple[int, ...], outputs: int, *, unit: bool = False) -> nn.Module:
    """One linear layer: logistic or linear regression; all of it is head.

    Inputs of any shape are flattened; the features are the inputs.
    """
    return mlp(shape, outputs, hidden=(), unit=unit)


def mlp_bn(
    shape: tuple[int, ...],
    outputs: int,
    *,
    hidden: tuple[int, ...] = (64,),  # widths of the hidden layers
    eps: float = 1e-5,  # 1e-2 is well conditioned even for batches of two
    dropout: float = 0.0,  # after each activation
    unit: bool = False,  # two classes by a single sigmoid unit
) -> nn.Module:
    """Fully connected network with batch norm before each activation.

    `mlp` with `norm=True`.
    """
    return mlp(shape, outputs, hidden=hidden, norm=True, eps=eps, dropout=dropout, unit=unit)


def mlp(
    shape: tuple[int, ...],
    outputs: int,
    *,
    hidden: tuple[int, ...] = (64,),  # widths of the hidden layers; (32, 16) is FedMAP's
    norm: bool = False,  # batch norm before each activation
    eps: float = 1e-5,  # of batch norm
    dropout: float = 0.0,  # after each activation
    unit: bool = False,  # two classes by a single sigmoid unit
) -> nn.Module:
    """Fully connected network: hidden layers with ReLU, then one linear head.

    Inputs of any shape are flattened; the features are the last hidden layer after its activation.
    """
    if unit and outputs != 2:
        raise ValueError(f"unit=True is one sigmoid unit for two classes; here the network has {outputs} outputs.")
    widths = [prod(shape), *hidden]
    base: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for i, (before, after) in enumerate(pairwise(widths), 1):
        base[f"fc{i}"] = nn.Linear(before, after)
        if norm:
            base[f"norm{i}"] = nn.BatchNorm1d(after, eps=eps)
        base[f"relu{i}"] = nn.ReLU()
        if dropout > 0:
            base[f"drop{i}"] = nn.Dropout(dropout)
    head = nn.Linear(widths[-1], 1 if unit else outputs)
    return nn.Sequential(OrderedDict(base=nn.Sequential(base), head=head))
