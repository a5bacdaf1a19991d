"""Operators compiled to machine code by PyTorch's inductor, the old ones too.

Two faults of old versions are avoided here: 2.6 cannot add into vectors of places on a CPU (it stops at an assertion
without words, for the gradient of a cross-entropy), and up to 2.7 what was compiled before and lies on disk can be read
inside of the compiler's statistics only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

Run = Callable[..., Any]


def compile_operators(operators: Any, inputs: list[Any], options: dict[str, Any] | None = None) -> Run:
    """`operators` for such inputs; options that this version does not know are left out."""
    from torch import _inductor  # takes a second to import, so only where it is used

    known = {name: value for name, value in (options or {}).items() if hasattr(_inductor.config, name)}
    if torch.__version__ < "2.7":
        known["cpp.simdlen"] = 1  # no vectors; kernels of a GPU are not concerned
    with _statistics():
        run: Run = _inductor.compile(operators, inputs, options=known)
    return run


def _statistics() -> AbstractContextManager[Any]:
    if torch.__version__ >= "2.8":
        return nullcontext()
    from torch._dynamo.utils import get_metrics_context

    return get_metrics_context()


__all__ = ["Run", "compile_operators"]
