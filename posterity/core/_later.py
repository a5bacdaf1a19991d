"""`torch.func.grad` without `torch._dynamo`, which takes longer to import than PyTorch itself.

`torch.func.grad` names `torch._dynamo.compiled_autograd._disable()`, and naming it imports the compiler: 1.6 seconds at
the start of every run, for a switch that can only be on if the compiler has been imported. Until it is, a stand-in
answers: the switch is off, and whatever else is asked of it imports the real module, which then takes its place.
PyTorch up to 2.7 imports the compiler in `torch.func.vmap` by itself: with it a run starts that much later.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import torch

REAL = "torch._dynamo"


class _Later(ModuleType):
    """A module that is imported as soon as something is asked of it that it does not answer by itself."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


def _disable() -> AbstractContextManager[None]:
    if REAL in sys.modules:
        real: AbstractContextManager[None] = importlib.import_module(f"{REAL}.compiled_autograd")._disable()
        return real
    return nullcontext()


def import_dynamo_later() -> None:
    """Put the stand-in where PyTorch looks for its compiler, unless that is there already."""
    if REAL in sys.modules or isinstance(vars(torch).get("_dynamo"), _Later):
        return
    switch, package = _Later(f"{REAL}.compiled_autograd"), _Later(REAL)
    vars(switch)["_disable"], vars(package)["compiled_autograd"] = _disable, switch
    vars(torch)["_dynamo"] = package


__all__ = ["import_dynamo_later"]
