"""With how many bits a GPU multiplies: `--precision tf32` is meant for layers, not for the algebra of a method."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

DEVICES = frozenset({"cuda"})  # that have products with few bits


@contextmanager
def with_tf32(on: bool) -> Iterator[None]:
    """Products of a GPU with few bits, or not, for a while."""
    switches: tuple[Any, Any] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = on
        yield
    finally:
        for switch, old in zip(switches, before, strict=True):
            switch.allow_tf32 = old


def exact_products(like: Tensor) -> AbstractContextManager[None]:
    """Products in full precision for a while, on the device of `like`.

    What is called or captured in that while is meant; a compiler (`--engine compiled`) does not see it. A host has no
    such switch, and there several clients may be at work side by side.
    """
    return with_tf32(False) if like.device.type in DEVICES else nullcontext()


__all__ = ["exact_products", "with_tf32"]
