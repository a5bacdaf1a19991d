"""How private a run is: ε of its rounds, by the accountants of the library dp-accounting (Google, Apache 2.0)."""

from __future__ import annotations

import importlib
import math
from functools import cache
from typing import Any


def library(name: str = "dp_accounting") -> Any:
    """The library, which is asked for when somebody wants an ε: it takes seconds to import."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(
            "+dp says how private a run is with the library dp-accounting, which is not installed: "
            "pip install 'posterity[dp]'"
        ) from None


@cache
def epsilon(noise: float, delta: float, rounds: int, chance: float | None = None) -> float:
    """ε of so many rounds at this δ; `chance` is that of a client to take part in a round (None: always)."""
    if noise == 0:
        return math.inf
    if chance is None or chance == 1:
        exact: float = library().get_epsilon_gaussian(noise / math.sqrt(rounds), delta)  # (4)
        return exact
    dp, accountant = library(), library("dp_accounting.rdp").RdpAccountant()
    accountant.compose(dp.PoissonSampledDpEvent(chance, dp.GaussianDpEvent(noise)), rounds)
    found: float = accountant.get_epsilon(delta)
    return min(found, epsilon(noise, delta, rounds))  # not to be asked never tells more
