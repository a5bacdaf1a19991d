"""Trees as bytes and back: what a server offers, what a client sends. No pickle; no network either.

A tree becomes named arrays in one text of the safetensors format. Its metadata has a header: the fingerprint of what
both sides agreed on, facts (a JSON object, anything small), and whether leaves are there that travel for scoring alone
(`complete`). The bytes of the arrays are what the simulator counts (`wire_bytes`), but for those leaves; the header is
not counted.

Whoever reads has a template: a tree of the same kinds, names, shapes and types. Everything that arrives is held against
it (types, shapes, finite, in nobody else's name); what is wrong is named in a
`CodecError`, and nothing else is ever raised for bytes, whoever made them. `Sparse` leaves numbers out, which are then
the template's; a kind may also have a form of its own on the wire (`to_arrays` and `from_arrays`).
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from posterity.core.messages import Bag, Mean, Moments, Offer, Rows, Sparse, packed, unpacked
from posterity.core.tree import Tree, is_node, tree_leaves, tree_named, tree_parts, tree_with_parts, unshared

HEADER = "posterity"  # the header's name in the metadata
Keep = Mapping[str, Tensor | None]  # leaves of which not everything travels, by name; None: nothing does


class CodecError(ValueError):
    """Bytes that are not what was expected; the message says what is wrong with them."""


def fingerprint(agreed: Any, *trees: Tree) -> str:
    """Of anything that JSON can hold and of the names, types and shapes of some trees."""
    shapes = [[(name, leaf.dtype, leaf.shape) for name, leaf in tree_named(tree)] for tree in trees]
    text = json.dumps([agreed, shapes], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def encode(tree: Tree, agreed: str = "", facts: Mapping[str, Any] | None = None, complete: bool = False) -> bytes:
    """A tree, and facts beside it, as bytes; `agreed` is the fingerprint that the reader has too.

    With `complete`, leaves that `Sparse` says never travel do: an offer that is to be scored as well.
    """
    writer = _Writer(complete)
    writer.walk(tree, "", {})
    return join_arrays(writer.arrays, agreed, facts or {}, complete)


def decode(data: bytes, template: Tree, agreed: str = "", finite: bool = True) -> Tree:
    """The tree that `encode` was given, checked; numbers left out are the template's."""
    complete, arrays = read_header(data, agreed).complete, read_arrays(data)
    reader = _Reader(complete, arrays, finite)
    try:
        tree = reader.walk(template, "", {})
    except CodecError:
        raise
    except ValueError as error:  # of a kind's own form
        raise CodecError(f"{error}; expected what its kind says") from None
    for name in arrays.keys() - reader.taken:
        raise CodecError(f"{name!r:.80} is not expected; expected are {', '.join(dict(tree_named(template)))}")
    return tree


