"""Who takes part in a round: everybody, a count, a share, or each with a probability."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from posterity.core.draw import bits, fold, uniform
from posterity.engine.keys import COHORT


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
                return Participation(share=_within(float(word[:-1]) / 100))
            if word.startswith("p:"):
                return Participation(probability=_within(float(word[2:])))
            if int(word) >= 1:
                return Participation(count=int(word))
        except ValueError:
            pass
        raise ValueError(
            f"participation {text!r} is not understood: give 'all', a number of clients ('10'), a share ('10%') "
            "or the probability that a client is available ('p:0.3')"
        )

    def draw(self, able: Tensor, root: Tensor, round: int) -> Tensor:
        """The cohort of a round, in ascending order, out of the clients `able` (clients with training data)."""
        key = fold(fold(root, COHORT), round)
        if self.probability is not None:
            return able[uniform(key, (len(able),), torch.float64) < self.probability]
        count = self.count if self.count is not None else len(able)
        if self.share is not None:
            count = max(1, round_half_up(self.share * len(able)))
        if count > len(able):
            raise ValueError(f"{count} clients a round were asked for, but only {len(able)} have training data")
        order = torch.argsort(bits(key, len(able))[0], stable=True)
        return able[order[:count].sort().values]


def round_half_up(value: float) -> int:
    return int(value + 0.5)


def _within(value: float) -> float:
    if not 0 < value <= 1:
        raise ValueError(value)
    return value
