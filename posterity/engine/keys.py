"""Which key belongs to what: every draw of a run is a function of (seed, purpose, client, round, pass, step)."""

from collections.abc import Callable

from torch import Tensor

from posterity.core import _random_numpy
from posterity.core.random import fold

CLIENT, COHORT, SERVER, EVALUATED = 1, 2, 3, 4  # purposes under the root key
TRAIN, SCORE, JOIN, START, MESSAGE, PREDICT = 1, 2, 3, 4, 5, 6  # stages of one client's visit
ORDER = 2**40  # the order of the samples; far above any step number
AUGMENT = 2**41  # under the key of a step: crops and flips; far above all that methods and layers fold


def client_keys(visits: Tensor, client: Tensor, round: Tensor, fold: Callable[..., Tensor] = fold) -> Tensor:
    """Keys of clients (..., 2) in a round, from the key of what clients draw."""
    return fold(fold(visits, client), round)


def fold_key(key: Tensor, data: int | Tensor) -> Tensor:
    """`fold` outside of a method's functions: by numpy on the host, where a key is cheaper so; the same bits."""
    return _random_numpy.fold(key, data) if key.device.type == "cpu" else fold(key, data)
