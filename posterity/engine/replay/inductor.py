"""The steps of a pass on a GPU, compiled by PyTorch's inductor: once for every number of clients.

A step's operators are written down for any number of clients (`symbolic.py`), with everything around them: which rows,
masks and keys are next, who has finished, the new values put in the place of the old. Inductor fuses elementwise
operators into few kernels that write in place. Two kinds of matrix products are taken from the library first: sums of
few terms, such as a fully connected layer's gradient over a batch, become elementwise, so that a gradient is formed
where it is used and never written; few rows times a matrix are a kernel of our own (`_products.py`). A sum over all
parameters of a client, such as a distance, becomes two: inductor fuses it with the update of the same parameters, and
a single sum would leave that to one block of threads a client.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from posterity.core.protocol import Carry, Here, Pass
from posterity.core.tree import Tree, tree_leaves, tree_rebuilt, tree_rows
from posterity.engine.replay import cuda_graphs
from posterity.engine.replay.cuda_graphs import EXACT, MakeStep, StaticBuffers
from posterity.engine.simulation import Simulation
from posterity.engine.tracing.dynamic_shapes import Input, Refused, symbols, trace_any
from posterity.engine.tracing.machine_code import Run, compile_operators
from posterity.engine.tracing.trace import Same, shape_of

FEW = 16  # terms of a sum that is formed where it is used
MANY, PART = 1 << 13, 64  # terms of a sum that is made of partial ones, and of those at least
ROWS, KINDS = 32, (torch.float32, torch.bfloat16, torch.float16)  # of products by a kernel of our own, at most
aten: Any = torch.ops.aten
OPTIONS = {
    "deterministic": True,  # no choice by timing: it would change how sums are cut, and so their bits
    "unroll_reductions_threshold": FEW + 1,
    "assert_indirect_indexing": False,  # rows come from the plan
    "size_asserts": True,  # a compiler that needs to know the number of clients takes the hint for it
    "shape_padding": False,
}


def body(
    sim: Simulation, each: Pass, here: Here, static: StaticBuffers, size: int, make: MakeStep
) -> Callable[[], None]:
    """A step of the first `size` clients of a seat; not compiled if it cannot be."""
    held = not static.exact
    fixed = (static.shared, here.initial, static.round, sim.federation.x, sim.federation.y)
    tables = (static.rows, static.real, static.keys)
    stacks = (tree_rows(static.mine, slice(size)), tree_rows(static.carry, slice(size)))
    trees = (fixed, static.slot, static.offset, tables, stacks)
    most = max(EXACT, 1 << (len(static.rows[0]) - 1).bit_length())  # a few compilations serve all seats
    shapes = shape_of((fixed, tree_rows((static.mine, static.carry), 0)))
    key, step = ("fused", Same(here.model), most, held, static.rows.shape[-1], shapes), make(sim, each, here)
    run = sim.traces.once(each, key, lambda: _compile(step, held, trees, most))
    leaves = tree_leaves(trees)
    return cuda_graphs.body(sim, each, here, static, size, make) if run is None else lambda: run(*leaves)


def _compile(function: Callable[..., Carry], held: bool, trees: Tree, most: int) -> Run | None:
    """`_advance`, for any number of clients up to `most`."""
    fixed, slot, offset, tables, stacks = trees
    inputs = [Input(leaf) for leaf in tree_leaves((fixed, slot, offset))]
    inputs += [Input(leaf, 2) for leaf in tables] + [Input(leaf, 1) for leaf in tree_leaves(stacks)]

    def flat(*leaves: Tensor) -> list[Tensor]:
        _advance(function, held, *tree_rebuilt(trees, leaves))
        return []

    try:
        operators = trace_any(flat, inputs, INSTEAD)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hints for those who write compilers
            run = compile_operators(operators, list[Any](symbols(inputs, most)), OPTIONS)
        run(*tree_leaves(trees))  # nothing is in its place yet; fails if it would for this number of clients
    except torch.OutOfMemoryError:
        raise
    except (Refused, RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0] or f"{type(error).__name__} in PyTorch's compiler"
        warnings.warn(f"this step cannot be compiled and is replayed as it is: {reason}", stacklevel=2)
        return None
    finally:
        slot.zero_()
    return run


def _advance(
    function: Callable[..., Carry], held: bool, fixed: Tree, slot: Tensor, offset: Tensor, tables: Tree, stacks: Tree
) -> None:
    """One step, in place: the values in `stacks` become those after it, and `slot` points to the next."""
    mine, carry = stacks
    who = torch.arange(len(mine["client"]), device=slot.device)
    rows, real, keys = (table[slot[None], who] for table in tables)
    step = slot + offset
    places, values = tree_leaves(carry), tree_leaves(function(fixed, mine, rows, real, keys, step, carry))
    live = step < mine["steps"]
    moved = [(p, v.clone()) for p, v in zip(places, values, strict=True) if not _same(p, v)]  # no value is a place
    for place, value in moved:
        place.copy_(torch.where(live.reshape(-1, *[1] * (place.dim() - 1)), value, place) if held else value)
    slot.add_(1)


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same numbers in memory."""
    near = a.untyped_storage()._cdata == b.untyped_storage()._cdata and a.storage_offset() == b.storage_offset()
    return near and a.shape == b.shape and a.stride() == b.stride()


