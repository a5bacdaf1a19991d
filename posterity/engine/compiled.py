"""`graph`, whose steps are compiled to machine code by PyTorch's inductor: for long runs.

Compiling a step takes tens of seconds the first time (PyTorch keeps the result on disk) and needs a C++ compiler, on a
GPU Triton; the step is then several times faster than its list of operators on a CPU, and on a GPU faster where much is
elementwise (`fused.py`). Fused sums round in another order, so results agree with the other engines to rounding, not to
the last bit.
"""

from __future__ import annotations

from functools import partial

from posterity.core.method import Carry, Here, Pass
from posterity.engine import fused, graph, resident, stacked
from posterity.engine.graph import Manner, apply, join, losses, message, offer, predict, start
from posterity.engine.plan import Plan
from posterity.engine.record import compile_flat
from posterity.engine.world import World, at

name = "compiled"
CALLS = 1000  # steps of one size after which compiling pays
PART = 1  # sizes double: a wasted client costs less than another compilation


def work(world: World, passes: tuple[Pass, ...], carry: Carry, here: Here, stage: int) -> Carry:
    """Every client through all passes."""
    stepping = _take_steps if here.key.is_cuda else partial(graph.take_steps, manner=Manner(compile_flat, CALLS, PART))
    return stacked.walk(world, passes, carry, at(world, here, stage), apply, stepping)


def _take_steps(world: World, each: Pass, carry: Carry, here: Here, plan: Plan) -> Carry:
    """On a GPU: compiled once for every number of clients, and captured for each."""
    return resident.take_steps(world, each, carry, here, plan, graph._step, fused.body)


__all__ = ["join", "losses", "message", "name", "offer", "predict", "start", "work"]
