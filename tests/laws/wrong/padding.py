"""Counts padding: the loss is the plain mean over the rows of a batch."""

from __future__ import annotations

from dataclasses import dataclass

from posterity.core.likelihood import pointwise
from posterity.methods.fedavg import FedAvg as Right

LAW = "mask"


def plain(params, batch, here):
    output, buffers = here.model(params, batch.x, mask=batch.mask, train=True, key=here.key)
    return pointwise(output, batch.y, here.model).mean(), buffers


@dataclass(frozen=True)
class Wrong(Right):
    loss: object = plain
