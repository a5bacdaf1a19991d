"""Its record has other leaves, in another order, after training than at first contact."""

from __future__ import annotations

from dataclasses import dataclass

from posterity.methods.fedavg import FedAvg

LAW = "structure"


@dataclass(frozen=True)
class Right(FedAvg):
    def join(self, here):
        return {"weight": here.initial["head.weight"], "bias": here.initial["head.bias"]}

    def message(self, carry, here):
        record = {"weight": carry.params["head.weight"], "bias": carry.params["head.bias"]}
        return super().message(carry, here)[0], record


@dataclass(frozen=True)
class Wrong(Right):
    def message(self, carry, here):
        sent, record = super().message(carry, here)
        return sent, {n: record[n] for n in sorted(record)}
