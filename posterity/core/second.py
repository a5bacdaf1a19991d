"""A second network in one visit: its leaves lie beside those of the first, under the network's names with a prefix.

For methods whose clients train a personal model beside the shared one (Ditto, APFL, pFedMe, pFedBreD), or need another
one to look at (MOON). `start` returns `{**first, **as_second(other)}`; a loss written for one network minimises over
the second as `on_second(loss)` with the partition `second_network`; `first_network` names the leaves of the first.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from posterity.core.network import Network, Params
from posterity.core.passes import Loss
from posterity.core.protocol import Batch, Here

PREFIX = "second/"


def as_second(params: Params) -> Params:
    """The leaves of a network under the names of the second."""
    return {PREFIX + n: p for n, p in params.items()}


def first_of(params: Params) -> Params:
    """What does not belong to the second network."""
    return {n: p for n, p in params.items() if not n.startswith(PREFIX)}


def second_of(params: Params) -> Params:
    """The second network, under the network's own names."""
    return {n.removeprefix(PREFIX): p for n, p in params.items() if n.startswith(PREFIX)}


def first_network(names: Iterable[str], model: Network) -> list[str]:
    """Partition: the trainable leaves of the first network, and the method's own."""
    own = {PREFIX + n for n in model.leaves}
    return [n for n in names if n not in own and (n in model.trainable or n not in model.leaves)]


def second_network(names: Iterable[str], model: Network) -> list[str]:
    """Partition: the trainable leaves of the second network."""
    return [n for n in names if n.startswith(PREFIX) and n.removeprefix(PREFIX) in model.trainable]


def on_second(loss: Loss) -> Loss:
    """`loss`, of the second network."""

    def of_second(params: Params, batch: Batch, here: Here) -> tuple[Tensor, Params]:
        value, buffers = loss(second_of(params), batch, here)
        return value, as_second(buffers)

    return of_second


__all__ = ["as_second", "first_network", "first_of", "on_second", "second_network", "second_of"]
