"""One client after another, each function called on plain tensors, without padding: the oracle.

All that is done for a client is in `client.py`; here clients are only taken one by one and what they say is stacked.
Other engines must equal this one (`posterity/laws`). `replay/loop.py` is the same loop with recorded steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from posterity.core.protocol import Carry, Here, Own, Pass, Personal, Shared, State
from posterity.core.tree import tree_stack
from posterity.data.federation import Part
from posterity.engine import client, keys
from posterity.engine.client import Visit
from posterity.engine.simulation import Simulation, at, select

Work = Callable[[Simulation, tuple[Pass, ...], list[Carry], Here, int], list[Carry]]


def work(sim: Simulation, passes: tuple[Pass, ...], carries: list[Carry], here: Here, stage: int) -> list[Carry]:
    """Every client of a stacked `here` through all passes."""
    sites = [sim.site(number) for number in here.client.tolist()]
    each = zip(sites, carries, _each(here), strict=True)
    return [client.work(site, passes, carry, mine, stage) for site, carry, mine in each]


@dataclass(frozen=True)
class Loop:
    """The engine of one client at a time; `work` takes a list of clients through their passes."""

    name: str = "oracle"
    work: Work = work

    def offer(self, sim: Simulation, state: State, clients: Tensor | None, count: int) -> tuple[Shared, Own]:
        pairs = [sim.method.offer(state, None if clients is None else clients[i]) for i in range(count)]
        return pairs[0][0], tree_stack([own for _, own in pairs])

    def join(self, sim: Simulation, here: Here) -> Personal:
        return tree_stack([sim.method.join(mine) for mine in _each(at(sim, here, keys.JOIN))])

    def start(self, sim: Simulation, here: Here) -> list[Carry]:
        return [client.start(sim, mine) for mine in _each(at(sim, here, keys.START))]

    def visit(self, sim: Simulation, passes: tuple[Pass, ...], here: Here) -> Visit:
        carries = self.work(sim, passes, self.start(sim, here), here, keys.TRAIN)
        each = zip(_each(at(sim, here, keys.MESSAGE)), carries, strict=True)
        done = [client.send(sim, mine, carry) for mine, carry in each]
        message, record = tree_stack([v.message for v in done]), tree_stack([v.record for v in done])
        return Visit(message, record, None if done[0].loss is None else tree_stack([v.loss for v in done]))

    def predict(
        self, sim: Simulation, passes: tuple[Pass, ...], adapt: tuple[Pass, ...], here: Here, parts: Sequence[Part]
    ) -> list[list[Tensor]]:
        carries = self.work(sim, passes, self.start(sim, here), here, keys.TRAIN)
        carries = self.work(sim, adapt, carries, here, keys.SCORE)
        each, x = list(zip(_each(at(sim, here, keys.PREDICT)), carries, strict=True)), sim.federation.x
        numbers = here.client.tolist()
        return [
            [client.answer(sim, mine, carry, x[part.client(k)]) for k, (mine, carry) in zip(numbers, each, strict=True)]
            for part in parts
        ]


def _each(here: Here) -> list[Here]:
    """Every client of a stacked `here` by itself."""
    return [select(here, i) for i in range(len(here.client))]


ORACLE = Loop()

__all__ = ["ORACLE", "Loop"]
