"""`graph`, whose steps are compiled to machine code by PyTorch's inductor: for long runs.

Compiling a step takes tens of seconds the first time (PyTorch keeps the result on disk) and needs a C++ compiler, on a
GPU Triton; the step is then several times faster than its list of operators on a CPU, and on a GPU faster where much is
elementwise. Fused sums round in another order, so results agree with the other engines to rounding, not to the last
bit. Which steps are compiled depends on the round (on a CPU) or on nothing (on a GPU), and not on what a process has
done before: a resumed run has the bits of one that was not interrupted.

On a GPU a step is compiled once for every number of clients, with everything around it: which rows, masks and keys are
next, who has finished, the new values put in the place of the old. Inductor fuses elementwise operators into few
kernels that write in place. Two kinds of matrix products are taken from the library first: sums of few terms, such as a
fully connected layer's gradient over a batch, become elementwise, so that a gradient is formed where it is used and
never written; few rows times a matrix are a kernel of our own (`nn/kernels/products.py`). A sum over all parameters of
a client, such as a distance, becomes two: inductor fuses it with the update of the same parameters, and a single sum
would leave that to one block of threads a client.

The tracer follows a function at given sizes, and many rules of `vmap` want plain numbers, so the number of clients
cannot be a symbol there. So the function is followed twice, on tensors without content, at two primes that no other
size is likely to be. Both lists have the same operators; a number that differs between them must be a straight line in
the number of clients, and is written as one. Anything else is refused, and the step goes on as it was (`Refused`).
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from posterity.core.protocol import Carry, Here, Pass
from posterity.core.tree import Tree, tree_leaves, tree_rebuilt, tree_rows
from posterity.engine.batches import BatchPlan
from posterity.engine.cache import Play, Same, shape_of
from posterity.engine.engines import Stacked
from posterity.engine.simulation import Simulation
from posterity.fast import _cuda_graphs as cuda_graphs
from posterity.fast import graph
from posterity.fast._cuda_graphs import EXACT, MakeStep, StaticBuffers
from posterity.fast._trace import Flat, drop_views, trace_flat

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
        from posterity.nn.kernels import products as _products  # Triton is imported here, where it is used

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


PRIMES = (10007, 10009)  # clients
OTHERS = ((10037, 10061), (10039, 10067))  # other axes that are open, in order; no number may depend on them


class Refused(Exception):
    """The operators of a function depend on the number of clients in a way that cannot be written down."""


@dataclass(frozen=True)
class Input:
    """A tensor and how many of its first axes have an open length: 0, 1 = clients, 2 = axes of a table."""

    tensor: Tensor
    open: int = 0

    def shape(self, clients: Any, others: Sequence[Any]) -> tuple[Any, ...]:
        """Its shape for so many clients."""
        front = (clients,) if self.open == 1 else tuple(others[: self.open])
        return (*front, *self.tensor.shape[self.open :])


def trace_any(
    function: Callable[..., list[Tensor]], inputs: list[Input], others: dict[Any, Callable[..., Any]] | None = None
) -> fx.GraphModule:
    """`function(*tensors)` as operators for any number of clients; at least one input has an axis of clients.

    `others` are functions to be followed instead of operators, unless they return NotImplemented.
    """
    made = []
    for number, clients in enumerate(PRIMES):
        empty = _empty(inputs, clients, [pair[number] for pair in OTHERS])
        with torch.no_grad():
            made.append(make_fx(function, decomposition_table=others)(*empty))
        drop_views(made[-1])
    return _merged(made[0], made[1], [each.open for each in inputs].index(1))


def symbols(inputs: list[Input], hint: int) -> list[Tensor]:
    """Tensors without content whose open axes are symbols; `hint` clients are what a compiler should think of.

    It is the most that there will be: compilers choose the width of their indices by it. An odd number is added, lest
    it be taken for another axis that is just as long.
    """
    from torch._dynamo.source import ConstantSource
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    shapes = ShapeEnv()
    sizes = []
    for name, value in (("clients", hint + 3), ("length", 2 * hint + 101), ("seats", 2 * hint + 103)):
        source = ConstantSource(name)
        symbol = shapes.create_symbol(value, source, dynamic_dim=DimDynamic.DYNAMIC)
        sizes.append(shapes.create_symintnode(symbol, hint=value, source=source))
    with FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True):
        return [_like(each, each.shape(sizes[0], sizes[1:])) for each in inputs]


def _empty(inputs: list[Input], clients: int, others: list[int]) -> list[Tensor]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        return [_like(each, each.shape(clients, others)) for each in inputs]


def _like(each: Input, shape: tuple[Any, ...]) -> Tensor:
    """Without content; it lies in memory as the tensor does, or in one piece where an axis is open."""
    steps, kind, device = each.tensor.stride(), each.tensor.dtype, each.tensor.device
    if each.open:
        return torch.empty(shape, dtype=kind, device=device)
    return torch.empty_strided(shape, steps, dtype=kind, device=device)


def _merged(first: fx.GraphModule, second: fx.GraphModule, counted: int) -> fx.GraphModule:
    """One list from two; placeholder `counted` has the clients in front."""
    pairs = list(zip(first.graph.nodes, second.graph.nodes, strict=False))
    if len(first.graph.nodes) != len(second.graph.nodes) or any(_kind(a) != _kind(b) for a, b in pairs):
        raise Refused(f"there are other operators for other numbers of clients: {_where_apart(pairs)}")
    graph, known = fx.Graph(first), dict[fx.Node, fx.Node]()
    twins = {b: a for a, b in pairs}
    holders = [node for node in first.graph.nodes if node.op == "placeholder"]
    lines = _Lines(graph, known, twins)
    for node, other in pairs:
        if node.op == "placeholder":
            known[node] = graph.node_copy(node, known.__getitem__)
            if node is holders[-1]:
                lines.count = graph.call_function(aten.sym_size.int, (known[holders[counted]], 0))
            continue
        args, kwargs = lines.merged((node.args, node.kwargs), (other.args, other.kwargs))
        known[node] = graph.create_node(node.op, node.target, args, kwargs, node.name)
    graph.eliminate_dead_code()
    return fx.GraphModule(first, graph)


def _kind(node: fx.Node) -> tuple[str, Any]:
    return node.op, node.name if node.op == "placeholder" else node.target


def _where_apart(pairs: list[tuple[fx.Node, fx.Node]]) -> str:
    """The first place at which two lists have other operators, for whoever looks for the reason."""
    for place, (a, b) in enumerate(pairs):
        if _kind(a) != _kind(b):
            return f"number {place} is {a.target} for {PRIMES[0]} and {b.target} for {PRIMES[1]}"
    return f"they are the same up to number {len(pairs) - 1}, where one list ends"


@dataclass
class _Lines:
    """Arguments of two lists as arguments of one: what differs becomes a line in `count`."""

    graph: fx.Graph
    known: dict[fx.Node, fx.Node]  # of the first list -> of the new one
    twins: dict[fx.Node, fx.Node]  # of the second list -> of the first one
    count: fx.Node | None = None

    def merged(self, a: Any, b: Any) -> Any:
        if isinstance(a, fx.Node):
            if self.twins.get(b) is not a:
                raise Refused("operators have other operands for other numbers of clients")
            return self.known[a]
        if isinstance(a, (list, tuple)) and type(a) is type(b) and len(a) == len(b):
            return type(a)([self.merged(x, y) for x, y in zip(a, b, strict=True)])
        if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
            return {key: self.merged(value, b[key]) for key, value in a.items()}
        if isinstance(a, slice) and isinstance(b, slice):
            return slice(*(self.merged(getattr(a, n), getattr(b, n)) for n in ("start", "stop", "step")))
        if type(a) is int and type(b) is int and a != b:
            return self._line(a, b)
        if type(a) is not type(b) or (a != b and not (a != a and b != b)):  # NaN is the same NaN
            raise Refused(f"{a!r} becomes {b!r} for another number of clients")
        return a

    def _line(self, a: int, b: int) -> fx.Node:
        slope, rest = divmod(b - a, PRIMES[1] - PRIMES[0])
        offset = a - slope * PRIMES[0]
        if rest or abs(offset) >= PRIMES[0] or self.count is None:  # a square would look like a line with a huge offset
            raise Refused(f"{a} and {b} are no line in the number of clients")
        scaled = self.count if slope == 1 else self.graph.call_function(operator.mul, (self.count, slope))
        return scaled if offset == 0 else self.graph.call_function(operator.add, (scaled, offset))


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


def _compiled(operators: Any, inputs: list[Tensor]) -> Flat:
    run: Flat = compile_operators(operators, list[Any](inputs))
    return run


def compile_flat(function: Play, *trees: Tree) -> tuple[Flat, Tree]:
    """`trace_flat`, compiled to machine code: its sums may be rounded in another order."""
    return trace_flat(function, *trees, finish=_compiled)


ON_HOST = graph.StepCompiler(
    compile_flat,
    calls=1000,  # steps of one size, if all rounds so far had as many: compiling pays from there on
    part=1,  # sizes double: a wasted client costs less than another compilation
)


def take_steps(sim: Simulation, each: Pass, carry: Carry, here: Here, plan: BatchPlan) -> Carry:
    """All steps of a pass; on a GPU compiled once for every number of clients, and captured for each."""
    if here.key.is_cuda:
        return cuda_graphs.take_steps(sim, each, carry, here, plan, graph.make_step, body)
    return graph.take_steps(sim, each, carry, here, plan, ON_HOST)


engine = Stacked("compiled", graph.apply, take_steps)
