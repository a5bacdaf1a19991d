"""Where a score stops being one: said once, for a run that judges itself and for a table that judges runs."""

from __future__ import annotations

import math

TIMES = 1e3  # the NLL of guessing: no network that learnt anything is so sure and so wrong


def absurd_nll(classes: int) -> float:
    """The mean NLL from which on a run has exploded."""
    return TIMES * math.log(max(classes, 2))


__all__ = ["absurd_nll"]
