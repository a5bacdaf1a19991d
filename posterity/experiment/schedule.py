"""When a run is evaluated, and whose clients: so that evaluation costs at most a fifth of it.

What an evaluation costs is not measured but computed, from what is known before the first round: steps, rows and lines
of a round's cohort and of an evaluation at all points, in seconds of one slow core. So the same configuration is
evaluated in the same rounds on every machine; a ratio of two such sums is what counts. Of more than `SAMPLE` members
a sample is evaluated, drawn once by the seed, and everybody in the last round; rounds are chosen by the sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.core.protocol import POINTS, Method, Pass
from posterity.core.random import fold
from posterity.core.tree import tree_leaves
from posterity.engine.keys import EVALUATED
from posterity.engine.participation import Participation, draw_distinct
from posterity.engine.simulation import Simulation
from posterity.settings.config import Config

SHARE = 0.2  # of a run that evaluation may cost
SAMPLE = 2000  # members up to which all are evaluated
START = 3.0  # seconds of a run before its first round
STEP, LINE, CLIENT = 1.5e-3, 0.015, 2e-5  # seconds of a step of a stack, of a line of scores, of a client in it
FLOPS = 5e9  # a second
SKEW = 2.0  # the largest client has so many times the steps of a mean one
NICE = (1, 2, 3, 5, 10, 20, 25, 50)  # rounds between evaluations: seeds differ in their data, but hardly in this


@dataclass(frozen=True)
class Schedule:
    """Evaluated are every so many rounds and the last one: `sample` of the members, in the last one all of them."""

    every: int
    rounds: int
    sample: Tensor | None = None  # (clients,) ascending; None: everybody
    ends_with_all: bool = True  # whether everybody is evaluated in the last round
    remark: str = ""

    def due(self, round: int) -> bool:
        """Whether a round is evaluated."""
        return round % self.every == 0 or round == self.rounds

    def who(self, round: int) -> Tensor | None:
        """The members that are evaluated in a round; None: everybody."""
        return None if round == self.rounds and self.ends_with_all else self.sample

    def judges(self, round: int) -> Tensor | None:
        """The members by whose scores rounds are chosen, where more are evaluated: as in every other round."""
        return self.sample if self.who(round) is None else None

    @property
    def clients(self) -> str:
        """As `--evaluate-clients` has it."""
        return "all" if self.sample is None else str(len(self.sample))

    @staticmethod
    def of(config: Config, sim: Simulation) -> Schedule:
        """As asked for, or as the costs allow."""
        members, sample, remarks = sim.federation.members, _sample(config, sim), list[str]()
        scored = members if sample is None else len(sample)
        ends_with_all = config.evaluate_clients is None or sample is None
        every = config.evaluate_every or _affordable(config, sim, scored, members if ends_with_all else scored)
        if config.evaluate_every is None and every > config.every:
            often = f"every {every} rounds" if every < config.rounds else "in the last round only"
            remarks.append(f"evaluated {often}, so that it costs at most a fifth of the run; --evaluate-every changes "
                           "it")  # fmt: skip
        if sample is not None:
            end = ", in the last round all" if ends_with_all else ""
            remarks.append(f"{scored:,} of {members:,} clients are evaluated, drawn by the seed{end}; "
                           "--evaluate-clients changes it")  # fmt: skip
        return Schedule(every, config.rounds, sample, ends_with_all, "; ".join(remarks))


def _sample(config: Config, sim: Simulation) -> Tensor | None:
    """Which members are evaluated during the run; None: everybody."""
    members, asked = sim.federation.members, config.evaluate_clients
    count = SAMPLE if asked is None else members if asked == "all" else int(asked)
    if count >= members:
        return None
    key = fold(fold(sim.root, EVALUATED), 0)
    if 2 * count <= members:
        return draw_distinct(key, count, members)
    stays = torch.ones(members, dtype=torch.bool, device=sim.root.device)  # more than half: draw who is left out
    stays[draw_distinct(key, members - count, members)] = False
    return torch.nonzero(stays)[:, 0]


def _affordable(config: Config, sim: Simulation, scored: int, at_end: int) -> int:
    """Rounds between evaluations, such that all of them cost at most their share of the run."""
    budget = SHARE / (1 - SHARE) * (START + config.rounds * cost_of_round(config, sim))
    left = budget - cost_of_evaluation(config, sim, at_end)  # for others than the last round's
    needed = -(-config.rounds // (max(0, math.floor(left / cost_of_evaluation(config, sim, scored))) + 1))
    if needed <= config.every:
        return config.every
    tens = 10 ** max(0, len(str(needed)) - 2)
    return min(next((n * tens for n in (*NICE, 100) if n * tens >= needed), needed), config.rounds)


def cost_of_round(config: Config, sim: Simulation) -> float:
    """Seconds, about, of a round of training."""
    able = int((sim.federation.train.sizes[: sim.federation.members] > 0).sum())
    return _passes(sim, sim.passes(), Participation.parse(config.participation).size(able)) + STEP


def member_points(config: Config, method: Method) -> tuple[str, ...]:
    """The points at which members are scored."""
    return (method.scored,) if config.evaluate_points == "own" else POINTS


def newcomer_epochs(config: Config, method: Method) -> tuple[int, ...]:
    """The epochs after which newcomers are scored; alone: as members are, or after most where members have trained."""
    every = sorted({0, 1, method.adaptation, config.newcomer_epochs})
    if config.evaluate_points == "all":
        return tuple(every)
    return ({"received": 0, "adapted": method.adaptation, "trained": every[-1]}[method.scored],)


def cost_of_evaluation(config: Config, sim: Simulation, members: int) -> float:
    """Seconds, about, of an evaluation of so many members and of all newcomers, at all points that are asked for."""
    late = sim.federation.clients - sim.federation.members
    asked = member_points(config, sim.method)
    before = {"received": (), "adapted": sim.passes(sim.method.adaptation), "trained": sim.passes()}
    points, lines = len(asked), 3 * len(asked) * (LINE + CLIENT * members)
    work = sum(_passes(sim, before[point], members) for point in asked)
    work += points * _passes(sim, sim.prepare(), members)
    predicted = points * members
    for epochs in newcomer_epochs(config, sim.method) if late else ():
        work += _passes(sim, (*sim.passes(epochs), *sim.prepare()), late)
        lines += 3 * (LINE + CLIENT * late)
        predicted += late
    if sim.federation.common is not None:
        lines += LINE + len(sim.federation.common) * _row(sim)
    held = _mean(sim, "validation") + _mean(sim, "test")
    return work + lines + predicted * held * _row(sim) + points * 2 * STEP


def _passes(sim: Simulation, passes: Iterable[Pass], clients: float) -> float:
    """Seconds, about, of passes of so many clients like the mean one."""
    seconds = 0.0
    for each in passes:
        rows = _mean(sim, each.on)
        batch = min(each.batch or rows, rows) or 1.0
        steps = min(math.ceil(rows / batch) * each.epochs, math.inf if each.max_steps is None else each.max_steps)
        seconds += SKEW * steps * STEP + (3 if each.learns else 1) * steps * batch * clients * _row(sim)
    return seconds


def _mean(sim: Simulation, part: str) -> float:
    """Rows of a mean member."""
    sizes = getattr(sim.federation, part).sizes
    return float(sizes[: sim.federation.members].sum()) / max(1, sim.federation.members)


def _row(sim: Simulation) -> float:
    """Seconds, about, of a forward pass of one row."""
    numbers = sum(leaf.numel() for leaf in tree_leaves(sim.initial))
    return (2.0 * numbers + 8.0 * sim.sample) / FLOPS
