"""Fewer operators for the same bits: a recorded list without those that do nothing or have been done before.

Mapping and differentiating leave many traces that compute nothing: views of a tensor as what it is, transposes of
transposes, constants made anew, the same mask twice. On small tensors each costs as much as a product of matrices. What
is left gets the same numbers in the same layout, so no result can change.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor, fx

aten: Any = torch.ops.aten
VIEWS = {aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.permute.default, aten.detach.default,
         aten.reshape.default, aten.alias.default}  # fmt: skip
TURNS = {aten.transpose.int, aten.t.default}  # done twice, they undo themselves
CONSTANTS = {aten.scalar_tensor.default, aten.arange.default, aten.arange.start, aten.full.default, aten.zeros.default,
             aten.ones.default}  # fmt: skip


def simplify(operators: fx.GraphModule, inputs: list[Tensor]) -> None:
    """Drop from `operators`, which were recorded on `inputs`, whatever changes nothing."""
    calls = [node for node in operators.graph.nodes if node.op == "call_function"]
    if any(_fickle(node.target) for node in calls):
        return  # then two equal calls may differ
    _hold_constants(operators, calls)
    laid = _Layouts(operators)
    with torch.no_grad():
        laid.run(*inputs)
    seen: dict[Hashable, fx.Node] = {}
    for node in list(operators.graph.nodes):
        other = _same(node, laid.found) if node.op == "call_function" else None
        if other is None and node.op == "call_function":
            other = seen.setdefault(_key(node), node)
        if other is not None and other is not node:
            node.replace_all_uses_with(other)
            operators.graph.erase_node(node)
    operators.graph.eliminate_dead_code()


def drop_views(operators: fx.GraphModule) -> None:
    """Drop views that give a tensor as it is, from operators that were recorded on tensors without content.

    Unlike `simplify`, it may be used where operators write to their arguments: a view is what it is a view of.
    """
    found = {node: _layout(node.meta["val"]) for node in operators.graph.nodes if _lies(node)}
    for node in list(operators.graph.nodes):
        other = _same(node, found) if node.op == "call_function" and node.target is not aten.mul.Scalar else None
        if other is not None:
            node.replace_all_uses_with(other)
            operators.graph.erase_node(node)
    operators.graph.eliminate_dead_code()


class _Layouts(fx.Interpreter):
    """A run of the operators that notes how every tensor lies in memory."""

    def __init__(self, operators: fx.GraphModule) -> None:
        super().__init__(operators)
        self.found: dict[fx.Node, Hashable] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self.found[n] = _layout(value)
        return value


def _layout(value: Tensor) -> Hashable:
    return (value.shape, value.stride(), value.dtype)


def _lies(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor)


def _same(node: fx.Node, layouts: dict[fx.Node, Hashable]) -> fx.Node | None:
    """The node whose tensor `node` gives as it is, if so."""
    source = node.args[0] if node.args else None
    if not isinstance(source, fx.Node) or source not in layouts:
        return None
    once = node.target is aten.mul.Scalar and node.args[1] == 1
    if (node.target in VIEWS or once) and layouts.get(node) == layouts[source]:
        return source
    first = source.args[0] if source.args else None
    twice = node.target in TURNS and source.target is node.target and {*node.args[1:]} == {*source.args[1:]}
    return first if twice and isinstance(first, fx.Node) else None


def _hold_constants(operators: fx.GraphModule, calls: list[fx.Node]) -> None:
    """Tensors that depend on no input are made once, unless they are given away: their owner may write to them."""
    free = [n for n in calls if n.target in CONSTANTS and not n.all_input_nodes and not any(map(_shows, n.users))]
    for number, node in enumerate(free):
        name = f"constant_{number}"
        operators.register_buffer(name, node.target(*node.args, **node.kwargs))  # type: ignore[operator]
        with operators.graph.inserting_before(node):
            held = operators.graph.get_attr(name)
        node.replace_all_uses_with(held)
        operators.graph.erase_node(node)


def _shows(user: fx.Node) -> bool:
    """Whether `user` hands a tensor on instead of computing with it."""
    if not isinstance(user.target, torch._ops.OpOverload):
        return True
    return any(value.alias_info is not None for value in user.target._schema.returns)


def _fickle(target: Any) -> bool:
    """Whether an operator writes to its arguments or draws random numbers."""
    known = isinstance(target, torch._ops.OpOverload)
    return known and (target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags)


def _key(node: fx.Node) -> Hashable:
    """Equal for two calls that compute the same."""
    return (node.target, _frozen(node.args), _frozen(node.kwargs))


def _frozen(value: Any) -> Hashable:
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *(_frozen(v) for v in value))
    if isinstance(value, dict):
        return tuple((k, _frozen(v)) for k, v in sorted(value.items()))
    return (type(value).__name__, value) if isinstance(value, Hashable) else id(value)


__all__ = ["drop_views", "simplify"]
