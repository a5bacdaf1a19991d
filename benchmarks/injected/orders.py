"""Undisturbed runs whose messages arrive in every order: whether the end depends on it, and how far.

Messages are added up as they come, each blended into a mean in float64. Where the mean of a round lies exactly between
two numbers of float32, which an even number of training samples makes possible, the rounding of the blends decides, and
so does the order.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flower.in_process import InProcess, sites

from injected.deployed import CLIENTS, ROUNDS
from injected.messages import opened, setting
from posterity.flower.codec import read_facts
from posterity.flower.settings import RoundRules
from posterity.laws.case import largest_gap
from posterity.settings.config import Config


class Ordered(InProcess):
    """A network on which the replies of a round arrive in another order than they were asked for."""

    def __init__(self, make: dict[int, Any], order: Sequence[int]):
        super().__init__(make)
        self.order = order

    def ask(self, questions: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        asked = list(questions)
        visits = bool(asked) and read_facts(asked[0][1])["ask"] == "visit"
        yield from super().ask([asked[place] for place in self.order] if visits else asked)


def end(config: Config, order: Sequence[int]) -> Any:
    """The state after a run."""
    with tempfile.TemporaryDirectory() as place:
        exchange = Ordered(sites(config, Path(place)), order)
        server = opened(config, Path(place), exchange, lambda line: None, RoundRules())
        for _ in range(config.rounds):
            server.step()
    return server.state


def table(methods: Sequence[str] = ("fedavg", "scaffold"), seeds: Sequence[int] = (0, 1, 2, 3)) -> str:
    rows = ["| method | seed | orders with another end than the first | by at most |", "|---|--:|--:|--:|"]
    for method, seed in itertools.product(methods, seeds):
        config = replace(setting(method, None, CLIENTS, ROUNDS), seed=seed)
        first, *others = (end(config, order) for order in itertools.permutations(range(CLIENTS)))
        gaps = [largest_gap(each, first)[0] for each in others]
        rows.append(f"| {method} | {seed} | {sum(gap > 0 for gap in gaps)} of {len(gaps)} | {max(gaps):.2g} |")
    return "\n".join(rows)


__all__ = ["table"]