def multiply(a: Tensor, b: Tensor) -> Any:
    """`torch.bmm` of a (n, M, K) and b (n, K, N), where there is a better way."""
    rows, inner = a.shape[1:]
    if inner <= FEW:
        return (_held(a)[:, :, :, None] * _held(b)[:, None]).sum(2)
    if rows <= ROWS and a.is_cuda and a.dtype in KINDS and find_spec("triton") is not None:
        from posterity.engine.replay import _products  # Triton is imported here, where it is used

        return _products.strips(_held(a), _held(b))
    return NotImplemented


def add_up(x: Tensor, dims: list[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """`x.sum(dims)` of many terms: sums over the last of these axes, and their sum."""
    outer, inner = sorted(axis % x.dim() for axis in dims or ()), list[int]()
    if math.prod(x.shape[axis] for axis in outer) < MANY:
        return NotImplemented
    if len(outer) == 1:
        return _unflattened(x, outer[0], keepdim, dtype)
    while outer and math.prod(x.shape[axis] for axis in inner) < PART:
        inner.insert(0, outer.pop())
    if not outer:
        return NotImplemented  # one of them is nearly all of it
    sums = x.sum(inner, keepdim=True, dtype=dtype).sum(outer, keepdim=True, dtype=dtype)
    return sums if keepdim else sums.squeeze([*outer, *inner])


def _unflattened(x: Tensor, axis: int, keepdim: bool, dtype: torch.dtype | None) -> Any:
    """The sum over one long axis as one over two."""
    length = x.shape[axis]
    rows = max(n for n in range(1, math.isqrt(length) + 1) if length % n == 0)
    if rows < PART:
        return NotImplemented  # a prime, or nearly one
    parts = x.reshape(*x.shape[:axis], rows, length // rows, *x.shape[axis + 1 :])
    total = parts.sum([axis, axis + 1], dtype=dtype)
    return total.unsqueeze(axis) if keepdim else total


def average(x: Tensor, dims: list[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """`x.mean(dims)` of many terms."""
    total = add_up(x, dims, keepdim, dtype=dtype)
    return total if total is NotImplemented else total / math.prod(x.shape[axis] for axis in dims or ())


INSTEAD: dict[Any, Callable[..., Any]] = {
    aten.bmm.default: multiply,
    aten.sum.dim_IntList: add_up,
    aten.mean.dim: average,
}


def _held(tensor: Tensor) -> Tensor:
    """`tensor` in memory as it lies: inductor would else compute it anew for every number that it is used for."""
    from torch._inductor import inductor_prims

    if tensor.mT.is_contiguous() and not tensor.is_contiguous():
        return _held(tensor.mT).mT  # the same as what it is a view of, which may be held too
    size = 1
    for step, length in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if length > 1 and step != size:
            return tensor  # a part of something, or the same for all clients
        size *= length
    held: Tensor = inductor_prims.force_stride_order(tensor, tensor.stride())
    return held


__all__ = ["body"]
