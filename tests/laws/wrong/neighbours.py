"""Its noise is drawn with the batch axis last, so a wider stack shifts every client's draws."""

from __future__ import annotations

from dataclasses import dataclass

from posterity.core.passes import fit
from posterity.core.protocol import Batch
from posterity.core.random import normal
from posterity.methods.fedavg import FedAvg

LAW = "company"


def shaken(params, batch, here, last):
    shape = (batch.x.shape[1], len(batch.mask)) if last else tuple(batch.x.shape[:2])
    noise = normal(here.key, shape, batch.x.dtype)
    return fit(params, Batch(batch.x + 0.1 * (noise.T if last else noise), batch.y, batch.mask), here)


@dataclass(frozen=True)
class Wrong(FedAvg):
    loss: object = lambda params, batch, here: shaken(params, batch, here, True)


@dataclass(frozen=True)
class Right(FedAvg):
    loss: object = lambda params, batch, here: shaken(params, batch, here, False)
