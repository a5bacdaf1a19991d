"""Folds its key from too little: the noise of a client is the same in every round and under every seed."""

from __future__ import annotations

from dataclasses import dataclass

from posterity.core.random import fold, make_key, normal
from posterity.methods.fedavg import FedAvg

LAW = "draws"


@dataclass(frozen=True)
class Wrong(FedAvg):
    def message(self, carry, here):
        return super().message(_noisy(carry, fold(make_key(0), here.client)), here)


@dataclass(frozen=True)
class Right(FedAvg):
    def message(self, carry, here):
        return super().message(_noisy(carry, here.key), here)


def _noisy(carry, key):
    params = {n: p + 0.01 * normal(fold(key, i), p.shape, p.dtype) for i, (n, p) in enumerate(carry.params.items())}
    return type(carry)(params, carry.kept, carry.opt)
