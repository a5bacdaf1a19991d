"""Who takes part in a round: everybody, a count, a share, or each with a probability.

A count or a share costs what the cohort costs, whatever the number of registered clients. `p:` asks every client.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posterity.core.random import fold, uniform
from posterity.engine.keys import COHORT
from posterity.settings.hyperparameters import convert, parse_share


@dataclass(frozen=True)
class Participation:
    """`count` clients, or a `share` of them, or each with `probability`; everybody if all are None."""

    count: int | None = None
    share: float | None = None
    probability: float | None = None

    @staticmethod
    def parse(text: str) -> Participation:
        """`all`, `10`, `10%` or `p:0.3`."""
        word = str(text).strip()
        try:
            if word == "all":
                return Participation()
            if word.endswith("%"):
                return Participation(share=_within(parse_share(word)))
            if word.startswith("p:"):
                return Participation(probability=_within(convert(word[2:], float)))
            if (count := convert(word, int)) >= 1:
                return Participation(count=count)
        except ValueError:
            pass
        raise ValueError(
            f"participation {text!r} is not understood: give 'all', a number of clients ('10'), a share ('10%') "
            "or the probability that a client is available ('p:0.3')"
        )

    def size(self, able: int) -> float:
        """How many of so many clients take part in a round, on average."""
        share = self.share if self.share is not None else self.probability
        return min(able, self.count) if self.count is not None else able * (1.0 if share is None else share)

    def at_most(self, able: int) -> Participation:
        """The same where only so many clients are left: a count that is larger is all of them."""
        return self if self.count is None else replace(self, count=min(self.count, able))

    def draw(self, able: Tensor, root: Tensor, round: int) -> Tensor:
        """The cohort of a round, in ascending order, out of the clients `able` (clients with training data)."""
        if self.probability is not None:
            return able[uniform(_key(root, round), (len(able),), torch.float64) < self.probability]
        count = self.count if self.count is not None else len(able)
        if self.share is not None:
            count = max(1, round_half_up(self.share * len(able)))
        if count > len(able):
            raise ValueError(f"{count} clients a round were asked for, but only {len(able)} have training data")
        if count == len(able):
            return able
        key = _key(root, round)
        if 2 * count <= len(able):
            return able[draw_distinct(key, count, len(able))]
        stays = torch.ones_like(able, dtype=torch.bool)  # more than half: draw who is left out
        stays[draw_distinct(key, len(able) - count, len(able))] = False
        return able[stays]


def draw_distinct(key: Tensor, count: int, size: int) -> Tensor:
    """`count` different numbers below `size`, ascending; every set is equally likely.

    They are the first different values of an endless keyed sequence, so how much of it is looked at does not matter.
    Up to half of `size`, 1.4 x `count` values are needed on average.
    """
    length = 3 * count // 2 + 16
    while True:
        lots = (uniform(key, (length,), torch.float64) * size).long()  # below `size` for every size up to 2^53
        values, order = torch.sort(lots, stable=True)
        first = order[torch.cat((torch.ones_like(values[:1]), values.diff())) != 0]  # where each value comes first
        if len(first) >= count:
            return lots[first.sort().values[:count]].sort().values
        length *= 2


def round_half_up(value: float) -> int:
    return int(value + 0.5)


def _key(root: Tensor, round: int) -> Tensor:
    return fold(fold(root, COHORT), round)


def _within(value: float) -> float:
    if not 0 < value <= 1:
        raise ValueError(value)
    return value
