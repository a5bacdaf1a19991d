"""What the server asks of one client, as it travels: written by the server, checked by the site before it is obeyed.

A question may be damaged on its way, or come from a server of another version or another mind. Whatever a site would
act on has a type and a range here; what is outside is a `CodecError` that says which, and nothing has been touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from posterity.core.codec import CodecError
from posterity.core.protocol import POINTS
from posterity.flower.agreement import MOST, SampleKind

EvaluationPoint = tuple[str, int, int]  # point, round, epochs
ASKS = ("visit", "leave")
LONGEST = 64  # points that are scored at once


@dataclass(frozen=True)
class ClientQuestion:
    """A visit, or to leave: of which client, in which round, and what is scored beside it."""

    ask: str
    round: int
    number: int  # the client's
    newcomer: bool
    train: bool
    trial: bool  # whether the client could go on from this state: nothing is kept
    counted: int  # round of the client's last message that counted; 0: none did
    score: tuple[EvaluationPoint, ...]
    samples: SampleKind
    federation: dict[str, int]  # clients, training samples and public rows of all together

    def facts(self) -> dict[str, Any]:
        """As it is written."""
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**told, "score": list(self.score), "samples": self.samples.facts()}

    @staticmethod
    def of(facts: Mapping[str, Any]) -> ClientQuestion:
        """As it is read."""
        if facts.get("ask") not in ASKS:
            raise CodecError(f"the server asks for {facts.get('ask')!r:.40}; this site answers 'register', 'visit' and "
                             "'leave'")  # fmt: skip
        for name in ("newcomer", "train", "trial"):
            if type(facts.get(name)) is not bool:
                raise CodecError(f"the question's {name!r} is {facts.get(name)!r:.40}; expected true or false")
        round, number, counted = _count(facts, "round", 1), _count(facts, "number"), _count(facts, "counted")
        if counted > round:
            raise CodecError(f"the question is of round {round} and counts on one of {counted}")
        told, kind = facts.get("federation"), facts.get("samples")
        if not (isinstance(told, dict) and isinstance(kind, dict)):
            raise CodecError("the question lacks what samples are like, or how many there are")
        federation = {name: _count(told, name) for name in ("clients", "samples", "public")}
        newcomer, train, trial = facts["newcomer"], facts["train"], facts["trial"]
        score, samples = _points(facts.get("score")), SampleKind.read(kind)
        return ClientQuestion(facts["ask"], round, number, newcomer, train, trial, counted, score, samples, federation)


def _count(facts: Mapping[str, Any], name: str, least: int = 0) -> int:
    value = facts.get(name)
    if type(value) is not int or not least <= value < MOST:
        raise CodecError(f"the question's {name!r} is {value!r:.40}; expected a whole number from {least} on")
    return value


def _points(given: Any) -> tuple[EvaluationPoint, ...]:
    if not (isinstance(given, list) and len(given) <= LONGEST and all(map(_is_point, given))):
        raise CodecError(f"the question wants scores at {given!r:.80}; expected a list of [point, round, epochs]")
    return tuple((point, round, epochs) for point, round, epochs in given)


def _is_point(given: Any) -> bool:
    if not (isinstance(given, list) and len(given) == 3 and given[0] in POINTS):
        return False
    return all(type(each) is int and least <= each < MOST for least, each in zip((1, 0), given[1:], strict=True))


__all__ = ["ClientQuestion", "EvaluationPoint"]
