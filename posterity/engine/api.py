"""What an engine is: it decides how many clients run at once, and nothing else.

An engine gets a stack of clients, each with the broadcast, what it alone was sent and its record (`here`), and returns
a stack of what they say. It may call a method's functions client by client (`loop.py`), map them over the stack
(`stacked.py`), or replay recordings of them (`replay/`); a method cannot tell the difference, and the laws prove it.
`--engine package.module:engine` names one of your own; `engines.py` has those of the package.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from posterity.core.protocol import Here, Own, Pass, Personal, Shared, State
from posterity.data.federation import Part
from posterity.engine.client import Visit
from posterity.engine.simulation import Simulation


@runtime_checkable
class Engine(Protocol):
    """How clients run. `here` is stacked: the fields of `PER_CLIENT` have a client axis, the others are common."""

    @property
    def name(self) -> str:
        """As `--engine` knows it."""
        ...

    def offer(self, sim: Simulation, state: State, clients: Tensor | None, count: int) -> tuple[Shared, Own]:
        """The broadcast and a stack of what each client gets by itself; `clients` None = `count` newcomers."""
        ...

    def join(self, sim: Simulation, here: Here) -> Personal:
        """A stack of new records, for clients that have none."""
        ...

    def visit(self, sim: Simulation, passes: tuple[Pass, ...], here: Here) -> Visit:
        """Every client through the passes of a round, to its message."""
        ...

    def predict(
        self, sim: Simulation, passes: tuple[Pass, ...], adapt: tuple[Pass, ...], here: Here, parts: Sequence[Part]
    ) -> list[list[Tensor]]:
        """Outputs for each client's rows of each part, after `passes` of training, then those of `adapt` and `prepare`."""
        ...


__all__ = ["Engine"]
