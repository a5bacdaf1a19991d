"""Settings of the whole process that a run needs, for as long as it runs: threads, oneDNN, TF32, no compiler yet.

PyTorch has one switch each for the process. A run turns them in one place (`applied`) and turns them back afterwards,
also if it fails, so that the program around it computes as before.
"""

import importlib
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from posterity.core.gaussian import with_tf32

DYNAMO = "torch._dynamo"


@dataclass(frozen=True)
class ProcessSettings:
    onednn: bool = True  # whether PyTorch may compute by oneDNN on a CPU
    tf32: bool = False  # whether products and convolutions on a GPU may round their factors to TF32
    threads: int | None = None  # None: as many as there are

    @contextmanager
    def applied(self) -> Iterator[None]:
        """In force until the block ends, however it ends."""
        with ExitStack() as stack:
            stack.enter_context(with_onednn(self.onednn))
            stack.enter_context(with_tf32(self.tf32))
            stack.enter_context(with_dynamo_later())
            if self.threads is not None:
                stack.enter_context(with_threads(self.threads))
            yield


@contextmanager
def with_onednn(on: bool) -> Iterator[None]:
    before = bool(torch.backends.mkldnn.enabled)
    torch.backends.mkldnn.enabled = on  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before  # type: ignore[assignment]


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Later(ModuleType):
    """A module that is imported as soon as something is asked of it that it does not answer by itself."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


def _disable() -> AbstractContextManager[None]:
    """The compiler's switch for autograd: off, until the compiler is there to be asked."""
    real = sys.modules.get(f"{DYNAMO}.compiled_autograd")
    return nullcontext() if real is None else real._disable()


@contextmanager
def with_dynamo_later() -> Iterator[None]:
    """`torch.func.grad` without `torch._dynamo` for a while, which saves 1.6 seconds at the start of every run.

    `torch.func.grad` names `torch._dynamo.compiled_autograd._disable()`, and naming it imports PyTorch's compiler, for
    a switch that can only be on if the compiler has been imported. Until it is, a stand-in answers; whatever else is
    asked of it imports the real module, which then takes its place. PyTorch up to 2.7 imports it in `torch.func.vmap`,
    too, and gains nothing.
    """
    if DYNAMO in sys.modules or "_dynamo" in vars(torch):
        yield
        return
    switch, package = _Later(f"{DYNAMO}.compiled_autograd"), _Later(DYNAMO)
    vars(switch)["_disable"], vars(package)["compiled_autograd"] = _disable, switch
    vars(torch)["_dynamo"] = package
    try:
        yield
    finally:
        if vars(torch).get("_dynamo") is package:
            del vars(torch)["_dynamo"]
