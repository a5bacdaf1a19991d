"""What clients send: elements of commutative monoids, so that a server only ever adds.

Each kind has `+`, an identity (`zero`), and `fold`, which adds up a stack of clients in float64. A message is a dict of
them, merged name by name. Streaming, trees and several devices are all `+`.

    Sum       value                        leafwise +
    Mean      weight, value                weighted mean; the weight is a scalar or has the leaf's shape
    LogMean   log_weight, value            the same with weights e^log_weight, which may not be representable
    Moments   weight, mean, square         mean and centred sum of squares, merged by Chan's rule
    Rows      client, value                one row per client, no client twice
    Bag       client, value                keeps everything, in the order of the clients

A kind may also be a shorter way to send another one: its fold is then of that other kind, and `wire_bytes` says what it
costs (`Sparse`; `Levels` in `methods/qlsd.py`).

Means are kept as (weight, mean) and not as (weight, weighted sum): a client's message then needs no multiplication that
float32 would round, and a float32 message merged alone comes back bit for bit. For a real network: `secure_sum` says
whether a sum that hides single messages will do (a mean's is of `weight * value`).

What travels may be less than what memory holds: clients of a stack need tensors of one shape, so pruned weights stay
where they are in a simulation. `Sparse` stands around a message or a broadcast and says how much of it need not be
sent; `packed` makes eight booleans a byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.core.tree import (
    STATIC,
    Tree,
    record,
    tree_bytes,
    tree_cast,
    tree_cat,
    tree_leaves,
    tree_map,
    tree_parts,
    tree_rows,
)

PIECE = 2**17  # numbers that are widened at once


@record
class Sum:
    """Leafwise sum."""

    value: Tree
    secure_sum: ClassVar[bool] = True

    def __add__(self, other: Sum) -> Sum:
        return Sum(tree_map(torch.add, self.value, other.value))

    @staticmethod
    def fold(stack: Sum) -> Sum:
        return Sum(tree_map(lambda leaf: leaf.sum(0), stack.value))

    def zero(self) -> Sum:
        return tree_map(torch.zeros_like, self)


@record
class Mean:
    """Weighted mean. `weight` is one scalar for all leaves, or a tree like `value` with a weight per number."""

    weight: Tree
    value: Tree
    secure_sum: ClassVar[bool] = True

    def _weights(self) -> Tree:
        scalar = isinstance(self.weight, Tensor) and not isinstance(self.value, Tensor)
        return tree_map(lambda _: self.weight, self.value) if scalar else self.weight

    def __add__(self, other: Mean) -> Mean:
        weight = tree_map(torch.add, self.weight, other.weight)
        return Mean(weight, tree_map(_blend, self.value, other.value, self._weights(), other._weights()))

    @staticmethod
    def fold(stack: Mean) -> Mean:
        weight = tree_map(lambda w: w.sum(0), stack.weight)
        return Mean(weight, tree_map(_average, stack.value, stack._weights()))

    def zero(self) -> Mean:
        return tree_map(torch.zeros_like, self)

    def mean(self, missing: Tree | None = None) -> Tree:
        """The mean; where no weight arrived, `missing`. Without `missing`, an empty mean is an error and never NaN."""
        if missing is not None:
            return tree_map(
                lambda v, w, m: torch.where(_spread(w, v) > 0, v, m.to(v)), self.value, self._weights(), missing
            )
        if any(not bool((w > 0).all()) for w in tree_leaves(self.weight)):
            raise ValueError("the mean of nothing: no client with positive weight sent a message")
        return self.value


@record
class LogMean:
    """Weighted mean whose weights are given by their logarithms; the zero has log-weight minus infinity."""

    log_weight: Tensor  # of a sum it is rounded: near -1e16, log 2 is lost in it
    value: Tree
    sums: Tree = ()  # by `fold`: the largest log-weight, and Σ w and Σ w² of weights divided by the largest
    secure_sum: ClassVar[bool] = False  # needs the running maximum

    def _sums(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.sums or (self.log_weight, *[torch.ones_like(self.log_weight)] * 2)

    def __add__(self, other: LogMean) -> LogMean:
        (mine, theirs), sums = _shares(*map(torch.stack, zip(self._sums(), other._sums(), strict=True)))
        value = tree_map(lambda a, b: a * mine + b * theirs, self.value, other.value)
        return LogMean(sums[0] + torch.log(sums[1]), value, sums)

    @staticmethod
    def fold(stack: LogMean) -> LogMean:
        share, sums = _shares(*stack._sums())  # (clients,), three of ()
        value = tree_map(lambda leaf: torch.tensordot(share, leaf, dims=1), stack.value)
        return LogMean(sums[0] + torch.log(sums[1]), value, sums)

    def zero(self) -> LogMean:
        nothing, none = torch.full_like(self.log_weight, -torch.inf), torch.zeros_like(self.log_weight)
        return LogMean(nothing, tree_map(torch.zeros_like, self.value), (nothing.clone(), none, none.clone()))

    def mean(self) -> Tree:
        if not bool(self.log_weight > -torch.inf):
            raise ValueError("the mean of nothing: no client with positive weight sent a message")
        return self.value

    def effective(self) -> Tensor:
        """(Σ w)² / Σ w²: how many equal clients the weights are worth; 0 of none."""
        return self._sums()[1] ** 2 / self._sums()[2].clamp(min=1)  # the largest weight alone is 1


@record
class Moments:
    """Weight, mean and weighted sum of squares about the mean, merged by the rule of Chan, Golub and LeVeque."""

    weight: Tensor
    mean: Tree
    square: Tree
    secure_sum: ClassVar[bool] = False

    def __add__(self, other: Moments) -> Moments:
        total = self.weight + other.weight
        share = other.weight / torch.where(total > 0, total, 1)
        lift = self.weight * share
        mean = tree_map(lambda a, b: a + (b - a) * share, self.mean, other.mean)
        pairs = (self.square, other.square, self.mean, other.mean)
        return Moments(total, mean, tree_map(lambda s, t, a, b: s + t + (b - a) ** 2 * lift, *pairs))

    @staticmethod
    def fold(stack: Moments) -> Moments:
        mean = tree_map(lambda leaf: _average(leaf, stack.weight), stack.mean)
        square = tree_map(
            lambda s, a, m: s.sum(0) + (_spread(stack.weight, a) * (a - m) ** 2).sum(0), stack.square, stack.mean, mean
        )
        return Moments(stack.weight.sum(0), mean, square)

    def zero(self) -> Moments:
        return tree_map(torch.zeros_like, self)

    def variance(self) -> Tree:
        if not bool(self.weight > 0):
            raise ValueError("the moments of nothing: no client with positive weight sent a message")
        return tree_map(lambda leaf: leaf / self.weight, self.square)


@record
class Bag:
    """Every client's contribution by itself, for servers that need more than a sum."""

    client: Tensor
    value: Tree
    secure_sum: ClassVar[bool] = False

    def __add__(self, other: Any) -> Any:
        return self.fold(tree_cat([self, other]))

    @staticmethod
    def fold(stack: Any) -> Any:
        """In the order of the clients, so that the order of merging leaves no trace."""
        return tree_rows(stack, torch.argsort(stack.client, stable=True))

    def zero(self) -> Any:
        return tree_rows(self, slice(0))


