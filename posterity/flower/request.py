"""What is asked of clients in a round, and what is read of their replies: a question and its answer belong together.

A reply counts only if it answers this very request: the round, the state that was offered, the client that was asked.
Whatever else arrives is a `CodecError` that says what was wrong with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from posterity.core.codec import CodecError, decode, encode, payload_bytes, read_facts
from posterity.core.messages import Message
from posterity.core.protocol import Here, State
from posterity.core.tree import Tree, tree_map
from posterity.core.wire import Offer
from posterity.engine.client import Site, Visit
from posterity.engine.expected import message_like, site_without_data
from posterity.engine.server import Accumulator
from posterity.flower.agreement import Agreement
from posterity.flower.question import ClientQuestion, EvaluationPoint
from posterity.flower.roster import Registered
from posterity.flower.scores import PointScores, read_scores

Line = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """What a site sent."""

    scores: dict[EvaluationPoint, PointScores]
    message: Message | None = None
    loss: Any = None
    size: int = 0  # of the message, in bytes
    leave: bytes | None = None  # the client goes for good: all of its reply, which holds its factor


@dataclass(frozen=True)
class Request:
    """What a state offers to some clients in a round, who of them trains, and what is scored."""

    agreement: Agreement
    state: State
    round: int
    cohort: tuple[str, ...]  # who trains
    points: tuple[EvaluationPoint, ...] = ()
    trial: bool = False  # whether clients could go on from this state: nothing is kept
    ask: str = "visit"  # or "leave"

    def offer(self, client: Registered, number: int) -> Offer:
        return self.agreement.offer(self.state, None if client.newcomer else number)

    def question(self, client: Registered, number: int, counted: int) -> bytes:
        """For one client, whose message of the round `counted` was the last that counted."""
        facts, scored = self.agreement.facts, self.scored(client)
        told = {"clients": facts.clients, "samples": facts.samples, "public": facts.public}
        asked = ClientQuestion(
            self.ask, self.round, number, client.newcomer, client.name in self.cohort, self.trial, counted,
            tuple(scored), self.agreement.kind, told,
        )  # fmt: skip
        return encode(self.offer(client, number), self.agreement.fingerprint, asked.facts(), complete=bool(scored))

    def scored(self, client: Registered) -> list[EvaluationPoint]:
        """What a client is scored at; a newcomer does not train, and adapts for several numbers of epochs."""
        if not client.newcomer:
            return list(self.points)
        method, config = self.agreement.method, self.agreement.config
        late = sorted({1, method.adaptation, config.newcomer_epochs} - {0})
        return [(point, round, each) for point, round, _ in self.points if point != "trained"
                for each in (late if point == "adapted" else (0,))]  # fmt: skip

    def read(self, client: Registered, number: int, reply: bytes | str) -> Reply:
        """A reply to a visit, checked."""
        data, told = self.heard(client, reply)
        if told.get("leave") is True:
            return Reply({}, leave=data)
        scores = self._scores(client, told)
        if client.name not in self.cohort:
            return Reply(scores)
        message = decode(data, self._expected(client, number), self.agreement.fingerprint)
        wrong = self.agreement.method.inspect(message, self._here(client, number))
        if wrong:
            raise CodecError(wrong)
        return Reply(scores, message, told.get("loss"), payload_bytes(data))

    def heard(self, client: Registered, reply: bytes | str) -> tuple[bytes, Line]:
        """A reply and its facts, if it answers this request."""
        if isinstance(reply, str):
            raise CodecError(reply)
        told = read_facts(reply, self.agreement.fingerprint)
        if (told.get("client"), told.get("round")) != (client.name, self.round):
            said = f"client {told.get('client')!r:.80} and round {told.get('round')!r:.20}"
            raise CodecError(f"it is of {said}; expected {client.name!r} and {self.round}")
        if told.get("trial") is not self.trial:
            raise CodecError("it answers a trial, not the round" if told.get("trial") else "it answers no trial")
        if told.get("refused"):
            raise CodecError(f"the site did not send it: {told['refused']!s:.200}")
        return reply, told

    def _scores(self, client: Registered, told: Line) -> dict[EvaluationPoint, PointScores]:
        """One table for every point that was asked for, and nothing else."""
        given = told.get("scores")
        if not (isinstance(given, list) and all(isinstance(each, dict) for each in given)):
            raise CodecError("its scores are no list of tables")
        found, asked = (
            [(each.get("point"), each.get("round"), each.get("epochs")) for each in given],
            self.scored(client),
        )
        if found != asked:
            raise CodecError(f"its scores are of {found!r:.120}; expected {asked!r:.120}")
        kind, least = self.agreement.kind, self.agreement.config.least
        return {point: read_scores(each, kind, least) for point, each in zip(asked, given, strict=True)}

    def _expected(self, client: Registered, number: int) -> Message:
        """The structure of a client's message; where some of it stays at home, what the server has in its place."""
        offer = self.offer(client, number)
        return message_like(self._nobody(number), offer.shared, offer.own, self.round)

    def factor_like(self, client: Registered, number: int) -> Tree | None:
        """The structure of what a client has in the state and takes along when it leaves; None: it cannot be told."""
        return self.agreement.method.factor(self._here(client, number).personal)

    def _here(self, client: Registered, number: int) -> Here:
        """A client right after the broadcast, as far as it is known here; its record is that of somebody new."""
        offer = self.offer(client, number)
        here = self._nobody(number).arrive(offer.shared, offer.own, None, self.round)
        return replace(here, n=here.n.new_tensor(float(client.train)))

    def _nobody(self, number: int) -> Site:
        agreement, kind = self.agreement, self.agreement.kind
        who = torch.tensor(number)
        return site_without_data(agreement, agreement.visits, who, kind.shape, kind.task, kind.integers)

    def part(self, client: Registered, number: int, read: Reply) -> Accumulator:
        """One message for the sum, if there is one; its bytes are those that came."""
        if read.message is None:
            return Accumulator()
        offer = self.offer(client, number)
        seen = torch.tensor([read.loss], dtype=torch.float64) if _is_loss(read.loss) else None
        visit = Visit(tree_map(lambda leaf: leaf[None], read.message), (), seen)
        part = Accumulator.of(torch.tensor([number]), (offer.shared, offer.own), visit)
        part.bytes_up = read.size
        return part


def _is_loss(value: Any) -> bool:
    """Loss times samples, and samples, as a site says them; they are only shown."""
    return isinstance(value, list) and len(value) == 2 and all(
        isinstance(each, float) and math.isfinite(each) for each in value
    )  # fmt: skip


__all__ = ["Line", "Request"]
