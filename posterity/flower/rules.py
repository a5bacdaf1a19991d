"""When a round across machines counts: how many replies it needs, and how often they are asked for."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from posterity.core.parse import parse_percent

AMOUNT = re.compile(r"\d{1,9}|(100|\d{1,2})(\.\d+)?%")


@dataclass(frozen=True)
class RoundRules:
    """When a round counts.

    Attributes:
        minimum: usable replies that it needs: a number of clients, or a share of its cohort, rounded up; a cohort that
            is smaller than the number must be complete
        tries: how often those whose reply is missing are asked, until the run stops
        pause: seconds before they are asked again: a node that was killed takes a while to come back
    """

    minimum: str = "50%"
    tries: int = 3
    pause: float = 30.0

    def __post_init__(self) -> None:
        if not AMOUNT.fullmatch(self.minimum):
            raise ValueError(f"minimum = {self.minimum!r} was given: give a number of clients ('2') or a share of the "
                             "cohort ('50%')")  # fmt: skip
        if self.tries < 1:
            raise ValueError(f"tries = {self.tries} was given: clients must be asked once at least; give 1 or more")

    def needed(self, cohort: int) -> int:
        """Usable replies that a round with such a cohort needs; of somebody, one at least."""
        percent = parse_percent(self.minimum)
        wanted = int(self.minimum) if percent is None else math.ceil(percent / 100 * cohort)
        return min(cohort, max(1, wanted))


__all__ = ["RoundRules"]