@record
class Rows(Bag):
    """One row per client, no client twice: for baselines whose server keeps a table of heads or embeddings."""

    @staticmethod
    def fold(stack: Any) -> Any:
        rows = Bag.fold(stack)
        twice = rows.client[1:][rows.client.diff() == 0]
        if len(twice):
            raise ValueError(f"client {int(twice[0])} sent two rows in one round")
        return rows

    def into(self, table: Tree) -> Tree:
        """`table` (clients, ...) with the rows that arrived put in their places."""
        return tree_map(lambda t, v: t.index_copy(0, self.client, v.to(t)), table, self.value)


@record
class Sparse:
    """Part of a message, or what is offered, of which `unsent` bytes need not travel: the receiver can fill them in.

    Which ones is said by names of leaves within `part`, for `codec.py`. A server that receives a message knows what it
    offered, and so what the sender left out and why; a site that receives an offer is told by `pattern`. Stacked
    messages fold to the kind of their `part`.

    Attributes:
        part: what is sent
        unsent: bytes that are not, () int64
        keep: booleans (...): which numbers of `leaves` travel; one boolean: all of them or none
        leaves: those that `keep` is about
        elsewhere: ends of names in the broadcast: leaves there that `keep` is about too
        pattern: the leaf that holds `packed(keep)`; it travels unless everything is kept
        known: leaves that never travel: the receiver computes them, or they are for scoring alone
    """

    part: Any
    unsent: Tensor
    keep: Tree = ()
    leaves: tuple[str, ...] = field(default=(), metadata={STATIC: True})
    elsewhere: tuple[str, ...] = field(default=(), metadata={STATIC: True})
    pattern: str = field(default="", metadata={STATIC: True})
    known: tuple[str, ...] = field(default=(), metadata={STATIC: True})
    secure_sum: ClassVar[bool] = False  # clients that leave out other numbers than their neighbours show which

    @staticmethod
    def fold(stack: Sparse) -> Any:
        return stack.part.fold(stack.part)

    def wire_bytes(self) -> int:
        return wire_bytes(self.part) - int(self.unsent.sum())


