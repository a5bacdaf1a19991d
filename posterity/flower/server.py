"""The server of an experiment across machines: offers out, messages added up as they come, the state saved.

It holds no sample. Of a round it holds the running sum and one message beside it (kinds that keep every message, `Bag`
and `Rows`, grow). `experiment.py` saves the state after every round and goes on from there.

Questions of round r ask for the scores of round r - 1 too: what a client receives after a round it gets with the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posterity.core.codec import CodecError, decode, encode, payload_bytes, read_facts
from posterity.core.messages import Message
from posterity.core.protocol import Now, State
from posterity.core.tree import tree_map
from posterity.core.wire import Offer
from posterity.engine.client import Visit
from posterity.engine.expected import message_like, site_without_data
from posterity.engine.keys import fold_key
from posterity.engine.participation import Participation
from posterity.engine.server import Accumulator, Refusal, next_state
from posterity.experiment import run_folder
from posterity.experiment.config import Config
from posterity.flower.agreement import Agreement
from posterity.flower.roster import Exchange, Registered, Roster

Line = dict[str, Any]
Watch = Callable[[Line], None]


@dataclass(frozen=True)
class Reply:
    """What a site sent."""

    scores: list[Line]
    message: Message | None = None
    loss: Any = None
    size: int = 0  # of the message, in bytes


@dataclass
class Server:
    """An experiment on its way."""

    config: Config
    exchange: Exchange
    folder: Path
    roster: Roster
    agreement: Agreement
    state: State
    public: Tensor | None = None
    round: int = 0
    counted: dict[str, int] = field(default_factory=dict)  # the last round of each client whose message counted
    finished: bool = False  # also the last scores are there
    watch: Watch = print

    # --- one round -----------------------------------------------------------------------------------------------
    def step(self) -> None:
        """One round: its cohort trains, and whoever is to be scored is."""
        number = self.round + 1
        self.roster.look(self.exchange)
        cohort = self.cohort(number)
        accumulator, scores = Accumulator(), []
        for client, reply in self.ask(number, cohort):
            try:
                read = self.read(client, number, reply, client.name in cohort)
            except CodecError as error:
                accumulator.refused.append(Refusal(self.roster.numbers[client.name], str(error)))
                continue
            scores += read.scores
            self.add(accumulator, client, read)
        self.settle(number, len(cohort), accumulator)
        self.tell(scores)

    def cohort(self, round: int) -> list[str]:
        """Who trains in a round, from the largest to the smallest: those take longest."""
        able = [client for client in self.roster.members if client.train > 0]
        numbers = torch.tensor([self.roster.numbers[client.name] for client in able], dtype=torch.int64)
        drawn = Participation.parse(self.config.participation).draw(numbers, self.agreement.root, round).tolist()
        chosen = [client for client in able if self.roster.numbers[client.name] in drawn]
        return [client.name for client in sorted(chosen, key=lambda client: -client.train)]

    def ask(self, round: int, cohort: list[str]) -> Iterator[tuple[Registered, bytes | str]]:
        """Questions to all who are needed in a round, and their replies as they come."""
        scored = self.roster.known if self.points(round) else []
        wanted = [self.roster.clients[name] for name in cohort] + [c for c in scored if c.name not in cohort]
        there = {self.roster.node[client.name]: client for client in wanted if client.name in self.roster.node}
        for client in wanted:
            if client.name in cohort and client.name not in self.roster.node:
                yield client, "its site is not there"
        questions = ((node, self.question(client, round, client.name in cohort)) for node, client in there.items())
        waiting = dict(there)
        for node, reply in self.exchange.ask(questions):
            if node in waiting:  # nobody is heard twice
                yield waiting.pop(node), reply

    def offer(self, client: Registered) -> Offer:
        return self.agreement.offer(self.state, None if client.newcomer else self.roster.numbers[client.name])

    def question(self, client: Registered, round: int, trains: bool) -> bytes:
        facts, points = self.agreement.facts, self.points(round)
        asked = {
            "ask": "visit", "round": round, "number": self.roster.numbers[client.name], "newcomer": client.newcomer,
            "train": trains, "counted": self.counted.get(client.name, 0),
            "score": [each for each in points if not (client.newcomer and each[0] == "trained")],
            "samples": self.agreement.kind.facts(),
            "federation": {"clients": facts.clients, "samples": facts.samples, "public": facts.public},
        }  # fmt: skip
        return encode(self.offer(client), self.agreement.fingerprint, asked, complete=bool(asked["score"]))

    def points(self, round: int) -> list[tuple[str, int, int]]:
        """Evaluation points that are asked for with a round's offer: of the round itself, and of the one before."""
        adaptation = self.agreement.method.adaptation
        now = [("trained", round, 0)] if self.due(round) and round <= self.config.rounds else []
        before = [("received", round - 1, 0), ("adapted", round - 1, adaptation)] if self.due(round - 1) else []
        return before + now

    def due(self, round: int) -> bool:
        """Whether a round is evaluated."""
        return round > 0 and (round % self.config.every == 0 or round == self.config.rounds)

    # --- what comes back -----------------------------------------------------------------------------------------
    def read(self, client: Registered, round: int, reply: bytes | str, trains: bool) -> Reply:
        """A reply, checked."""
        if isinstance(reply, str):
            raise CodecError(reply)
        told = read_facts(reply, self.agreement.fingerprint)
        if (told.get("client"), told.get("round")) != (client.name, round):
            said = f"client {told.get('client')!r:.80} and round {told.get('round')!r:.20}"
            raise CodecError(f"it is of {said}; expected {client.name!r} and {round}")
        if told.get("refused"):
            raise CodecError(f"the site did not send it: {told['refused']!s:.200}")
        if not (isinstance(told.get("scores"), list) and all(isinstance(each, dict) for each in told["scores"])):
            raise CodecError("its scores are no list of tables")
        scores = [{**each, "kind": "score", "client": client.name} for each in told["scores"]]
        if not trains:
            return Reply(scores)
        message = decode(reply, self.expected(client, round), self.agreement.fingerprint)
        return Reply(scores, message, told.get("loss"), payload_bytes(reply))

    def expected(self, client: Registered, round: int) -> Message:
        """The structure of a client's message; where some of it stays at home, what the server has in its place."""
        number = torch.tensor(self.roster.numbers[client.name])
        kind, agreement = self.agreement.kind, self.agreement
        site = site_without_data(agreement, agreement.visits, number, kind.shape, kind.task, kind.integers)
        offer = self.offer(client)
        return message_like(site, offer.shared, offer.own, round)

    def add(self, accumulator: Accumulator, client: Registered, read: Reply) -> None:
        """One more message for the sum, if there is one; its bytes are those that came."""
        if read.message is None:
            return
        number, offer = self.roster.numbers[client.name], self.offer(client)
        clients = torch.tensor([number])
        seen = torch.tensor([read.loss], dtype=torch.float64) if _is_loss(read.loss) else None
        visit = Visit(tree_map(lambda leaf: leaf[None], read.message), (), seen)
        part = Accumulator.of(clients, (offer.shared, offer.own), visit)
        part.bytes_up = read.size
        accumulator.join(part)

    def settle(self, round: int, cohort: int, accumulator: Accumulator) -> None:
        """The state after a round; if it cannot be used, everything stays as it was."""
        accepted, why = accumulator.accepted, ""
        report: dict[str, Tensor] = {}
        if accumulator.total is not None:
            key = fold_key(self.agreement.server, round)
            now = Now(round, self.config.rounds, key, accepted, self.public, self.agreement.model)
            try:
                self.state, report, why = next_state(self.agreement.method, self.state, accumulator.total, now)
            except ValueError as error:  # of messages that are right one by one: all weights are 0
                why = str(error)
        names = {number: name for name, number in self.roster.numbers.items()}
        if not why:
            self.counted |= {names[k]: round for clients, _ in accumulator.records for k in clients.tolist()}
        self.round = round
        loss, samples = accumulator.losses.tolist()
        self.tell([{
            "kind": "round", "round": round, "cohort": cohort, "accepted": 0 if why else accepted,
            "refused": [{"client": names[r.client], "reason": r.reason} for r in accumulator.refused],
            "loss": loss / samples if samples else None,
            "bytes_up": accumulator.bytes_up, "bytes_down": accumulator.bytes_down,
            "report": {name: float(value) for name, value in report.items()},
            **({"rolled_back": f"the state after it cannot be used: {why}"} if why else {}),
        }])  # fmt: skip

    def finish(self) -> None:
        """The scores of the last round, with what clients receive after it."""
        self.roster.look(self.exchange)
        after, scores = self.config.rounds + 1, []
        for client, reply in self.ask(after, []):
            try:
                scores += self.read(client, after, reply, False).scores
            except CodecError as error:
                scores.append({"kind": "lost", "client": client.name, "round": self.round, "reason": str(error)})
        self.tell(scores)
        self.finished = True

    def tell(self, lines: list[Line]) -> None:
        """Lines for the folder and for whoever watches."""
        if lines:
            run_folder.append_lines(self.folder / run_folder.METRICS, lines)
        for line in lines:
            self.watch(line)


def _is_loss(value: Any) -> bool:
    """Loss times samples, and samples, as a site says them; they are only shown."""
    return isinstance(value, list) and len(value) == 2 and all(
        isinstance(each, float) and math.isfinite(each) for each in value
    )  # fmt: skip


__all__ = ["Server"]