# --- what travels of a tree
class _Walk:
    """One way through a tree for both directions; `leaf` writes a leaf, or reads it."""

    complete: bool
    leaf: Callable[[str, Tensor, Tensor | None], Tensor]
    pattern: Callable[[str, Tensor, Tensor], Tensor]  # what is kept; it travels unless all is
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
        """An offer, whose own part may say which numbers of the broadcast are not needed."""
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
    def __init__(self, complete: bool, arrays: Mapping[str, Tensor], finite: bool) -> None:
        self.complete, self.arrays, self.finite = complete, arrays, finite
        self.taken: set[str] = set()

    def walk(self, tree: Tree, path: str, keep: Keep) -> Tree:
        found = super().walk(tree, path, keep)
        if isinstance(tree, (Mean, Moments)) and any(bool((w < 0).any()) for w in tree_leaves(found.weight)):
            raise CodecError(f"{path}/weight is negative somewhere: a client can count for nothing, not for less")
        if isinstance(tree, (Bag, Rows)) and not torch.equal(found.client, tree.client):
            raise CodecError(f"{path}/client is {found.client.tolist()}; this client is {tree.client.tolist()}")
        return found

    def leaf(self, name: str, like: Tensor, keep: Tensor | None) -> Tensor:
        if keep is None:
            return self.take(name, tuple(like.shape), like.dtype)
        some, filled = self.take(name, (int(keep.sum()),), like.dtype), like.clone()
        filled[keep] = some
        return filled

    def pattern(self, name: str, like: Tensor, keep: Tensor) -> Tensor:
        if name not in self.arrays:
            return packed(torch.ones_like(keep))
        return self.take(name, tuple(like.shape), like.dtype)

    def take(self, name: str, shape: Sequence[int] | None, dtype: torch.dtype) -> Tensor:
        """An array of the payload; `shape` None: of any length."""
        array = self.arrays.get(name)
        if array is None:
            raise CodecError(f"{name!r:.80} is missing")
        found, wanted = list(array.shape), list(array.shape[:1] if shape is None else shape)
        if (array.dtype, found) != (dtype, wanted):
            raise CodecError(f"{name!r:.80} has {array.dtype} {found}; expected {dtype} {wanted}")
        self.taken.add(name)
        if dtype == torch.bool and bool((array.view(torch.uint8) > 1).any()):
            raise CodecError(f"{name!r:.80} holds a boolean that is neither 0 nor 1")
        if self.finite and not bool(array.isfinite().all()):
            raise CodecError(f"{name!r:.80} holds a number that is not finite")
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
        return _below(self.path, name) in self.reader.arrays


def _with_leaf(tree: Tree, prefix: str, name: str, leaf: Tensor) -> Tree:
    if prefix == name:
        return leaf
    return tree_with_parts(tree, [
        _with_leaf(part, f"{prefix}/{n}", name, leaf) if f"{name}/".startswith(f"{prefix}/{n}/") else part
        for n, part in tree_parts(tree)
    ])  # fmt: skip


def _below(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


# --- bytes
@dataclass(frozen=True)
class Header:
    fingerprint: str
    facts: dict[str, Any]
    complete: bool  # whether leaves are there that need not travel


def join_arrays(arrays: Mapping[str, Tensor], agreed: str, facts: Mapping[str, Any], complete: bool) -> bytes:
    header = {"fingerprint": agreed, "facts": dict(facts), "complete": complete}
    text = json.dumps(header, allow_nan=False, separators=(",", ":"))
    data: bytes = save(unshared(arrays), {HEADER: text})
    return data


def payload_bytes(data: bytes) -> int:
    """Bytes of the arrays: what is counted."""
    return len(data) - 8 - _table_size(data)


def _table_size(data: bytes) -> int:
    """Bytes of the format's table of contents, which begins with the ninth."""
    return int.from_bytes(data[:8], "little")


def read_facts(data: bytes, agreed: str | None = None) -> dict[str, Any]:
    """The facts of some bytes; their fingerprint is not looked at unless one is given."""
    return read_header(data, agreed).facts


def read_header(data: bytes, agreed: str | None = None) -> Header:
    """The header; the arrays are not looked at."""
    try:
        table = json.loads(data[8 : 8 + _table_size(data)])
        value = json.loads(table["__metadata__"][HEADER], parse_constant=int)  # NaN is no whole number: a ValueError
        mark, facts, complete = value["fingerprint"], value["facts"], value["complete"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise CodecError(f"{len(data)} bytes are no message of posterity's: they have no header") from None
    if not (isinstance(mark, str) and isinstance(facts, dict) and isinstance(complete, bool)):
        raise CodecError("the header lacks its fingerprint or its facts")
    if agreed is not None and mark != agreed:
        raise CodecError(f"fingerprint {mark!r:.80} was given, {agreed} is expected: server and site differ in method, "
                         "configuration, shapes or posterity; use the same on both")  # fmt: skip
    return Header(mark, facts, complete)


def read_arrays(data: bytes) -> dict[str, Tensor]:
    """The arrays by name, which fill the bytes behind the table of contents."""
    try:
        arrays: dict[str, Tensor] = load(data)
    except Exception as error:  # of safetensors or of PyTorch, whatever somebody wrote into the table
        raise CodecError(f"{len(data)} bytes are no message of posterity's ({error!s:.80})") from None
    return arrays
