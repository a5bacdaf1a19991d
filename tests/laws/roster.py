"""Every method of the package, found by its file: a new method is under the laws without another line."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from kinds import FEWER

from posterity.core.passes import Training
from posterity.methods import available, suffixes
from posterity.methods.fedavg import FedAvg
from posterity.methods.gpfl import GPFL

KINDS = {"cnn": ("fedavg",), "mlp_bn": ("pfedvmp",)}  # also run with these in `make test`
LOCAL = Training(lr=0.05, batch=6)
WIDER = Training(lr=0.01, batch=10)  # convolutions are slow in float64: fewer, larger batches
LONGER = Training(lr=0.05, batch=5, epochs=2, momentum=0.5, clip=5.0)


def made(name: str, cls: type, training: Training) -> Any:
    """An instance that takes several steps on every client; other hyper-parameters as they come, or fewer of them."""
    settings = FEWER.get(name, {})
    return cls(local=training, **settings) if "local" in [f.name for f in fields(cls)] else cls(**settings)


def roster(training: Training) -> dict[str, Any]:
    """Names and methods, the wrappers around FedAvg last."""
    methods = {name: made(name, cls, training) for name, cls in available().items()}
    return {**methods, **{f"fedavg+{name}": cls(FedAvg(training)) for name, cls in suffixes().items()}}


def cases() -> list[tuple[str, Any, str, bool]]:
    """(name, method, model, whether only `make test-all` runs it)."""
    found = [(name, method, "mlp", False) for name, method in roster(LOCAL).items()]
    for model, training in (("cnn", WIDER), ("mlp_bn", LOCAL)):
        found += [(name, method, model, name not in KINDS[model]) for name, method in roster(training).items()]
    found += [("fedavg-longer", FedAvg(LONGER), "mlp", True), ("gpfl-lagged", GPFL(LOCAL, lagged=True), "mlp", True)]
    return [*found, ("fedavg", FedAvg(LOCAL), "mlp_dropout", False)]
