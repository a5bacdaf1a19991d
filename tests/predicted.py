"""What the clients of a simulation predict, asked in one line."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from posterity.core.protocol import State
from posterity.data.federation import Part
from posterity.engine.engines import Engine
from posterity.engine.round import Question, answer
from posterity.engine.simulation import Simulation
from posterity.engine.store import Store


def score(
    sim: Simulation, engine: Engine, state: State, store: Store, clients: Tensor, round: int, parts: Sequence[Part],
    point: str, epochs: int | None = None, newcomers: bool = False,
) -> list[list[Tensor]]:  # fmt: skip
    """Outputs of the personal models for each part, one tensor per client of `clients`."""
    return answer(sim, engine, state, store, Question(clients, parts, point, epochs, newcomers), round)
