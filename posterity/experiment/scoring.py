"""Scores of all clients at all evaluation points, as lines of a run.

`run.py` says what is asked and when, `engine/round.py` answers, `evaluate/` turns answers into metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posterity.core.protocol import Pass
from posterity.data.federation import Part
from posterity.engine.round import Question
from posterity.engine.simulation import Simulation
from posterity.evaluate import (
    METRICS,
    Metric,
    RankedRows,
    Scores,
    fairness,
    listed_per_client,
    per_client,
    rank,
    score,
    summarise,
    user_sums,
)
from posterity.runs.lines import LISTED, ClientColumns, ScoreLine


@dataclass(frozen=True)
class Scored:
    """What a scoring pass keeps of some clients' rows; `+` is that of the rows of both."""

    scores: Scores
    ranks: RankedRows | None
    own: Mapping[Metric, Tensor]  # sums of metrics of your own

    def __add__(self, other: Scored) -> Scored:
        ranks = None if self.ranks is None or other.ranks is None else self.ranks + other.ranks
        return Scored(self.scores + other.scores, ranks, {m: sums + other.own[m] for m, sums in self.own.items()})


@dataclass(frozen=True)
class ScoringPlace:
    """Which model the scores of a line are of, and whose."""

    round: int
    point: str
    epochs: int | None
    group: str


@dataclass(frozen=True)
class Asked:
    """A question about a group of clients: members, newcomers, or nobody in particular, who has the common test set.

    Rounds are chosen by the scores of `judges`, if that is not everybody who is asked: those of the other rounds.
    """

    group: str
    question: Question
    judges: Tensor | None = None  # (clients,) places among those who are asked


def ask_members(
    sim: Simulation, points: tuple[str, ...], sample: Tensor | None = None, judges: Tensor | None = None
) -> Iterator[Asked]:
    """All members, or a sample of them, at some points, on validation and test."""
    who = torch.arange(sim.federation.members, device=sim.root.device) if sample is None else sample
    for point in points:
        epochs = sim.method.adaptation if point == "adapted" else 0
        yield Asked("members", Question(who, _held(sim), point, epochs), judges)


def ask_newcomers(sim: Simulation, epochs: tuple[int, ...]) -> Iterator[Asked]:
    """Clients that the server has never met, after some epochs on their own data; 0: as received."""
    federation = sim.federation
    late = torch.arange(federation.members, federation.clients, device=sim.root.device)
    for each in epochs if len(late) else ():
        yield Asked("newcomers", Question(late, _held(sim), "adapted" if each else "received", each, True))


def ask_common(sim: Simulation) -> Iterator[Asked]:
    """The test set that belongs to no client, scored with what the server would give to somebody without data.

    No client's data have a part in it: neither its rows nor its key.
    """
    rows, clients = sim.federation.common, sim.federation.clients
    if rows is None:
        return
    offsets = torch.zeros(clients + 2, dtype=torch.int64, device=rows.device)
    offsets[-1] = len(rows)
    nobody = torch.full((1,), clients, device=rows.device)
    yield Asked("common", Question(nobody, (Part(rows, offsets),), "received", 0, newcomers=True, outside=True))


def score_lines(
    sim: Simulation, round: int, asked: Asked, outputs: list[list[Tensor]], own: Sequence[Metric] = ()
) -> Iterator[ScoreLine]:
    """The lines of an answer: for a group of clients on validation, test and what is held out of all fitting.

    That is both, unless something was fitted on the validation part: then it is the test part alone. What rounds are
    chosen by, validation and held out, is of the judges alone where there are some. `own` are metrics of your own.
    """
    federation, question = sim.federation, asked.question
    scored = _scored_parts(sim, question, outputs, own)
    if asked.group == "common":
        yield _line(round, asked, federation.task, "test", scored[0])
        return
    size = federation.members if asked.group == "members" else federation.clients - federation.members
    test_line = _line(round, asked, federation.task, "test", scored[1], _weights(sim, question), size)
    if asked.judges is not None:
        places, question = asked.judges.tolist(), replace(question, clients=question.clients[asked.judges])
        asked = replace(asked, question=question)
        scored = _scored_parts(sim, question, [[output[k] for k in places] for output in outputs], own)
    weights, (validation, test) = _weights(sim, question), scored
    held = test if fits_validation(question.passes(sim)) else validation + test
    yield _line(round, asked, federation.task, "validation", validation, weights, size)
    yield test_line
    yield _line(round, asked, federation.task, "held", held, weights, size)


