"""What an engine is: it decides how many clients run at once, and nothing else.

An engine gets a stack of clients, each with the broadcast, what it alone was sent and its record (`here`), and returns
a stack of what they say. It may call a method's functions client by client (`loop.py`), map them over the stack
(`stacked.py`), or replay recordings of them (`replay/`); a method cannot tell the difference, and the laws prove it.
`--engine package.module:engine` names one of your own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor

from posterity.core.messages import Message
from posterity.core.outside import find_outside
from posterity.core.protocol import Carry, Here, Own, Pass, Personal, Shared, State

if TYPE_CHECKING:
    from posterity.data.federation import Part
    from posterity.engine.simulation import Simulation


@dataclass(frozen=True)
class Visit:
    """What training left: of one client, or of a stack of clients."""

    message: Message
    record: Personal
    loss: Tensor | None  # (..., 2) loss times samples, and samples, seen while training; None if nobody counted

    @staticmethod
    def of(carry: Carry, said: tuple[Message, Personal]) -> Visit:
        return Visit(said[0], said[1], carry.kept.get("loss"))


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
        """Outputs for each client's rows of each part, after `passes` of training and then `adapt`."""
        ...


def find_engine(name: str) -> Engine:
    """The engine of that name; `package.module:attribute` is one of your own, or a class of them."""
    from posterity.engine.engines import ENGINES  # they are made of what this file declares

    if ":" not in name:
        if name not in ENGINES:
            raise ValueError(f"engine {name!r} is unknown; possible: auto, {', '.join(ENGINES)}")
        return ENGINES[name]
    found, _ = find_outside(name, "engine")
    engine = found() if isinstance(found, type) else found
    if not isinstance(engine, Engine):
        raise ValueError(
            f"{name!r} is not an engine: it must have a name and the functions offer, join, visit, predict"
        )
    return engine


__all__ = ["Engine", "Visit", "find_engine"]
