"""Functions of trees recorded once and replayed: a flat list of operators on a CPU, a CUDA graph on a GPU.

Mapping a function over clients costs Python for every operator at every call: milliseconds where the arithmetic takes
microseconds. A recording has none of that. It computes the same operators on the same numbers, so its results have the
same bits; it is bound to the shapes that it was made with. Recording costs as much as many calls, so a function is
recorded when it has been called often enough with the same shapes (`PATIENCE`).
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from posterity.core.tree import Tree, tree_leaves, tree_map, tree_named, tree_rebuilt
from posterity.engine.tracing.captures import Captures
from posterity.engine.tracing.machine_code import compile_operators
from posterity.engine.tracing.simplify import simplify

MOST = 512  # functions and shapes remembered
PATIENCE = {"cpu": 200, "cuda": 2}  # calls before a recording: a trace costs about 50 calls, a capture about 3
COMPILER = 1200  # calls before the first recording of a process: PyTorch's tracer takes two seconds to import
OVERFLOWS = 3  # times that recordings did not fit, until somebody is told
WARM = 2  # calls before a capture: libraries allocate their workspaces in the first
Play = Callable[..., Tree]
Flat = Callable[..., list[Tensor]]


def shape_of(tree: Tree) -> Hashable:
    """Names, shapes and types of the leaves: what a recording is bound to."""
    return tuple((name, leaf.shape, leaf.dtype) for name, leaf in tree_named(tree))


class Same:
    """A key that equals itself for the same object alone; it keeps the object, so that no other can take its place."""

    __slots__ = ("it",)

    def __init__(self, it: Any) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.it is other.it

    def __hash__(self) -> int:
        return object.__hash__(self.it)


@dataclass
class TraceEntry:
    """A function met so far: how often, and its recording once there is one."""

    value: Any = None
    calls: int = 0
    made: bool = False  # whether the value is what `once` made, even if that is None
    holds: bool = False  # memory of a device


@dataclass(frozen=True)
class TraceCache:
    """What has been met and recorded; `patience` overrides how many calls go before a recording."""

    patience: int | None = None
    found: dict[Hashable, TraceEntry] = field(default_factory=dict)
    captures: Captures = field(default_factory=Captures)
    met: TraceEntry = field(default_factory=TraceEntry)  # all calls, of whatever function
    refused: set[str] = field(default_factory=set)  # names of functions that could not be captured, each told once
    notes: list[str] = field(default_factory=list)  # what is to be said

    def entry(self, owner: Any, *key: Hashable) -> TraceEntry:
        """The entry of `key` that belongs to the object `owner`."""
        place = (Same(owner), *key)
        entry = self.found.pop(place, None)
        if entry is None:
            self._make_room()
            entry = TraceEntry()
        self.found[place] = entry  # the last used is the last
        return entry

    def _make_room(self) -> None:
        """Forget what was only met, then what was not used for longest: some shapes are new in every round."""
        while len(self.found) >= MOST:
            met = next((place for place, entry in self.found.items() if _only_met(entry)), None)
            self.found.pop(next(iter(self.found)) if met is None else met)

    def once(self, owner: Any, key: Hashable, make: Callable[[], Any], holds: bool = False) -> Any:
        """What `make` gave at the first call; `holds`: it has memory of a device."""
        entry = self.entry(owner, key)
        if not entry.made:
            entry.value, entry.made, entry.holds = make(), True, holds
        return entry.value

    def pays(self, entry: TraceEntry, device: torch.device, calls: int = 1, usual: int | None = None) -> bool:
        """Whether a function about to be called `calls` times should be recorded first."""
        entry.calls += calls
        self.met.calls += calls
        if self.patience is not None:
            return entry.calls > self.patience
        if device.type == "cpu" and "torch._dynamo" not in sys.modules and self.met.calls <= COMPILER:
            return False
        return entry.calls > (PATIENCE.get(device.type, PATIENCE["cpu"]) if usual is None else usual)

    def pool(self) -> Any:
        """The memory that all captures share: no two of them run at once."""
        if self.captures.pool is None:
            self.captures.pool = torch.cuda.graph_pool_handle()
        return self.captures.pool

    def forget(self) -> None:
        """Drop every recording that holds memory, to be made again where it is needed; compiled code holds none."""
        for place in [place for place, entry in self.found.items() if entry.holds]:
            del self.found[place]
        self.captures.forget()

    def overflow(self) -> None:
        """Recordings do not fit: forget them; once it has been so often that it will go on, there is a note."""
        self.forget()
        self.captures.overflows += 1
        if self.captures.overflows == OVERFLOWS:
            self.notes.append(
                f"recordings take more than half of --memory ({2 * (self.captures.allowed or 0):,} bytes): they are "
                "forgotten and made again all the time, which makes rounds several times as long; allow more, or run "
                "fewer programs or seeds at once")  # fmt: skip

    def told(self) -> list[str]:
        """The notes since the last call."""
        notes, self.notes[:] = self.notes.copy(), []
        return notes


def _only_met(entry: TraceEntry) -> bool:
    return entry.value is None and not entry.made


def play(traces: TraceCache, owner: Any, key: Hashable, function: Play, *trees: Tree) -> Tree:
    """`function(*trees)`, replayed if it has been called often with these shapes. It may depend on nothing else."""
    leaves = tree_leaves(trees)
    if not leaves:
        return function(*trees)
    entry = traces.entry(owner, key, shape_of(trees))
    if entry.value is None and traces.pays(entry, leaves[0].device):
        entry.value, entry.holds = _recorded(traces, function, _name_of(owner, key), *trees), True
    with torch.no_grad():
        return function(*trees) if entry.value is None else entry.value(*trees)


def _recorded(traces: TraceCache, function: Play, name: str, *trees: Tree) -> Play:
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


def _name_of(owner: Any, key: Hashable) -> str:
    """A function as a message calls it: whose it is, and its name."""
    what = key[0] if isinstance(key, tuple) else key
    return f"{getattr(owner, '__name__', type(owner).__name__)}.{what}"


def trace(function: Play, *trees: Tree) -> Play:
    """`function` as a flat list of operators."""
    flat, result = trace_flat(function, *trees)
    return lambda *trees: tree_rebuilt(result, flat(*tree_leaves(trees)))


def _interpreted(operators: Any, inputs: list[Tensor]) -> Flat:
    run: Flat = operators.forward
    return run


def _compiled(operators: Any, inputs: list[Tensor]) -> Flat:
    run: Flat = compile_operators(operators, list[Any](inputs))
    return run


def compile_flat(function: Play, *trees: Tree) -> tuple[Flat, Tree]:
    """`trace_flat`, compiled to machine code: its sums may be rounded in another order."""
    return trace_flat(function, *trees, finish=_compiled)


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


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device, without waiting for what the device is doing."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def fill(places: list[Tensor], values: list[Tensor]) -> None:
    """Copy `values` into `places`, all of one type in few launches."""
    kinds: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
    for place, value in zip(places, values, strict=True):
        some = kinds.setdefault(place.dtype, ([], []))
        some[0].append(place)
        some[1].append(value)
    for some in kinds.values():
        torch._foreach_copy_(*some)


__all__ = [
    "WARM",
    "Flat",
    "Play",
    "Same",
    "TraceCache",
    "capture",
    "compile_flat",
    "fill",
    "play",
    "send",
    "shape_of",
    "trace_flat",
]
