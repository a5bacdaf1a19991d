"""`graph`, whose steps are compiled to machine code by PyTorch's inductor: for long runs.

Compiling a step takes tens of seconds the first time (PyTorch keeps the result on disk) and needs a C++ compiler, on a
GPU Triton; the step is then several times faster than its list of operators on a CPU, and on a GPU faster where much is
elementwise (`inductor.py`). Fused sums round in another order, so results agree with the other engines to rounding, not
to the last bit. Which steps are compiled depends on the round (on a CPU) or on nothing (on a GPU), and not on what a
process has done before: a resumed run has the bits of one that was not interrupted.
"""

from __future__ import annotations

from posterity.core.protocol import Carry, Here, Pass
from posterity.engine.batches import BatchPlan
from posterity.engine.replay import cuda_graphs, graph, inductor
from posterity.engine.simulation import Simulation
from posterity.engine.stacked import Stacked
from posterity.engine.tracing.trace import compile_flat

ON_HOST = graph.StepCompiler(
    compile_flat,
    calls=1000,  # steps of one size, if all rounds so far had as many: compiling pays from there on
    part=1,  # sizes double: a wasted client costs less than another compilation
)


def take_steps(sim: Simulation, each: Pass, carry: Carry, here: Here, plan: BatchPlan) -> Carry:
    """All steps of a pass; on a GPU compiled once for every number of clients, and captured for each."""
    if here.key.is_cuda:
        return cuda_graphs.take_steps(sim, each, carry, here, plan, graph.make_step, inductor.body)
    return graph.take_steps(sim, each, carry, here, plan, ON_HOST)


COMPILED = Stacked("compiled", graph.apply, take_steps)

__all__ = ["COMPILED"]
