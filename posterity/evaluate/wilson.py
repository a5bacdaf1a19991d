"""How far a share of so many trials can be trusted: Wilson's interval (1927), which stays inside 0 and 1.

    (p + z²/2n ± z √( p(1−p)/n + z²/4n² )) / (1 + z²/n)                                                            (1)

p the share, n the trials, z the normal quantile; the trials are taken to be independent.
"""

from __future__ import annotations

import math
from statistics import NormalDist


def wilson(share: float, trials: float, level: float = 0.05) -> tuple[float, float]:
    """The interval that covers the true share with probability 1 − `level`."""
    if trials <= 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(1 - level / 2)
    centre = share + z * z / (2 * trials)
    reach = z * math.sqrt(max(share * (1 - share), 0.0) / trials + (z / (2 * trials)) ** 2)
    scale = 1 + z * z / trials
    return max((centre - reach) / scale, 0.0), min((centre + reach) / scale, 1.0)  # (1)
