"""Recorded operators that write where they read, once nobody else needs what lies there: the same bits, less memory.

A step replaces all parameters. Written to new memory, every number is read, computed and written somewhere else, which
takes a third longer than in place; on a CPU that is a part of every step that can be measured.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.passes.shape_prop import ShapeProp

from posterity.core.tree import Tree
from posterity.engine.tracing.trace import Flat, trace_flat

aten: Any = torch.ops.aten
IN_PLACE = {
    aten.add.Tensor: aten.add_.Tensor,
    aten.sub.Tensor: aten.sub_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
    aten.div.Tensor: aten.div_.Tensor,
}
LEAST = 2**12  # numbers of a leaf that is worth it


@dataclass(frozen=True)
class Steps:
    """A recorded step: `first` leaves its inputs alone, `later` may write to leaves that a step before it has made."""

    first: Flat
    later: Flat
    result: Tree  # template

    def take(self, constant: list[Tensor], moments: Sequence[tuple[Tensor, ...]], leaves: list[Tensor]) -> list[Tensor]:
        """All steps, each on the leaves that the one before has left."""
        run = self.first
        for moment in moments:
            leaves, run = run(*constant, *moment, *leaves), self.later
        return leaves


def record_steps(step: Callable[..., Tree], *first: Tree) -> Steps:
    """`step` as operators on the list of all leaves; the last trees are what it returns anew."""
    made: list[Flat] = []

    def finish(operators: fx.GraphModule, inputs: list[Tensor]) -> Flat:
        made.append(_reusing(operators, inputs))
        run: Flat = operators.forward
        return run

    run, result = trace_flat(step, *first, finish=finish)
    return Steps(run, made[0], result)


def _reusing(operators: fx.GraphModule, inputs: list[Tensor]) -> Flat:
    """`operators` that may write to those of their last inputs that they make themselves."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(operators.graph, {}))
    copy = fx.GraphModule(operators, graph)
    with torch.no_grad():
        ShapeProp(copy).propagate(*inputs)
    ground = _Ground(copy.graph)
    for node in list(copy.graph.nodes):
        if node.target in IN_PLACE and ground.may_write(node):
            node.target = IN_PLACE[node.target]
            ground.base[node] = ground.base[node.args[0]]
    copy.recompile()
    run: Flat = copy.forward
    return run


class _Ground:
    """Whose memory every tensor of a graph lies in."""

    def __init__(self, graph: fx.Graph) -> None:
        self.place = {node: i for i, node in enumerate(graph.nodes)}
        self.base: dict[fx.Node, fx.Node] = {}
        for node in graph.nodes:
            source = node.args[0] if node.args else None
            self.base[node] = self.base[source] if isinstance(source, fx.Node) and _shares(node) else node
        leaves = [node for node in graph.nodes if node.op == "placeholder"]
        results: Any = graph.output_node().args[0]
        given = [self.base[node] for node in results]
        self.free = {node for node in graph.nodes if node.op == "call_function"}
        for leaf, result, base in zip(leaves[-len(results) :], results, given, strict=False):
            if result is base and base.op == "call_function" and given.count(base) == 1:
                self.free.add(leaf)  # the step before has made it, and has made it for this place alone

    def may_write(self, node: fx.Node) -> bool:
        """Whether `node` may write to its first argument: of the right layout, and never looked at again."""
        target, layout = node.args[0], _layout(node)
        if layout is None or not isinstance(target, fx.Node) or _layout(target) != layout:
            return False
        base = self.base[target]
        if base not in self.free or any(self.base[arg] is base for arg in node.args[1:] if isinstance(arg, fx.Node)):
            return False
        users = (user for owner, root in self.base.items() if root is base for user in owner.users)
        return all(self.place[user] < self.place[node] or user is node for user in users)


def _shares(node: fx.Node) -> bool:
    """Whether `node` gives a view of its first argument."""
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and _shares(source)
    if node.target is aten._unsafe_view.default:  # its schema does not say so
        return True
    known = isinstance(node.target, torch._ops.OpOverload)
    return known and any(value.alias_info is not None for value in node.target._schema.returns)  # type: ignore[union-attr]


def _layout(node: fx.Node) -> Any:
    """Shape, strides and type of a large tensor that lies densely; None for any other."""
    meta: Any = node.meta.get("tensor_meta")
    if not hasattr(meta, "stride") or meta.shape.numel() < LEAST or meta.memory_format is not torch.contiguous_format:
        return None
    return meta.shape, meta.stride, meta.dtype


__all__ = ["Steps", "record_steps"]
