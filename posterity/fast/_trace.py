"""Functions of trees recorded once and replayed: a flat list of operators on a CPU, a CUDA graph on a GPU.

Mapping a function over clients costs Python for every operator at every call: milliseconds where the arithmetic takes
microseconds. A recording has none of that. It computes the same operators on the same numbers, so its results have the
same bits; it is bound to the shapes that it was made with. Recording costs as much as many calls, so a function is
recorded when it has been called often enough with the same shapes (`PATIENCE` in `engine/cache.py`).

Mapping and differentiating leave many traces that compute nothing: views of a tensor as what it is, transposes of
transposes, constants made anew, the same mask twice. On small tensors each costs as much as a product of matrices, so
they are dropped (`simplify`); what is left gets the same numbers in the same layout. The steps of a loop write where
they read once nobody else needs what lies there (`record_steps`): written to new memory they would take a third longer.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.shape_prop import ShapeProp

from posterity.core.tree import Tree, tree_leaves, tree_map, tree_rebuilt
from posterity.engine.cache import Play, TraceCache

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
    found = {node: _value_layout(node.meta["val"]) for node in operators.graph.nodes if _lies(node)}
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
            self.found[n] = _value_layout(value)
        return value


def _value_layout(value: Tensor) -> Hashable:
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


WARM = 2  # calls before a capture: libraries allocate their workspaces in the first
Flat = Callable[..., list[Tensor]]


def recorded(traces: TraceCache, function: Play, name: str, *trees: Tree) -> Play:
    if not tree_leaves(trees)[0].is_cuda:
        return trace(function, *trees)
    try:
        return capture_call(traces, function, *trees)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # some solvers wait for the device and cannot be captured
        if name not in traces.refused:
            traces.refused.add(name)
            reason = str(error).partition("\n")[0]
            warnings.warn(f"{name} cannot be captured as a CUDA graph and is called as it is: {reason}", stacklevel=2)
        return function


def trace(function: Play, *trees: Tree) -> Play:
    """`function` as a flat list of operators."""
    flat, result = trace_flat(function, *trees)
    return lambda *trees: tree_rebuilt(result, flat(*tree_leaves(trees)))


def _interpreted(operators: Any, inputs: list[Tensor]) -> Flat:
    run: Flat = operators.forward
    return run


def trace_flat(
    function: Play, *trees: Tree, finish: Callable[[Any, list[Tensor]], Flat] = _interpreted
) -> tuple[Flat, Tree]:
    """`function` as operators on the list of all leaves, and a template of its result."""
    made: list[Tree] = []

    def flat(*leaves: Tensor) -> list[Tensor]:
        made.append(function(*tree_rebuilt(trees, leaves)))
        return [leaf.contiguous() for leaf in tree_leaves(made[-1])]  # results have the strides that inputs have

    # `detach` makes an object of its own for every leaf: the tracer takes one tensor at two places for one input
    inputs = [leaf.detach().contiguous() for leaf in tree_leaves(trees)]
    with tracing(TracingContext(FakeTensorMode())):  # notes shapes; without ours there is one for every operator
        operators = make_fx(flat)(*inputs)
    operators.graph.eliminate_dead_code()
    simplify(operators, inputs)
    operators.recompile()
    run = finish(operators, inputs)
    return run, tree_map(lambda leaf: None, made[0])


def capture(traces: TraceCache, body: Callable[[], Any]) -> Callable[[], None]:
    """`body`, which works on tensors that stay where they are, as a CUDA graph. It is also run to warm up."""
    held = traces.captures
    if held.allowed is not None and held.bytes > held.allowed:
        traces.overflow()
        torch.cuda.empty_cache()
    side = held.stream = held.stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            body()
    torch.cuda.current_stream().wait_stream(side)
    before = torch.cuda.memory_reserved()  # here: what warming up takes is cached, and can be given back
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The CUDA Graph is empty")  # what only hands on computes nothing
        with torch.cuda.graph(graph, pool=traces.pool()):
            body()
    held.bytes += max(0, torch.cuda.memory_reserved() - before)
    return graph.replay


def capture_call(traces: TraceCache, function: Play, *trees: Tree) -> Play:
    """`function` as a CUDA graph between fixed inputs and outputs, which are copied in and out."""
    inputs, result = traces.captures.places_like("input", tree_leaves(trees)), list[Tree]()
    fill(inputs, tree_leaves(trees))  # others have been there, and what is warmed up may look up rows by these numbers

    def body() -> None:
        made = function(*tree_rebuilt(trees, inputs))
        if not result:  # when it is called the first time, to warm up: in a capture a new tensor would be the graph's
            result.append(tree_rebuilt(made, traces.captures.places_like("result", tree_leaves(made))))
        fill(tree_leaves(result[0]), tree_leaves(made))

    replay = capture(traces, body)

    def call(*trees: Tree) -> Tree:
        fill(inputs, tree_leaves(trees))
        replay()
        made = tree_map(torch.empty_like, result[0])
        fill(tree_leaves(made), tree_leaves(result[0]))
        return made

    return call


def fill(places: list[Tensor], values: list[Tensor]) -> None:
    """Copy `values` into `places`, all of one type in few launches."""
    kinds: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for place, value in zip(places, values, strict=True):
        some = kinds.setdefault(place.dtype, ([], []))
        some[0].append(place)
        some[1].append(value)
    for some in kinds.values():
        torch._foreach_copy_(*some)
