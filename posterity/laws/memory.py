"""A law about memory: clients hold what their passes declare."""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from posterity import models
from posterity.core.protocol import Here
from posterity.core.tree import tree_bytes
from posterity.data.federation import Part
from posterity.engine.blocks import declared_bytes, footprint
from posterity.engine.client import Passes, Visit
from posterity.engine.engines import STACKED, Engine
from posterity.engine.round import Question, answer, first_state, train_round
from posterity.engine.simulation import Simulation
from posterity.engine.store import Store
from posterity.laws.case import Broken, Case, small_federation
from posterity.laws.law import law

WIDE: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {  # networks whose parameters outweigh a batch
    "mlp": ((64,), {"hidden": (256,)}),
    "mlp_bn": ((64,), {"hidden": (256,), "eps": 1e-2}),
    "cnn": ((1, 8, 8), {"feature_dim": 64}),
}
CLIENTS = (3, 8, 10)  # of few steps, and of three sizes
ROUNDS = 2  # in the second, clients have records


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of all tensors that were made inside and are still there, now and at most."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.known: set[int] = set()
        self.now = self.most = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor) and id(tensor.untyped_storage()) not in self.known | given:
                self._count(tensor.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        self.known.add(id(storage))
        self.now += storage.nbytes()
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._gone, id(storage), storage.nbytes())

    def _gone(self, place: int, size: int) -> None:
        self.known.discard(place)
        self.now -= size


@dataclass(frozen=True)
class Counting:
    engine: Engine
    found: list[tuple[str, int, int, int]]  # work, clients, bytes at most, bytes that were declared for all

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)  # everything else is the engine's

    def visit(self, sim: Simulation, passes: Passes, here: Here) -> Visit:
        with Live() as live:
            done = self.engine.visit(sim, passes, here)
        self._note("training", sim, here, passes, live)
        return done

    def predict(
        self, sim: Simulation, passes: Passes, adapt: Passes, here: Here, parts: Sequence[Part]
    ) -> list[list[Tensor]]:
        with Live() as live:
            outputs = self.engine.predict(sim, passes, adapt, here, parts)
        self._note("scoring", sim, here, (*passes, *adapt), live)
        return outputs

    def _note(self, work: str, sim: Simulation, here: Here, passes: Passes, live: Live) -> None:
        declared = declared_bytes(sim, here.client.cpu(), passes)
        self.found.append((work, len(here.client), live.most, len(here.client) * declared))


@law(
    "memory",
    "Clients that run at once hold no more than their passes declare: --memory divides them by that.",
    "copies of the parameters that a step, a message or a record holds beside those of a descent (samples of iterates, "
    "a second network, a gradient for every row), of which Pass.copies and Pass.scratch say nothing. Declare them: "
    "`holding(passes, copies=…)`.",
)
def law_memory(case: Case) -> None:
    sim = _wide(case)
    counting = Counting(STACKED, [])
    state, store = first_state(sim), Store(sim.federation.members)
    clients = torch.tensor(CLIENTS)
    for number in range(1, ROUNDS + 1):
        state, _ = train_round(sim, counting, state, store, clients, number, ROUNDS)
    for point in ("received", "adapted"):
        answer(sim, counting, state, store, Question(clients, [sim.federation.test], point), ROUNDS)
    work, count, most, declared = max(counting.found, key=lambda each: each[2] / each[3])
    if most > declared:
        network = tree_bytes(sim.initial)
        more = -(-(most - declared) // (count * network))
        raise Broken(
            f"{work}: {count} clients hold {most:,} bytes at once, {most / declared:.2f} times the {declared:,} that "
            f"their passes declare (copies of a network of {network:,} bytes, a batch, scratch); "
            f"holding(passes, copies={more}) adds enough"
        )


def _wide(case: Case) -> Simulation:
    """The case with a wider network of the same kind, where there is one: a tiny one is outweighed by everything."""
    if case.model.name in WIDE:
        shape, options = WIDE[case.model.name]
        federation = small_federation(shape).to("cpu", case.dtype)
        model = models.build(case.model.name, shape, federation.classes, **options)
        case = Case(case.method, model, federation, case.seed, case.dtype)
    sim = case.sim()
    return replace(sim, sample=footprint(sim.model, case.federation.x[:2], sim.initial))
