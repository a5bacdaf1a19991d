"""The server's side of a round: the first state, what is accepted, the sum, the next state. It needs no data.

Messages reach an `Accumulator` one stack of clients after the other; only their sum is held. Records and messages are
committed together or not at all: a message that is not finite, is too large to be used (`usable.py`) or breaks the
range that it declared is left out, and its client keeps the record that it had.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from posterity.core.messages import Message, acceptable, fold_stack, merge, message_bytes
from posterity.core.protocol import Method, Now, State
from posterity.core.tree import Tree, tree_finite, tree_like, tree_named, tree_rows
from posterity.core.wire import wire_bytes
from posterity.engine.client import Visit
from posterity.engine.usable import UNSOLVABLE, USABLE, largest_sent, why_unusable


@dataclass(frozen=True)
class Refusal:
    """A message that was left out; its client keeps the record that it had."""

    client: int
    reason: str


@dataclass(frozen=True)
class RoundLog:
    """What happened in a round."""

    round: int
    cohort: int
    accepted: int
    refused: tuple[Refusal, ...] = ()
    loss: float = float("nan")
    bytes_up: int = 0
    bytes_down: int = 0
    report: dict[str, float] = field(default_factory=dict)
    rolled_back: str = ""  # why nothing of it was kept, if its result could not be used; then nothing was accepted

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

    def add(self, clients: Tensor, offered: Tree, visit: Visit) -> None:
        """What some clients were offered, and a stack of what they sent and would keep; unusable ones are left out."""
        self.join(Accumulator.of(clients, offered, visit))

    @staticmethod
    def of(clients: Tensor, offered: Tree, visit: Visit) -> Accumulator:
        """The sum of one stack."""
        sent, records, seen = visit.message, visit.record, visit.loss
        down, up = wire_bytes(offered[0]) * len(clients) + wire_bytes(offered[1]), message_bytes(sent)
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

    def log(
        self, round: int, cohort: int, summed: Callable[[list[float]], list[float]] = list,
        joined: Callable[[list[Refusal]], list[Refusal]] = list,
    ) -> RoundLog:  # fmt: skip
        """The round in numbers; `summed` adds those of other processes, `joined` their refusals."""
        mine = [self.accepted, *self.losses.tolist(), self.bytes_up, self.bytes_down]
        accepted, loss, samples, up, down = summed(mine)
        mean = loss / samples if samples else float("nan")
        return RoundLog(round, cohort, int(accepted), tuple(joined(self.refused)), mean, int(up), int(down))


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
    """Which clients of a stack sent a usable message and hold a finite record."""
    verdicts = [v for v in (acceptable(sent), tree_finite(records)) if len(v)]
    return torch.stack([sizes <= USABLE, *verdicts]).all(0)


def _reason(size: float) -> str:
    """Why a message was left out whose largest number is `size`."""
    if math.isfinite(size) and size > USABLE:
        return f"it holds a number of magnitude {size:.3g}; what can be used ends at {USABLE:.2g}"
    return "not finite or outside its declared range"


__all__ = ["Accumulator", "Refusal", "RoundLog", "combine", "next_state"]
