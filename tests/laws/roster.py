"""Every method of the package, found by its file: a new method is under the laws without another line."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from dataclasses import fields, is_dataclass
from typing import Any

import posterity.methods
from posterity.core.training import Training
from posterity.methods.fedavg import FedAvg
from posterity.methods.wrappers.calibrated import Calibrated
from posterity.methods.wrappers.ft import FineTuned

FUNCTIONS = ("init", "start", "passes", "message", "combine", "offer", "join", "adapt", "predict")
KINDS = ("fedavg", "fedper", "pfedvmp", "fedmap")  # one of each kind also runs with cnn and mlp_bn in `make test`
LOCAL = Training(lr=0.05, batch=4, epochs=1)
LONGER = Training(lr=0.05, batch=5, epochs=2, momentum=0.5, clip=5.0)


def is_method(thing: Any, module: str) -> bool:
    own = inspect.isclass(thing) and is_dataclass(thing) and thing.__module__ == module
    return own and thing.__dataclass_params__.frozen and all(callable(getattr(thing, f, None)) for f in FUNCTIONS)


def method_files() -> list[str]:
    return [f.name for f in pkgutil.iter_modules(posterity.methods.__path__) if not f.ispkg and f.name[0] != "_"]


def made(cls: type) -> Any:
    """An instance that takes several steps on every client; other hyper-parameters as they come."""
    return cls(local=LOCAL) if "local" in [f.name for f in fields(cls)] else cls()


def roster() -> dict[str, Any]:
    """Names and methods, the wrappers around FedAvg last."""
    found: dict[str, Any] = {}
    for file in method_files():
        module = importlib.import_module(f"posterity.methods.{file}")
        for thing in vars(module).values():
            if is_method(thing, module.__name__):
                found[file if file not in found else f"{file}:{thing.__name__}"] = made(thing)
    return {**found, "ft": FineTuned(FedAvg(LOCAL)), "calibrated": Calibrated(FedAvg(LOCAL))}


def cases() -> list[tuple[str, Any, str, bool]]:
    """(name, method, model, whether only `make test-all` runs it)."""
    methods = roster()
    plain = [(name, m, "mlp", False) for name, m in methods.items()]
    others = [(n, m, model, n not in KINDS) for n, m in methods.items() for model in ("cnn", "mlp_bn")]
    longer = [("fedavg-longer", FedAvg(LONGER), "mlp", False), ("fedavg", methods["fedavg"], "mlp_dropout", False)]
    return plain + others + longer
