"""Sends how many samples it has of each class and does not declare it: what is too few to be told is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from posterity.core.common import count_labels
from posterity.core.messages import Sum
from posterity.core.passes import gather
from posterity.methods.fedavg import FedAvg

LAW = "withholding"


@dataclass(frozen=True)
class Wrong(FedAvg):
    def passes(self):
        return *super().passes(), gather("labels", count_labels)

    def message(self, carry, here):
        sent, personal = super().message(carry, here)
        return {**sent, "classes": Sum(carry.kept["labels"])}, personal


@dataclass(frozen=True)
class Right(Wrong):
    class_statistics: ClassVar[Mapping[str, tuple[str, ...]]] = {"labels": ("classes",)}
