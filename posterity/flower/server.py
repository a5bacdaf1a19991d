"""The server of an experiment across machines: offers out, messages added up one by one, the state saved.

It holds no sample. Of a round it holds the running sum and one message beside it (kinds that keep every message, `Bag`
and `Rows`, grow). `experiment.py` saves the state after every round and goes on from there.

Questions of round r ask for the scores of round r - 1 too: what a client receives after a round it gets with the next.

A round ends as in a simulation (`engine/server.py`). With too few usable replies, those who are missing are asked
again; what has arrived stays in the sum, and nobody is in it twice.

Where a method protects clients from each other by what the server draws (`+dp`), it is drawn in secret. Sites are given
the run's seed, so whatever follows from it they can compute too: noise that was drawn from it could be subtracted
again, and a cohort be foretold. A method that says `secret` has the noise of `combine` and its cohorts drawn from a
number of the operating system's instead. It is made when the run begins, stays in the server's folder in a file that
its owner alone can read, so that a run that was interrupted goes on with it, and is neither sent nor logged. Whatever
else is drawn follows from the seed, as in a simulation; so do the other methods, to the last bit.
"""

import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posterity.core.protocol import Now, State
from posterity.core.random import fold, make_key
from posterity.engine import server as engine
from posterity.engine.keys import SERVER, fold_key
from posterity.engine.participation import Participation
from posterity.evaluate import share_of_zeros
from posterity.experiment.run import round_line
from posterity.experiment.scoring import ScoringPlace
from posterity.flower.agreement import Agreement
from posterity.flower.codec import CodecError
from posterity.flower.question import EvaluationPoint, RoundQuestions
from posterity.flower.roster import Exchange, Registered, Roster
from posterity.flower.scores import Line, PointScores, group_lines
from posterity.flower.settings import RoundRules
from posterity.runs import files
from posterity.runs.folder import METRICS
from posterity.runs.lines import Line as RunLine
from posterity.runs.lines import NoteLine, RoundLine, ScoreLine, to_json
from posterity.settings.config import Config

SECRET = "server.secret"  # in the server's folder


# --- what is drawn
def read_key(folder: Path, method: Any, seed: int, begun: bool) -> Tensor:
    """The key of what a run's server draws: of its seed, or of its secret."""
    if not method.secret:
        return make_key(seed)
    path = folder / SECRET
    if begun and not path.exists():
        raise ValueError(f"{path} is missing: with it the run's noise and its cohorts are drawn; put it back")
    if not path.exists():  # whole, and readable by nobody else
        files.write_atomic(path, f"{secrets.randbits(63):016x}\n".encode(), rights=0o600)
    text = path.read_text(encoding="ascii", errors="replace").strip()
    if not re.fullmatch("[0-7][0-9a-f]{15}", text):
        raise ValueError(f"{path} is damaged: expected a number of 16 digits; put the old file back")
    return make_key(int(text, 16))


# --- rounds
Watch = Callable[[Line], None]
ScoresByName = dict[str, dict[EvaluationPoint, PointScores]]
LEAVES, ABSENT = "it leaves, by its own wish", "its site is not there"


