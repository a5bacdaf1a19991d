"""Ignores its key: dropout of every client, round and step drops the same units."""

from __future__ import annotations

from dataclasses import dataclass

from posterity.core.likelihood import masked_mean, pointwise
from posterity.core.random import make_key
from posterity.methods.fedavg import FedAvg as Right

LAW = "draws"


def loss(params, batch, here):
    output, buffers = here.model(params, batch.x, mask=batch.mask, train=True, key=make_key(0))
    return masked_mean(pointwise(output, batch.y, here.model), batch.mask), buffers


@dataclass(frozen=True)
class Wrong(Right):
    loss: object = loss
