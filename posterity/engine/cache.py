"""What CUDA graphs hold of a device: memory of their own, and places that all of them share.

A graph reads and writes where it did when it was captured. What goes in is copied there before every replay, and what
comes out is copied from there after it, so between two replays nothing is needed of it, and no two graphs run at once:
graphs whose inputs look alike have one place for them. With places of their own the recordings of GPFL held 11 GB for
the inputs of 150 clients of 4.6 MB.
"""

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from posterity.core.tree import Tree, tree_leaves, tree_named
from posterity.settings.names import engine_names


@dataclass
class Captures:
    """The memory that CUDA graphs hold besides what they work on, and the stream on which they are warmed up.

    PyTorch keeps what was freed on a stream for that stream: one of its own for every capture would hold its memory
    for ever.
    """

    bytes: int = 0
    allowed: int | None = None  # bytes, until all of them are forgotten
    overflows: int = 0  # how often that was
    pool: Any = None
    stream: Any = None
    places: dict[Hashable, Tensor] = field(default_factory=dict)  # that graphs share

    def placing(self, use: str) -> Callable[[Hashable, Callable[[], Tensor]], Tensor]:
        """For the tensors of one graph: the place of the next one of a kind; two that look alike have two.

        Who asks for a place fills it before every use: others have written there since.
        """
        met = Counter[Hashable]()

        def place(kind: Hashable, make: Callable[[], Tensor]) -> Tensor:
            met[kind] += 1
            key = (use, kind, met[kind])
            if key not in self.places:
                self.places[key] = made = make()
                self.bytes += made.nbytes
            return self.places[key]

        return place

    def places_like(self, use: str, leaves: Sequence[Tensor]) -> list[Tensor]:
        place = self.placing(use)
        return [place((leaf.device, leaf.dtype, leaf.shape, leaf.stride()), partial(torch.empty_like, leaf))
                for leaf in leaves]  # fmt: skip

    def forget(self) -> None:
        """Nothing is captured any more: who has a place still keeps it."""
        self.bytes, self.pool = 0, None
        self.places.clear()


MOST = 512  # functions and shapes remembered
PATIENCE = {"cpu": 200, "cuda": 2}  # calls before a recording: a trace costs about 50 calls, a capture about 3
COMPILER = 1200  # calls before the first recording of a process: PyTorch's tracer takes two seconds to import
OVERFLOWS = 3  # times that recordings did not fit, until somebody is told
Play = Callable[..., Tree]


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
            met = next((place for place, entry in self.found.items() if entry.value is None and not entry.made), None)
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

    def take_notes(self) -> list[str]:
        notes, self.notes[:] = self.notes.copy(), []
        return notes


def play(traces: TraceCache, owner: Any, key: Hashable, function: Play, *trees: Tree) -> Tree:
    """`function(*trees)`, replayed if it has been called often with these shapes. It may depend on nothing else."""
    leaves = tree_leaves(trees)
    if not leaves:
        return function(*trees)
    entry = traces.entry(owner, key, shape_of(trees))
    if entry.value is None and traces.pays(entry, leaves[0].device):
        record = recorder()
        if record is not None:
            entry.value, entry.holds = record(traces, function, _name_of(owner, key), *trees), True
    with torch.no_grad():
        return function(*trees) if entry.value is None else entry.value(*trees)


@cache
def recorder() -> Callable[..., Play] | None:
    """What records functions, found by its place: without `posterity/fast` all are called, with the same bits."""
    return import_module("posterity.fast._trace").recorded if "graph" in engine_names() else None


def _name_of(owner: Any, key: Hashable) -> str:
    what = key[0] if isinstance(key, tuple) else key
    return f"{getattr(owner, '__name__', type(owner).__name__)}.{what}"


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on a device, without waiting for what the device is doing."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
