"""Trees as bytes and back: what a server offers, what a client sends. No pickle; no network either.

A tree becomes named arrays, which lie one after the other behind a header that lists them:

    "PSTY"  version (1 byte)  length of the header (4 bytes)  header (JSON)  payload

The header has a fingerprint of what both sides agreed on, facts (a JSON object, anything small) and the name, type and
shape of every array. The payload has no gaps and is little-endian. Its length is what the simulator counts
(`wire_bytes`); the header is not counted, nor are leaves that travel for scoring alone (`complete`).

Whoever reads has a template: a tree of the same kinds, names, shapes and types. Everything that arrives is held against
it (types, shapes, finite, within the range that a `Sum` declares, in nobody else's name); what is wrong is named in a
`CodecError`, and nothing else is ever raised for bytes, whoever made them. `Sparse` leaves numbers out, which are then
the template's; a kind may also have a form of its own on the wire (`to_arrays` and `from_arrays`).
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posterity.core.messages import Bag, Mean, Moments, Offer, Rows, Sparse, Sum, packed, unpacked
from posterity.core.tree import Tree, is_node, tree_leaves, tree_named, tree_parts, tree_with_parts

MAGIC, SCHEMA = b"PSTY", 1
START = struct.Struct("<4sBI")  # magic, version, length of the header
HEADER = 2**26  # bytes of a header at most
NAMES = {
    dtype: str(dtype).removeprefix("torch.")
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
                  torch.int8, torch.uint8, torch.bool)
}  # fmt: skip
DTYPES = {name: dtype for dtype, name in NAMES.items()}
Place = tuple[torch.dtype, tuple[int, ...], int]  # type, shape, and where it begins in the payload
Keep = Mapping[str, Tensor | None]  # leaves of which not everything travels, by name; None: nothing does


class CodecError(ValueError):
    """Bytes that are not what was expected; the message says what is wrong with them."""


def fingerprint(agreed: Any, *trees: Tree) -> str:
    """Of anything that JSON can hold and of the names, types and shapes of some trees."""
    shapes = [[(name, NAMES[leaf.dtype], list(leaf.shape)) for name, leaf in tree_named(tree)] for tree in trees]
    text = json.dumps([SCHEMA, agreed, shapes], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def encode(tree: Tree, agreed: str = "", facts: Mapping[str, Any] | None = None, complete: bool = False) -> bytes:
    """A tree, and facts beside it, as bytes; `agreed` is the fingerprint that the reader has too.

    With `complete`, leaves that `Sparse` says never travel do: an offer that is to be scored as well.
    """
    writer = _Writer(complete)
    writer.walk(tree, "", {})
    return join_arrays(writer.arrays, agreed, facts or {}, complete)


def decode(data: bytes, template: Tree, agreed: str = "", finite: bool = True) -> Tree:
    """The tree that `encode` was given, in the shape of `template`, checked; numbers left out are the template's."""
    header = read_header(data, agreed)
    reader = _Reader(data, header, finite)
    try:
        tree = reader.walk(template, "", {})
    except CodecError:
        raise
    except ValueError as error:  # of a kind's own form
        raise CodecError(f"{error}; expected what its kind says") from None
    for name in header.arrays.keys() - reader.taken:
        raise CodecError(
            f"{quoted(name)} is not expected; expected are {', '.join(n for n, _ in tree_named(template))}"
        )
    return tree


# --- what travels of a tree ------------------------------------------------------------------------------------------
class _Walk:
    """One way through a tree for both directions; `leaf` writes a leaf, or reads it."""

    complete: bool
    leaf: Callable[[str, Tensor, Tensor | None], Tensor]
    pattern: Callable[[str, Tensor, Tensor], Tensor]  # the bits that say what is kept; they travel unless all are 1
    arrays_of: Callable[[Any, str], Any]  # of a kind with a form of its own

    def walk(self, tree: Tree, path: str, keep: Keep) -> Tree:
        if not is_node(tree):
            if path in keep and keep[path] is None:
                return tree
            return self.leaf(path, tree, keep.get(path))
        if hasattr(tree, "to_arrays"):
            return self.arrays_of(tree, path)
        if isinstance(tree, Sparse):
            return self.sparse(tree, path, keep)
        if isinstance(tree, Offer):
            return self.offer(tree, path, keep)
        return tree_with_parts(tree, [self.walk(part, _below(path, name), keep) for name, part in tree_parts(tree)])

    def offer(self, tree: Offer, path: str, keep: Keep) -> Offer:
        """What one client is offered; what it alone gets may say which numbers of the broadcast it does not need."""
        own, shared = self.walk(tree.own, _below(path, "own"), keep), _below(path, "shared")
        if isinstance(own, Sparse) and own.elsewhere:
            names = [name for name, _ in tree_named(tree.shared, shared) if name.endswith(own.elsewhere)]
            keep = {**keep, **dict.fromkeys(names, own.keep)}
        return Offer(self.walk(tree.shared, shared, keep), own)

    def sparse(self, node: Sparse, path: str, keep: Keep) -> Sparse:
        inside, mask = f"{path}/part", node.keep
        known = () if self.complete else node.known
        leaves = dict(tree_named(node.part, inside))
        mine: dict[str, Tensor | None] = {f"{inside}/{name}": None for name in known}
        part = node.part
        if node.pattern:
            name = f"{inside}/{node.pattern}"
            pattern = self.pattern(name, leaves[name], node.keep)
            mask, mine[name] = unpacked(pattern, node.keep.shape), None
            part = _with_leaf(part, inside, name, pattern)
        if node.leaves:
            mine |= {n: mask.expand(leaves[n].shape) for n in (f"{inside}/{name}" for name in node.leaves)}
        part = self.walk(part, inside, {**keep, **mine})
        return tree_with_parts(node, [part, node.unsent, mask])


