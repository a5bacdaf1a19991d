"""`graph`, whose steps are compiled to machine code by PyTorch's inductor: for long runs.

Compiling a step takes tens of seconds the first time (PyTorch keeps the result on disk) and needs a C++ compiler, on a
GPU Triton; the step is then several times faster than its list of operators on a CPU, and on a GPU faster where much is
elementwise (`fused.py`). Fused sums round in another order, so results agree with the other engines to rounding, not to
the last bit.
"""

from __future__ import annotations

from functools import partial

from posterity.core.protocol import Carry, Here, Pass
from posterity.engine import stacked
from posterity.engine.batches import BatchPlan
from posterity.engine.replay import cuda_graphs, graph, inductor
from posterity.engine.replay.graph import StepCompiler, apply, join, losses, message, offer, predict, start
from posterity.engine.simulation import Simulation, at
from posterity.engine.tracing.trace import compile_flat

name = "compiled"
CALLS = 1000  # steps of one size after which compiling pays
PART = 1  # sizes double: a wasted client costs less than another compilation


def work(sim: Simulation, passes: tuple[Pass, ...], carry: Carry, here: Here, stage: int) -> Carry:
    """Every client through all passes."""
    stepping = (
        _take_steps if here.key.is_cuda else partial(graph.take_steps, compiler=StepCompiler(compile_flat, CALLS, PART))
    )
    return stacked.walk(sim, passes, carry, at(sim, here, stage), apply, stepping)


def _take_steps(sim: Simulation, each: Pass, carry: Carry, here: Here, plan: BatchPlan) -> Carry:
    """On a GPU: compiled once for every number of clients, and captured for each."""
    return cuda_graphs.take_steps(sim, each, carry, here, plan, graph._step, inductor.body)


__all__ = ["join", "losses", "message", "name", "offer", "predict", "start", "work"]
