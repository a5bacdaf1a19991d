"""The server's side of a round: what is accepted, the sum, the next state, and whether it can be used.

Messages reach an `Accumulator` one stack of clients after the other; only their sum is held. Records and messages are
committed together or not at all: a message that is not finite, is too large to be used or breaks the range that it
declared is left out, and its client keeps the record that it had.

A number is usable up to 2^64, the largest whose square float32 can still hold: beyond it the norms, losses and second
moments of the next steps are infinite, whoever is honest. What is finite and smaller may still be too much for a
network; so a state that has grown a thousandfold in one round is tried before it is taken, by the clients that would
go on from it. If none can, or their loss has grown as much, the round is not committed: state and records stay as they
were. If some messages were a thousand times larger than most, the round is repeated without them, and they are refused
by name. Simulations (`round.py`) and servers across machines end a round so; nothing here needs data.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from posterity.core.messages import Message, fold_stack, merge, wire_bytes
from posterity.core.protocol import Method, Now, State
from posterity.core.tree import Tree, tree_finite, tree_leaves, tree_like, tree_named, tree_rows
from posterity.engine.client import Visit

USABLE = 2.0**64
TOO_LARGE = "the round cannot be used with it: it holds a number of magnitude {:.3g}, far beyond the others'"
UNUSABLE = "the state after it cannot be used: "
STUCK = "no client could go on from the state after it"
FAR = 1e3  # times larger: a message than most of its round, a state or a loss than the one before
# how `combine` says that it cannot
UNSOLVABLE = (torch.linalg.LinAlgError, np.linalg.LinAlgError, ArithmeticError)  # type: ignore[attr-defined]


def largest_sent(stack: Tree, count: int) -> Tensor:
    """The largest magnitude that each client of a stack sent (clients,), in float64; nan where one is nan."""
    sizes = [_largest(leaf) for leaf in tree_leaves(stack) if leaf.is_floating_point() and leaf[0].numel()]
    if not sizes:
        return torch.zeros(count, dtype=torch.float64)
    if sizes[0].device.type == "mps":  # no float64 there
        sizes = [size.cpu() for size in sizes]
    return torch.stack([size.double() for size in sizes]).amax(0)


def why_unusable(after: Tree, before: Tree) -> str:
    """Why a state cannot be used, in words; empty if it can. What was infinite before may stay so."""
    for new, old in zip(tree_leaves(after), tree_leaves(before), strict=True):
        if new.is_floating_point() and not bool(((new.abs() <= USABLE) | ~old.isfinite()).all()):
            size = new[old.isfinite()].abs().max()
            return f"it would be as large as {float(size):.3g}" if bool(size.isfinite()) else "it would not be finite"
    return ""


def has_grown(after: Tree, before: Tree) -> bool:
    """Whether the largest number of a state has grown so much that clients might not be able to go on from it."""
    sizes = [max([_size(leaf) for leaf in tree_leaves(tree) if leaf.is_floating_point() and leaf.numel()] or [0.0])
             for tree in (after, before)]  # fmt: skip
    return sizes[0] > FAR * max(1.0, sizes[1])


def outliers(sizes: Mapping[int, float]) -> list[int]:
    """Clients whose largest number is far beyond what most clients sent: fewer than half of them."""
    if not sizes:
        return []
    usual = statistics.median_low(sizes.values())
    return sorted(client for client, size in sizes.items() if size > FAR * max(usual, 1e-30))


def _largest(leaf: Tensor) -> Tensor:
    flat = leaf.flatten(1) if leaf.dim() > 1 else leaf[:, None]
    return torch.maximum(flat.amax(1), -flat.amin(1))


def _size(leaf: Tensor) -> float:
    return float(leaf.nan_to_num(0.0, 0.0, 0.0).abs().max())


@dataclass(frozen=True)
class Refusal:
    """A message that was left out; its client keeps the record that it had."""

    client: int
    reason: str


@dataclass(frozen=True)
class RoundLog:
    round: int
    cohort: int
    accepted: int
    refused: tuple[Refusal, ...] = ()
    loss: float = float("nan")
    bytes_up: int = 0
    bytes_down: int = 0
    report: dict[str, float] = field(default_factory=dict)
    rolled_back: str = ""  # why nothing of it was kept, if its result could not be used; then nothing was accepted

    @staticmethod
    def of(round: int, cohort: int, numbers: Sequence[float], refused: Sequence[Refusal]) -> RoundLog:
        """Of the numbers of an `Accumulator`, or of several that have been added up."""
        accepted, loss, samples, up, down = numbers
        mean = loss / samples if samples else float("nan")
        return RoundLog(round, cohort, int(accepted), tuple(refused), mean, int(up), int(down))

    @property
    def empty(self) -> bool:
        return self.accepted == 0


@dataclass
class Accumulator:
    """The running sum of a round's messages, and the records that are written if the round succeeds."""

    total: Message | None = None
    records: list[tuple[Tensor, Tree]] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    losses: Tensor = field(default_factory=lambda: torch.zeros(2, dtype=torch.float64))  # loss x samples, samples
    bytes_up: int = 0
    bytes_down: int = 0
    sizes: dict[int, float] = field(default_factory=dict)  # the largest number that each accepted client sent

    @property
    def accepted(self) -> int:
        return sum(len(clients) for clients, _ in self.records)

    @staticmethod
    def of(clients: Tensor, offered: Tree, visit: Visit) -> Accumulator:
        """What some clients were offered, and a stack of what they sent and would keep; unusable ones are left out."""
        sent, records, seen = visit.message, visit.record, visit.loss
        down, up = wire_bytes(offered[0]) * len(clients) + wire_bytes(offered[1]), wire_bytes(sent)
        sizes = largest_sent(sent, len(clients)).to(clients.device)
        part, good = fold_stack(sent), _accepted(sent, records, sizes)
        refused: list[Refusal] = []
        if not bool(good.all()):  # the only place where the host waits for the clients
            left_out = zip(clients[~good].tolist(), sizes[~good].tolist(), strict=True)
            refused = [Refusal(client, _reason(size)) for client, size in left_out]
            if not bool(good.any()):
                return Accumulator(refused=refused, bytes_up=up, bytes_down=down)
            sent, records, clients = tree_rows(sent, good), tree_rows(records, good), clients[good]
            part, seen, sizes = fold_stack(sent), None if seen is None else seen[good], sizes[good]
        losses = torch.zeros(2, dtype=torch.float64) if seen is None else seen.sum(0).double().cpu()
        by_client = dict(zip(clients.tolist(), sizes.tolist(), strict=True))
        return Accumulator(part, [(clients, records)], refused, losses, up, down, by_client)

    def join(self, other: Accumulator) -> None:
        """Add what another one holds; it is of other clients."""
        if other.total is not None:
            self.total = other.total if self.total is None else merge(self.total, other.total)
        self.records += other.records
        self.refused += other.refused
        self.losses = self.losses + other.losses
        self.bytes_up, self.bytes_down = self.bytes_up + other.bytes_up, self.bytes_down + other.bytes_down
        self.sizes |= other.sizes

    @property
    def numbers(self) -> list[float]:
        """What a log counts, so that it can be added up over processes."""
        return [self.accepted, *self.losses.tolist(), self.bytes_up, self.bytes_down]

    def without(self, suspects: Sequence[int], sizes: Mapping[int, float]) -> Accumulator:
        """The sum of a round that was repeated without some clients, who are refused for what they had sent."""
        named = [(client, sizes[client]) for client in suspects if client in sizes]
        self.refused += [Refusal(client, TOO_LARGE.format(size)) for client, size in named]
        return self

    def log(self, round: int, cohort: int) -> RoundLog:
        return RoundLog.of(round, cohort, self.numbers, self.refused)