class _Writer(_Walk):
    def __init__(self, complete: bool) -> None:
        self.complete = complete
        self.arrays: dict[str, Tensor] = {}

    def leaf(self, name: str, like: Tensor, keep: Tensor | None) -> Tensor:
        self.arrays[name] = (like if keep is None else like[keep]).detach().cpu().contiguous()
        return like

    def pattern(self, name: str, like: Tensor, keep: Tensor) -> Tensor:
        return like if bool(keep.all()) else self.leaf(name, like, None)

    def arrays_of(self, node: Any, path: str) -> Any:
        for name, array in node.to_arrays().items():
            self.leaf(_below(path, name), array, None)
        return node


class _Reader(_Walk):
    def __init__(self, data: bytes, header: Header, finite: bool) -> None:
        self.complete = header.complete
        self.data, self.header, self.finite = data, header, finite
        self.taken: set[str] = set()

    def walk(self, tree: Tree, path: str, keep: Keep) -> Tree:
        found = super().walk(tree, path, keep)
        if isinstance(tree, Sum) and tree.within is not None:
            _check_range(found, path)
        if isinstance(tree, (Mean, Moments)) and any(bool((w < 0).any()) for w in tree_leaves(found.weight)):
            raise CodecError(f"{path}/weight is negative somewhere: a client can count for nothing, not for less")
        if isinstance(tree, (Bag, Rows)) and not torch.equal(found.client, tree.client):
            raise CodecError(f"{path}/client is {found.client.tolist()}; this client is {tree.client.tolist()}: "
                             "nobody speaks for another")  # fmt: skip
        return found

    def leaf(self, name: str, like: Tensor, keep: Tensor | None) -> Tensor:
        if keep is None:
            return self.take(name, tuple(like.shape), like.dtype)
        some, filled = self.take(name, (int(keep.sum()),), like.dtype), like.clone()
        filled[keep] = some
        return filled

    def pattern(self, name: str, like: Tensor, keep: Tensor) -> Tensor:
        if name not in self.header.arrays:
            return packed(torch.ones_like(keep))
        return self.take(name, tuple(like.shape), like.dtype)

    def take(self, name: str, shape: Sequence[int] | None, dtype: torch.dtype) -> Tensor:
        """An array of the payload; `shape` None: of any length."""
        if name not in self.header.arrays:
            raise CodecError(f"{quoted(name)} is missing")
        found, size, place = self.header.arrays[name]
        wanted = size if shape is None and len(size) == 1 else tuple(shape or ())
        if (found, size) != (dtype, wanted):
            raise CodecError(f"{quoted(name)} has {NAMES[found]} {list(size)}; expected {NAMES[dtype]} {list(wanted)}")
        self.taken.add(name)
        array = read_array(self.data, self.header.begin + place, found, size)
        if found.is_floating_point and self.finite and not bool(array.isfinite().all()):
            raise CodecError(f"{quoted(name)} holds a number that is not finite")
        return array

    def arrays_of(self, node: Any, path: str) -> Any:
        return node.from_arrays(_Take(self, path))


@dataclass(frozen=True)
class _Take:
    """The arrays of one part of a message, by the names that its kind gave them."""

    reader: _Reader
    path: str

    def __call__(self, name: str, shape: Sequence[int] | None, dtype: torch.dtype) -> Tensor:
        return self.reader.take(_below(self.path, name), shape, dtype)

    def has(self, name: str) -> bool:
        return _below(self.path, name) in self.reader.header.arrays


def _check_range(found: Sum, path: str) -> None:
    low, high = found.within or (0.0, 0.0)
    for leaf in tree_leaves(found.value):
        if leaf.numel() and not bool(((leaf >= low) & (leaf <= high)).all()):
            given = f"{leaf.min():.4g} to {leaf.max():.4g}"
            raise CodecError(f"{path} holds numbers from {given}; declared are {low} to {high}")