@record
class Offer:
    """What a server sends to one client: the broadcast, and what is for this client alone."""

    shared: Tree
    own: Tree


def wire_bytes(tree: Tree) -> int:
    """Bytes that a message or a broadcast takes on its way."""
    if hasattr(tree, "wire_bytes"):
        return int(tree.wire_bytes())
    return tree_bytes(tree) if isinstance(tree, Tensor) else sum(wire_bytes(child) for _, child in tree_parts(tree))


def packed(mask: Tensor) -> Tensor:
    """Booleans of any shape as bytes (⌈numbers/8⌉,)."""
    bits = F.pad(mask.flatten().to(torch.uint8), (0, -mask.numel() % 8)).reshape(-1, 8)
    return (bits << torch.arange(8, dtype=torch.uint8, device=mask.device)).sum(1).to(torch.uint8)


def unpacked(mask: Tensor, shape: Sequence[int]) -> Tensor:
    """The booleans of `packed`."""
    bits = (mask[:, None] >> torch.arange(8, dtype=torch.uint8, device=mask.device)) & 1
    return (bits.flatten() > 0)[: torch.Size(shape).numel()].reshape(tuple(shape))


Message = dict[str, Any]  # of the kinds above: which one stands under a name is known to the method alone


def merge(left: Message, right: Message) -> Message:
    """Add two totals name by name."""
    if left.keys() != right.keys():
        raise ValueError(f"messages with other names cannot be added: {sorted(left)} and {sorted(right)}")
    return {name: left[name] + right[name] for name in left}


def fold_stack(stack: Message) -> Message:
    """Add up a stack of clients, in float64 (on the host where the device has none)."""
    stack = tree_map(lambda leaf: leaf.cpu() if leaf.device.type == "mps" else leaf, stack)  # no float64 there
    return {name: part.fold(_widened(part)) for name, part in stack.items()}


def _widened(part: Any) -> Any:
    """In float64; of a mean only the weights, for `_average` widens the values piece by piece."""
    if isinstance(part, Mean) and isinstance(part.weight, Tensor):
        return Mean(part.weight.double(), part.value)
    return tree_cast(part, torch.float64)


def zero_like(total: Message) -> Message:
    """The total of no clients."""
    return {name: part.zero() for name, part in total.items()}


def _spread(weight: Tensor, leaf: Tensor) -> Tensor:
    """`weight` with axes appended until it broadcasts against `leaf`."""
    return weight.reshape(weight.shape + (1,) * (leaf.dim() - weight.dim()))


def _blend(a: Tensor, b: Tensor, wa: Tensor, wb: Tensor) -> Tensor:
    total = wa + wb
    return a + (b - a) * _spread(wb / torch.where(total > 0, total, 1), a)


def _average(leaf: Tensor, weight: Tensor) -> Tensor:
    total = weight.sum(0)
    some = torch.where(total > 0, total, 1)
    wide = _spread(weight, leaf)
    if leaf.device.type == "cpu" and leaf[0].numel() > 1:
        wide = wide.flatten(1) if weight.dim() == 1 else wide.expand_as(leaf).flatten(1)
        return _weighted(leaf.flatten(1), wide).reshape(leaf.shape[1:]) / _spread(some, leaf[0])
    return (wide * leaf).sum(0) / _spread(some, leaf[0])


def _weighted(rows: Tensor, weight: Tensor) -> Tensor:
    """Σ weight (n, d or 1) · rows (n, d) over n, in pieces for the cache; cut alike, equal weights give equal bits."""
    step = max(1, PIECE // len(rows))
    cut = torch.split(weight, step, 1) if weight.shape[1] > 1 else (weight,) * -(-rows.shape[1] // step)
    return torch.cat([(w * piece).sum(0) for w, piece in zip(cut, torch.split(rows, step, 1), strict=True)])


def _shares(tops: Tensor, masses: Tensor, squares: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Normalised weights (n,) and the `sums` of the whole; differences of logarithms keep a common shift harmless."""
    top = tops.max(0).values
    scale = torch.exp(tops - torch.where(top > -torch.inf, top, 0))
    weights = scale * masses
    mass = weights.sum(0)
    return weights / torch.where(mass > 0, mass, 1), (top, mass, (scale**2 * squares).sum(0))
