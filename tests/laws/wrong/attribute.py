"""Keeps a client's record in an attribute of the method instead of Personal."""

from __future__ import annotations

from dataclasses import dataclass, field

from posterity.methods.fedavg import FedAvg

LAW = "purity"


@dataclass(frozen=True)
class Wrong(FedAvg):
    biases: dict = field(default_factory=dict)

    def start(self, here):
        old = self.biases.get("last", here.shared.params["head.bias"])
        self.biases["last"] = old + 0.1
        return {**here.shared.params, "head.bias": old}


@dataclass(frozen=True)
class Right(FedAvg):
    def join(self, here):
        return here.initial["head.bias"]

    def start(self, here):
        return {**here.shared.params, "head.bias": here.personal}

    def message(self, carry, here):
        return super().message(carry, here)[0], carry.params["head.bias"] + 0.1
