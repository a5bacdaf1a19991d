"""A function of a stack of clients as one list of operators for every number of clients.

The tracer follows a function at given sizes, and many rules of `vmap` want plain numbers, so the number of clients
cannot be a symbol there. So the function is followed twice, on tensors without content, at two primes that no other
size is likely to be. Both lists have the same operators; a number that differs between them must be a straight line in
the number of clients, and is written as one. Anything else is refused, and its owner goes on without (`Refused`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from posterity.engine.tracing.simplify import drop_views

PRIMES = (10007, 10009)  # clients
OTHERS = ((10037, 10061), (10039, 10067))  # other axes that are open, in order; no number may depend on them
aten: Any = torch.ops.aten


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


__all__ = ["Input", "Refused", "symbols", "trace_any"]