def _weights(sim: Simulation, question: Question) -> Tensor:
    """Training samples of the clients that are asked."""
    return sim.federation.train.counts[question.clients]


def _scored_parts(
    sim: Simulation, question: Question, outputs: list[list[Tensor]], own: Sequence[Metric]
) -> list[Scored]:
    """What is kept of the answers on each part that was asked about."""
    y, clients = sim.federation.y, question.clients
    return [
        _scored(sim, output, y[_rows(part, clients)], own) for part, output in zip(question.parts, outputs, strict=True)
    ]


def fits_validation(passes: Iterable[Iterable[Pass]]) -> bool:
    """Whether any pass reads the validation part, whose rows then say nothing about what was fitted on them."""
    return any(each.on == "validation" for some in passes for each in some)


def _rows(part: Part, clients: Tensor) -> Tensor:
    """The rows of some clients, one after the other."""
    counts = part.counts[clients]
    begin = part.offsets[clients] - (counts.cumsum(0) - counts)
    return part.rows[torch.repeat_interleave(begin, counts) + torch.arange(int(counts.sum()), device=counts.device)]


def _held(sim: Simulation) -> tuple[Part, Part]:
    """What clients are scored on; who has fewer rows of a part than may be told has none of it."""
    held = sim.federation.validation, sim.federation.test
    return held if sim.min_count == 1 else (held[0].without_small(sim.min_count), held[1].without_small(sim.min_count))


def _scored(sim: Simulation, outputs: list[Tensor], y: Tensor, own: Sequence[Metric]) -> Scored:
    federation = sim.federation
    flat = torch.cat(outputs)
    offsets = torch.tensor([0, *(o.shape[0] for o in outputs)], device=flat.device).cumsum(0)
    scores = score(flat, y, offsets, federation.classes, federation.task)
    two = federation.task == "classification" and federation.classes == 2
    ranks = rank(flat, y, offsets) if two else None
    return Scored(scores, ranks, user_sums(own, flat, y, offsets, federation.task))


def _line(
    round: int, asked: Asked, task: str, part: str, scored: Scored, weights: Tensor | None = None, size: int = 1
) -> ScoreLine:  # fmt: skip
    question, clients = asked.question, scored.scores.clients
    place = ScoringPlace(round, question.point, question.epochs, asked.group)
    weights = torch.ones(clients) if weights is None else weights
    values = per_client(scored.scores, scored.ranks, own=scored.own)
    sample = {"clients": clients, "of": size} if clients < size else None
    if size <= LISTED and sample is None:
        return score_line(place, task, part, scored, weights, values)
    who, columns = question.clients.cpu(), {"n": scored.scores.n, **_listed(scored, values)}
    first = 0 if asked.group == "members" else int(who[0])
    columns = {name: column.float().cpu() for name, column in columns.items()}
    many = ClientColumns(size, (who - first).int(), columns)
    return score_line(place, task, part, scored, weights, values, many, sample)


def score_line(
    place: ScoringPlace, task: str, part: str, scored: Scored, weights: Tensor, values: Mapping[str, Tensor],
    clients: Mapping[str, list[Any]] | None = None, sample: Mapping[str, int] | None = None,
) -> ScoreLine:  # fmt: skip
    """A line of scores; `values` are the metrics of each (clients,), listed unless `clients` has them another way."""
    if clients is None:
        listed = {name: [float(v) for v in value] for name, value in _listed(scored, values).items()}
        clients = {"n": [int(n) for n in scored.scores.n], **listed}
    summary = summarise(scored.scores, weights, ranks=scored.ranks, own=scored.own, values=values)
    equal, bins, flat = {}, [], []
    if task == "classification":
        equal, pooled = fairness(scored.scores), scored.scores.pooled()
        bins, flat = pooled.bins[0].tolist(), pooled.flat[0].tolist()
    return ScoreLine(**vars(place), part=part, metrics=summary, fairness=equal, clients=clients, bins=bins, flat=flat,
                     sample=sample)  # fmt: skip


def _listed(scored: Scored, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {m.name: values[m.name] for m in listed_per_client((*METRICS, *scored.own)) if m.name in values}