@dataclass
class Server:
    config: Config
    exchange: Exchange
    folder: Path
    roster: Roster
    agreement: Agreement
    state: State
    key: Tensor = field(repr=False)  # of what the server draws: it may be a secret
    public: Tensor | None = None
    round: int = 0
    counted: dict[str, int] = field(default_factory=dict)  # the last round of each client whose message counted
    finished: bool = False  # also the last scores are there, but for those of `lacking`
    lacking: list[str] = field(default_factory=list)  # clients that did not answer to the final model
    last: dict[str, list[Line]] = field(default_factory=dict)  # where some lack: what the others said
    leaving: dict[str, bytes] = field(default_factory=dict)  # clients that said so, by their reply
    watch: Watch = print
    rules: RoundRules = RoundRules()

    def step(self) -> None:
        """One round: its cohort trains, and whoever is to be scored is."""
        self.look()
        number = self.round + 1
        request = RoundQuestions(self.agreement, self.state, number, self.cohort(number), self.points(number))
        wanted, able = self.participation.count or 0, len(self.roster.able)
        note = f"participation = {wanted} was asked for, and {able} clients can train: all of them are asked"
        notes = (note,) if wanted > able else ()
        visited, scores = self.gather(request)
        visited.refused += [engine.Refusal(self.roster.numbers[name], LEAVES) for name in self.leaving]
        self.state, log = self.close_round(request, visited)
        self.round = number
        self.write([replace(self.line(log), notes=notes), *self.score_lines(scores)])

    def look(self) -> None:
        self.roster.look(self.exchange)
        self.roster.admit(self.agreement.kind, self.agreement.grows)
        self.note(*self.roster.news())

    @property
    def participation(self) -> Participation:
        return Participation.parse(self.config.participation)

    def cohort(self, round: int) -> tuple[str, ...]:
        """Who trains, the largest first: those take longest."""
        able = self.roster.able
        numbers = torch.tensor([self.roster.numbers[client.name] for client in able], dtype=torch.int64)
        drawn = self.participation.at_most(len(able)).draw(numbers, self.key, round).tolist()
        chosen = [client for client in able if self.roster.numbers[client.name] in drawn]
        return tuple(client.name for client in sorted(chosen, key=lambda client: -client.train))

    def gather(self, request: RoundQuestions) -> tuple[engine.Accumulator, ScoresByName]:
        """The sum of a round's messages, and its scores; those who are missing are asked again."""
        rules, scores, tried = self.rules, ScoresByName(), 1
        visited = self.collect(request, self.scored(request), scores)
        while True:
            cohort, needed = self.needed(request)
            if visited.accepted >= needed:
                return visited, scores
            left_out = "; ".join(f"{name}: {reason}" for name, reason in self.named(visited.refused))
            few = (f"round {request.round} has {visited.accepted} of {len(cohort)} usable replies after try {tried} of "
                   f"{rules.tries} and needs {needed} ({left_out})")  # fmt: skip
            if tried == rules.tries:
                raise ValueError(f"{few}. Nothing of it was counted: bring the sites back and start the run again, or "
                                 "give a smaller 'minimum'")  # fmt: skip
            tried += 1
            self.note(f"{few}: the others are asked again")
            time.sleep(rules.pause)
            self.roster.look(self.exchange)
            visited.refused.clear()
            visited.join(self.collect(request, self.without(cohort, visited), scores))

    def needed(self, request: RoundQuestions) -> tuple[list[str], int]:
        """Who of a cohort is not leaving, and how many of them must have replied."""
        cohort = [name for name in request.cohort if name not in self.leaving]
        return cohort, self.rules.needed(len(cohort))

    def collect(
        self, request: RoundQuestions, asked: Sequence[Registered], scores: ScoresByName | None = None
    ) -> engine.Accumulator:
        """What some clients reply: the sum of their messages; their scores are put into `scores`."""
        visited = engine.Accumulator()
        for client, reply in self.ask(request, asked):
            number = self.roster.numbers[client.name]
            try:
                read = request.read(client, number, reply)
            except CodecError as error:
                visited.refused.append(engine.Refusal(number, str(error)))
                continue
            if read.leave is not None:
                self.leaving[client.name] = read.leave
                continue
            if scores is not None:
                scores[client.name] = read.scores
            visited.join(read.part)
        return visited

    def ask(self, request: RoundQuestions, asked: Sequence[Registered]) -> Iterator[tuple[Registered, bytes | str]]:
        """Replies to a round's questions; whoever is to train and is not there is named."""
        node, numbers, counted = self.roster.node, self.roster.numbers, self.counted
        for client in asked:
            if client.name in request.cohort and client.name not in node:
                yield client, ABSENT
        here = [client for client in asked if client.name in node]
        waiting = {node[client.name]: client for client in here}
        questions = (request.question(client, numbers[client.name], counted.get(client.name, 0)) for client in here)
        for place, reply in self.exchange.ask(zip(list(waiting), questions, strict=True)):
            if place in waiting:  # nobody is heard twice
                yield waiting.pop(place), reply

    def scored(self, request: RoundQuestions) -> list[Registered]:
        others = [client for client in self.roster.known if client.name not in request.cohort] if request.points else []
        return [self.roster.clients[name] for name in request.cohort] + others

    def without(self, cohort: Sequence[str], visited: engine.Accumulator) -> list[Registered]:
        there = {number for clients, _ in visited.records for number in clients.tolist()}
        return [self.roster.clients[name] for name in cohort if self.roster.numbers[name] not in there]

    def points(self, round: int) -> tuple[EvaluationPoint, ...]:
        """Evaluation points of a round's offer: of the round itself, and of the one before."""
        adaptation = self.agreement.method.adaptation
        now = [("trained", round, 0)] if self.due(round) and round <= self.config.rounds else []
        before = [("received", round - 1, 0), ("adapted", round - 1, adaptation)] if self.due(round - 1) else []
        return (*before, *now)

    def due(self, round: int) -> bool:
        return round > 0 and (round % self.config.every == 0 or round == self.config.rounds)

    # --- its end
    def close_round(self, request: RoundQuestions, visited: engine.Accumulator) -> tuple[State, engine.RoundLog]:
        """The state after a round, and its log; if it cannot be used, all stays as it was."""
        after, log = self.commit(request, visited)
        suspects = engine.outliers(visited.sizes) if log.rolled_back else []
        if not suspects:
            return after, log
        named = {number for number in visited.sizes if number not in suspects}
        rest = [name for name in request.cohort if self.roster.numbers[name] in named]
        others = self.collect(request, [self.roster.clients[name] for name in rest])
        others.refused += visited.refused
        then, second = self.commit(request, others.without(suspects, visited.sizes))
        if second.rolled_back:
            return after, log
        return then, replace(second, bytes_up=log.bytes_up, bytes_down=log.bytes_down)

    def commit(self, request: RoundQuestions, visited: engine.Accumulator) -> tuple[State, engine.RoundLog]:
        log = visited.log(request.round, len(request.cohort))
        if visited.total is None:
            return self.state, log
        now = Now(request.round, self.config.rounds, fold_key(fold(self.key, SERVER), request.round), visited.accepted,
                  self.public, self.agreement.model)  # fmt: skip
        try:
            after, report, why = engine.next_state(self.agreement.method, self.state, visited.total, now)
        except ValueError as error:  # of messages that are right one by one: all weights are 0
            why = str(error)
        if why:
            return self.state, engine.rolled_back(log, engine.UNUSABLE + why)
        suspicious = engine.has_grown(after, self.state) and not self.agreement.method.secret
        if suspicious and not engine.goes_on(log, self.tried(request, after)):
            return self.state, engine.rolled_back(log, engine.STUCK)
        names = {number: name for name, number in self.roster.numbers.items()}
        self.counted |= {names[k]: request.round for clients, _ in visited.records for k in clients.tolist()}
        return after, replace(log, report={name: float(value) for name, value in report.items()})

    def tried(self, request: RoundQuestions, after: State) -> engine.RoundLog:
        """What becomes of a round's cohort with a state that is not taken yet; no site keeps anything of it.

        Not of a method that draws in secret: with the state that is taken in its place, sites would have two sums with
        the same noise, and one more than is accounted for.
        """
        trial = replace(request, state=after, round=request.round + 1, points=(), trial=True)
        visited = self.collect(trial, [self.roster.clients[name] for name in self.needed(request)[0]])
        return visited.log(trial.round, len(trial.cohort))

    # --- its lines
    def named(self, refused: Sequence[engine.Refusal]) -> list[tuple[str, str]]:
        names = {number: name for name, number in self.roster.numbers.items()}
        return [(names[each.client], each.reason) for each in refused]

    def line(self, log: engine.RoundLog) -> RoundLine:
        """A round, for the folder; without seconds, so that an interrupted run has the same lines."""
        zeros = share_of_zeros(self.state.params) if self.due(log.round) else None
        return replace(round_line(log, None), refused=tuple(self.named(log.refused)), zeros=zeros)

    def score_lines(self, scores: ScoresByName) -> Iterator[ScoreLine]:
        """Scores of each group, as a simulation has them; who said nothing has no rows."""
        kind, least = self.agreement.kind, self.config.least
        for group, clients in self.roster.groups().items():
            heard = [scores.get(client.name, {}) for client in clients]
            train = [client.train for client in clients]
            for point, round, epochs in dict.fromkeys(each for some in heard for each in some):
                place, asked = ScoringPlace(round, point, epochs, group), (point, round, epochs)
                yield from group_lines(place, [some.get(asked) for some in heard], train, kind, least)

    def note(self, *texts: str) -> None:
        self.write([NoteLine(text) for text in texts])

    def write(self, lines: Sequence[RunLine]) -> None:
        """Lines for the folder and for whoever watches, who may have seen some."""
        written = [to_json(line) for line in lines]
        if written:
            files.append_lines(self.folder / METRICS, written)
        for line in written:
            if line.get("text") not in self.roster.shown:
                self.watch(line)
