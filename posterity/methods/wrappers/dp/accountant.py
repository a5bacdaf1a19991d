"""How private a run is: ε of its rounds, by the accountants of the library dp-accounting (Google, Apache 2.0)."""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np


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
def epsilon(
    noise: float, delta: float, rounds: int, chance: float | None = None, clients: float = math.inf
) -> float:  # fmt: skip
    """ε of so many rounds at this δ; `chance` is that of each of the `clients` to take part in one (None: always)."""
    if noise == 0:
        return math.inf
    if chance is None or chance == 1:
        exact: float = library().get_epsilon_gaussian(noise / math.sqrt(rounds), delta)  # (4)
        return exact
    dp, rdp = library(), library("dp_accounting.rdp")
    accountant = rdp.RdpAccountant()
    with _quiet():
        accountant.compose(dp.PoissonSampledDpEvent(chance, dp.GaussianDpEvent(noise)))
    spent = rounds * _with_empty_rounds(accountant.orders, accountant.rdp, noise, chance, clients)
    found: float = rdp.compute_epsilon(accountant.orders, spent, delta)[0]
    return min(found, epsilon(noise, delta, rounds))  # not to be asked never tells more


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's remarks on orders that it leaves out: the bound is the best of the others."""
    logger = logging.getLogger("absl")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _with_empty_rounds(orders: Any, sampled: Any, noise: float, chance: float, clients: float) -> Any:
    """Rényi divergence of a round that adds no noise where nobody came; `sampled` is that of one that always does."""
    alone = (1 - chance) ** (clients - 1)
    if alone == 0:
        return sampled
    seen = np.logaddexp(math.log1p(-chance), math.log(chance) + (orders - 1) * orders / (2 * noise**2))
    hidden = math.log1p(-alone) + (orders - 1) * sampled
    return np.logaddexp(math.log(alone) + seen, hidden) / (orders - 1)  # (5)
