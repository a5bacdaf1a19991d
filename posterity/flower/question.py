"""What the server asks of clients in a round, as it travels to each of them, and what is read of their replies.

A question is checked by the site before it is obeyed: it may be damaged on its way, or come from a server of another
version or another mind. Whatever a site would act on has a type and a range here; what is outside is a `CodecError`
that says which, and nothing has been touched.

A reply counts only if it answers this very question: the round, the state that was offered, the client that was asked.
Whatever else arrives is a `CodecError` that says what was wrong with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from posterity.core.messages import Offer
from posterity.core.protocol import POINTS, Here, State
from posterity.core.tree import Tree, tree_map
from posterity.engine.client import Site, Visit, message_like, site_without_data
from posterity.engine.server import Accumulator
from posterity.flower.agreement import MOST, Agreement, SampleSpec
from posterity.flower.codec import CodecError, decode, encode, payload_bytes, read_facts
from posterity.flower.roster import Registered
from posterity.flower.scores import PointScores, read_scores

EvaluationPoint = tuple[str, int, int]  # point, round, epochs
LONGEST = 64  # points that are scored at once


# --- to one client
@dataclass(frozen=True)
class ClientQuestion:
    ask: str
    round: int
    number: int  # the client's
    newcomer: bool
    train: bool
    trial: bool  # whether the client could go on from this state: nothing is kept
    counted: int  # round of the client's last message that counted; 0: none did
    score: tuple[EvaluationPoint, ...]
    samples: SampleSpec
    federation: dict[str, int]  # clients, training samples and public rows of all together

    def facts(self) -> dict[str, Any]:
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**found, "score": list(self.score), "samples": self.samples.facts()}

    @staticmethod
    def of(facts: Mapping[str, Any]) -> ClientQuestion:
        if facts.get("ask") not in ("visit", "leave"):
            raise CodecError(f"the server asks for {facts.get('ask')!r:.40}; expected 'register', 'visit' or 'leave'")
        for name in ("newcomer", "train", "trial"):
            if type(facts.get(name)) is not bool:
                raise CodecError(f"the question's {name!r} is {facts.get(name)!r:.40}; expected true or false")
        round, number, counted = _count(facts, "round", 1), _count(facts, "number"), _count(facts, "counted")
        if counted > round:
            raise CodecError(f"the question is of round {round} and counts on one of {counted}")
        sizes, samples = facts.get("federation"), facts.get("samples")
        if not (isinstance(sizes, dict) and isinstance(samples, dict)):
            raise CodecError("the question lacks what samples are like, or how many there are")
        federation = {name: _count(sizes, name) for name in ("clients", "samples", "public")}
        newcomer, train, trial = facts["newcomer"], facts["train"], facts["trial"]
        score, spec = _points(facts.get("score")), SampleSpec.read(samples)
        return ClientQuestion(facts["ask"], round, number, newcomer, train, trial, counted, score, spec, federation)


def _count(facts: Mapping[str, Any], name: str, least: int = 0) -> int:
    value = facts.get(name)
    if not _is_count(value, least):
        raise CodecError(f"the question's {name!r} is {value!r:.40}; expected a whole number from {least} on")
    return int(facts[name])


def _is_count(value: Any, least: int) -> bool:
    return type(value) is int and least <= value < MOST


def _points(given: Any) -> tuple[EvaluationPoint, ...]:
    if not (isinstance(given, list) and len(given) <= LONGEST and all(map(_is_point, given))):
        raise CodecError(f"the question wants scores at {given!r:.80}; expected a list of [point, round, epochs]")
    return tuple((point, round, epochs) for point, round, epochs in given)


def _is_point(given: Any) -> bool:
    is_triple = isinstance(given, list) and len(given) == 3
    return is_triple and given[0] in POINTS and _is_count(given[1], 1) and _is_count(given[2], 0)


# --- to all clients of a round, and their replies
@dataclass(frozen=True)
class Reply:
    scores: dict[EvaluationPoint, PointScores]
    part: Accumulator  # of the round's sum: its message, if it sent one
    leave: bytes | None = None  # the client goes for good: all of its reply, which holds its factor


@dataclass(frozen=True)
class RoundQuestions:
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
        facts, scored = self.agreement.facts, tuple(self.scored(client))
        sizes = {"clients": facts.clients, "samples": facts.samples, "public": facts.public}
        train = client.name in self.cohort
        asked = ClientQuestion(self.ask, self.round, number, client.newcomer, train, self.trial, counted, scored,
                               self.agreement.kind, sizes)  # fmt: skip
        return encode(self.offer(client, number), self.agreement.fingerprint, asked.facts(), complete=bool(scored))

    def scored(self, client: Registered) -> list[EvaluationPoint]:
        """What a client is scored at; a newcomer adapts for several numbers of epochs."""
        if not client.newcomer:
            return list(self.points)
        method, config = self.agreement.method, self.agreement.config
        late = sorted({1, method.adaptation, config.newcomer_epochs} - {0})
        return [(point, round, each) for point, round, _ in self.points if point != "trained"
                for each in (late if point == "adapted" else (0,))]  # fmt: skip

    def read(self, client: Registered, number: int, reply: bytes | str) -> Reply:
        data, facts = self.check(client, reply)
        if facts.get("leave") is True:
            return Reply({}, Accumulator(), data)
        scores = self._scores(client, facts)
        if client.name not in self.cohort:
            return Reply(scores, Accumulator())
        offer = self.offer(client, number)
        like = message_like(self._nobody(number), offer.shared, offer.own, self.round)
        message = decode(data, like, self.agreement.fingerprint)
        if wrong := self.agreement.method.inspect(message, self._here(client, number)):
            raise CodecError(wrong)
        visit = Visit(tree_map(lambda leaf: leaf[None], message), (), _read_loss(facts.get("loss")))
        part = Accumulator.of(torch.tensor([number]), (offer.shared, offer.own), visit)
        part.bytes_up = payload_bytes(data)  # those that came
        return Reply(scores, part)

    def check(self, client: Registered, reply: bytes | str) -> tuple[bytes, dict[str, Any]]:
        if isinstance(reply, str):
            raise CodecError(reply)
        facts = read_facts(reply, self.agreement.fingerprint)
        if (facts.get("client"), facts.get("round")) != (client.name, self.round):
            given = f"client {facts.get('client')!r:.80} and round {facts.get('round')!r:.20}"
            raise CodecError(f"it is of {given}; expected {client.name!r} and {self.round}")
        if facts.get("trial") is not self.trial:
            raise CodecError("it answers a trial, not the round" if facts.get("trial") else "it answers no trial")
        if facts.get("refused"):
            raise CodecError(f"the site did not send it: {facts['refused']!s:.200}")
        return reply, facts

    def _scores(self, client: Registered, facts: Mapping[str, Any]) -> dict[EvaluationPoint, PointScores]:
        """One table for every point that was asked for, and nothing else."""
        given, asked = facts.get("scores"), self.scored(client)
        if not (isinstance(given, list) and all(isinstance(each, dict) for each in given)):
            raise CodecError("its scores are no list of tables")
        found = [(each.get("point"), each.get("round"), each.get("epochs")) for each in given]
        if found != asked:
            raise CodecError(f"its scores are of {found!r:.120}; expected {asked!r:.120}")
        kind, least = self.agreement.kind, self.agreement.config.least
        return {point: read_scores(each, kind, least) for point, each in zip(asked, given, strict=True)}

    def factor_like(self, client: Registered, number: int) -> Tree | None:
        """What a client takes along when it leaves; None: it cannot be told."""
        return self.agreement.method.factor(self._here(client, number).personal)

    def _here(self, client: Registered, number: int) -> Here:
        """A client right after the broadcast; its record is that of somebody new."""
        offer = self.offer(client, number)
        here = self._nobody(number).receive(offer.shared, offer.own, None, self.round)
        return replace(here, n=here.n.new_tensor(float(client.train)))

    def _nobody(self, number: int) -> Site:
        agreement, kind = self.agreement, self.agreement.kind
        who = torch.tensor(number)
        return site_without_data(agreement, agreement.visits, who, kind.shape, kind.task, kind.integers)


def _read_loss(value: Any) -> Tensor | None:
    """Loss times samples, and samples, as a site says them; they are only shown."""
    if not isinstance(value, list) or [type(each) for each in value] != [float, float]:
        return None
    found = torch.tensor([value], dtype=torch.float64)
    return found if bool(found.isfinite().all()) else None
