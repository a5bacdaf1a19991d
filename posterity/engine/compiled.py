"""`graph`, whose steps are compiled to machine code by PyTorch's inductor: for long runs of small networks on a CPU.

Compiling a step takes tens of seconds the first time (PyTorch keeps the result on disk) and needs a C++ compiler; the
step is then several times faster than its list of operators. Fused sums round in another order, so results agree with
the other engines to rounding, not to the last bit. On a GPU it is `graph`.
"""

from __future__ import annotations

from functools import partial

from posterity.core.method import Carry, Here, Pass
from posterity.engine import graph, stacked
from posterity.engine.graph import Manner, apply, join, losses, message, offer, predict, start
from posterity.engine.record import compile_flat
from posterity.engine.world import World, at

name = "compiled"
CALLS = 1000  # steps of one size after which compiling pays
PART = 1  # sizes double: a wasted client costs less than another compilation


def work(world: World, passes: tuple[Pass, ...], carry: Carry, here: Here, stage: int) -> Carry:
    """Every client through all passes."""
    stepping = partial(graph.take_steps, manner=Manner(compile_flat, CALLS, PART))
    return stacked.walk(world, passes, carry, at(world, here, stage), apply, stepping)


__all__ = ["join", "losses", "message", "name", "offer", "predict", "start", "work"]