def combine(method: Method, state: State, total: Message, now: Now) -> tuple[State, dict[str, Tensor]]:
    """The next state, in the shape and types of the last, and what the method reports about it."""
    after = method.combine(state, total, now)
    before = {name for name, _ in tree_named(state)}
    if new := [name for name, _ in tree_named(after) if name not in before]:
        raise ValueError(f"{method.label}: combine returned {', '.join(new)}, which the State before had not; a State "
                         "has the same names in every round, so init makes what combine will fill")  # fmt: skip
    after = tree_like(after, state)
    return after, method.report(after, total)


def next_state(method: Method, state: State, total: Message, now: Now) -> tuple[State, dict[str, Tensor], str]:
    """As `combine`; and why the result cannot be used, in words: then the state is the one that it was."""
    try:
        after, report = combine(method, state, total, now)
        why = why_unusable(after, state)
    except UNSOLVABLE as error:
        why = f"it cannot be computed ({str(error).splitlines()[0]})"
    return (state, {}, why) if why else (after, report, "")


def _accepted(sent: Message, records: Tree, sizes: Tensor) -> Tensor:
    finite = tree_finite((sent, records))
    return (sizes <= USABLE) & finite if len(finite) else sizes <= USABLE


def _reason(size: float) -> str:
    if math.isfinite(size) and size > USABLE:
        return f"it holds a number of magnitude {size:.3g}; what can be used ends at {USABLE:.2g}"
    return "not finite"


def rolled_back(log: RoundLog, why: str) -> RoundLog:
    return replace(log, accepted=0, rolled_back=why)


def goes_on(now: RoundLog, then: RoundLog) -> bool:
    """Whether clients can go on from a round's state: by its log, and by that of visits that only tried it."""
    return then.accepted > 0 and not then.loss > FAR * max(1.0, now.loss)  # nan: nobody counted
