"""Partitions as one word on the command line: `dirichlet:0.3`, `pathological:3:100`, `natural`, …"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from numpy.random import Generator
from torch import Tensor

from posterity.data import partition
from posterity.data.parse import nearest
from posterity.data.pool import DataError

GRAMMAR = {
    "dirichlet": "dirichlet:ALPHA[:MINIMUM]",
    "balanced": "balanced:ALPHA[:MINIMUM]",
    "capped": "capped:ALPHA[:MINIMUM]",
    "pathological": "pathological:CLASSES[:SAMPLES]",
    "major": "major:CLASSES:SHARE",
    "major-literal": "major-literal:CLASSES:SHARE",
    "quantity": "quantity:ALPHA[:MINIMUM]",
    "quantity-power": "quantity-power:ALPHA[:MINIMUM]",
    "iid": "iid",
    "natural": "natural",
}
# Version 2: shares become whole numbers from a random start, not from the first client on. Others are of version 1.
VERSIONS = {"dirichlet": 2, "balanced": 2, "quantity": 2, "quantity-power": 2, "iid": 2}


@dataclass(frozen=True)
class Partition:
    """A named law and its numbers."""

    name: str
    alpha: float = 0.0
    minimum: int = 10
    kinds: int = 0  # classes per client
    samples: int | None = None  # rows per class and client
    share: float = 0.0

    @property
    def version(self) -> int:
        """Which rows a rule gives out for a seed may change with the version, and only with it."""
        return VERSIONS.get(self.name, 1)

    def facts(self) -> dict[str, Any]:
        """The rule, its version and the numbers that it was given, for a run's folder."""
        given = {f.name: v for f in fields(self) if f.name != "name" and (v := getattr(self, f.name)) != f.default}
        return {"rule": self.name, "version": self.version, **given}

    def divide(self, y: Tensor, clients: int, rng: Generator) -> list[Tensor]:
        """Rows of each client."""
        match self.name:
            case "dirichlet":
                return partition.dirichlet(y, clients, self.alpha, rng, self.minimum)
            case "balanced":
                return partition.balanced_dirichlet(y, clients, self.alpha, rng, self.minimum)
            case "capped":
                return partition.capped(y, clients, self.alpha, rng, self.minimum)
            case "pathological":
                return partition.pathological(y, clients, self.kinds, rng, self.samples)
            case "major" | "major-literal":
                return partition.major(y, clients, rng, self.kinds, self.share, literal=self.name == "major-literal")
            case "quantity":
                return partition.quantity(y, clients, self.alpha, rng, "dirichlet", self.minimum)
            case "quantity-power":
                return partition.quantity(y, clients, self.alpha, rng, "power", self.minimum)
            case "iid":
                return partition.iid(y, clients, rng)
        raise DataError(
            f"partition {self.name!r}: expected a law that divides rows; natural clients need an owner column"
        )

    def lenient(self) -> Partition:
        """The same law for a held-out part, which is smaller: one row a client is enough, samples as they fit."""
        return replace(self, minimum=1, samples=None)


def parse_partition(text: str) -> Partition:
    """Read a partition as written on the command line."""
    name, *numbers = text.strip().split(":")
    if name not in GRAMMAR:
        raise DataError(f"partition {text!r}: unknown name {name!r}; {nearest(name, GRAMMAR)}")
    usage = GRAMMAR[name]
    most = usage.count(":")
    least = most - usage.count("[")
    if not least <= len(numbers) <= most:
        raise DataError(f"partition {text!r}: {len(numbers)} numbers after the name; expected the form {usage}")
    try:
        return _read(name, numbers)
    except ValueError as error:
        raise DataError(f"partition {text!r}: {error}; expected the form {usage} with numbers in it") from None


def _read(name: str, numbers: list[str]) -> Partition:
    if name == "pathological":
        return Partition(name, kinds=int(numbers[0]), samples=int(numbers[1]) if numbers[1:] else None)
    if name.startswith("major"):
        return Partition(name, kinds=int(numbers[0]), share=float(numbers[1]))
    if numbers:
        return Partition(name, alpha=float(numbers[0]), minimum=int(numbers[1]) if numbers[1:] else 10)
    return Partition(name)