def _with_leaf(tree: Tree, prefix: str, name: str, leaf: Tensor) -> Tree:
    """A tree with another leaf at a name."""
    if prefix == name:
        return leaf
    return tree_with_parts(tree, [
        _with_leaf(part, f"{prefix}/{n}", name, leaf) if f"{name}/".startswith(f"{prefix}/{n}/") else part
        for n, part in tree_parts(tree)
    ])  # fmt: skip


def _below(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


# --- bytes -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Header:
    """What stands before the payload."""

    fingerprint: str
    facts: dict[str, Any]
    complete: bool  # whether leaves are there that need not travel
    arrays: dict[str, Place]
    begin: int  # of the payload


def join_arrays(arrays: Mapping[str, Tensor], agreed: str, facts: Mapping[str, Any], complete: bool) -> bytes:
    """Header and payload."""
    listed = [[name, NAMES[leaf.dtype], list(leaf.shape)] for name, leaf in arrays.items()]
    header = {"fingerprint": agreed, "facts": dict(facts), "complete": complete, "arrays": listed}
    text = json.dumps(header, allow_nan=False, separators=(",", ":")).encode()
    return b"".join([START.pack(MAGIC, SCHEMA, len(text)), text, *map(_raw, arrays.values())])


def payload_bytes(data: bytes) -> int:
    """Bytes of the payload: what is counted."""
    return len(data) - read_header(data).begin


def read_facts(data: bytes, agreed: str | None = None) -> dict[str, Any]:
    """The facts of some bytes; their fingerprint is not looked at unless one is given."""
    return read_header(data, agreed).facts


def read_header(data: bytes, agreed: str | None = None) -> Header:
    """The header, checked by itself and against the length of the bytes."""
    if len(data) < START.size:
        raise CodecError(f"{len(data)} bytes are no message: its first {START.size} say what it is")
    magic, version, length = START.unpack_from(data)
    if magic != MAGIC:
        raise CodecError(f"this is no message: it begins with {magic!r}; expected {MAGIC!r}")
    if version != SCHEMA:
        raise CodecError(
            f"schema version {version} was given; this side reads {SCHEMA}: use the same posterity on both"
        )
    begin = START.size + length
    if length > HEADER or begin > len(data):
        raise CodecError(f"the header says that it has {length} bytes; there are {len(data) - START.size}")
    try:
        value = json.loads(data[START.size : begin], parse_constant=int)  # NaN is no whole number: a ValueError
    except (ValueError, RecursionError):
        raise CodecError("the header is no JSON") from None
    if not isinstance(value, dict):
        raise CodecError("the header is no JSON object")
    if not (isinstance(value.get("fingerprint"), str) and isinstance(value.get("facts"), dict)):
        raise CodecError("the header lacks its fingerprint or its facts")
    if agreed is not None and value["fingerprint"] != agreed:
        raise CodecError(f"fingerprint {quoted(value['fingerprint'])} was given, {agreed} is expected: server and site "
                         "differ in method, configuration, shapes or posterity; use the same on both")  # fmt: skip
    arrays = _arrays(value.get("arrays"), len(data) - begin)
    return Header(value["fingerprint"], value["facts"], value.get("complete") is True, arrays, begin)


def _raw(leaf: Tensor) -> bytes:
    return leaf.reshape(-1).view(torch.uint8).numpy().tobytes() if leaf.numel() else b""


def read_array(data: bytes, begin: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    count = math.prod(shape)
    if not count:
        return torch.zeros(tuple(shape), dtype=dtype)
    raw = torch.frombuffer(bytearray(data[begin : begin + count * dtype.itemsize]), dtype=torch.uint8)
    if dtype == torch.bool and bool((raw > 1).any()):
        raise CodecError("a boolean is neither 0 nor 1")
    return raw.view(dtype).reshape(tuple(shape))


def _arrays(listed: Any, size: int) -> dict[str, Place]:
    """The table of arrays, whose lengths add up to that of the payload."""
    if not isinstance(listed, list):
        raise CodecError("the header lists no arrays")
    found: dict[str, Place] = {}
    place = 0
    for entry in listed:
        if not (isinstance(entry, list) and len(entry) == 3 and isinstance(entry[0], str) and _is_shape(entry[2])):
            raise CodecError("the header lists something that is not a name, a type and a shape")
        name, kind, shape = entry
        if not isinstance(kind, str) or kind not in DTYPES:
            raise CodecError(f"{quoted(name)} has the type {quoted(kind)}; expected one of {', '.join(DTYPES)}")
        if name in found:
            raise CodecError(f"{quoted(name)} is there twice")
        found[name] = (DTYPES[kind], tuple(shape), place)
        place += DTYPES[kind].itemsize * math.prod(shape)
    if place != size:
        raise CodecError(f"the payload has {size} bytes; its arrays take {place}")
    return found


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 16 and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**40 for n in value
    )  # fmt: skip


def quoted(value: Any) -> str:
    """At most a line of what somebody else wrote."""
    return repr(value if len(str(value)) <= 80 else f"{str(value)[:77]}...")
