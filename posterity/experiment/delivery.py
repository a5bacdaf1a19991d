"""The models that a run delivers: of the round that a selection rule chose, at the point where its method is scored.

A model that was moved by its client's own data (`adapted`, `trained`) cannot be made again without them, so a finished
run's folder has those of its members, in `models-ROUND.safetensors`; it holds no row of data. Others are made of what
`kept_round.py` keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from posterity.core.protocol import Carry, Here
from posterity.core.tree import Tree, tree_bytes, tree_filled, tree_map, tree_named
from posterity.core.wrapper import Wrapper
from posterity.data.federation import Part
from posterity.engine import client as one_client
from posterity.engine import keys
from posterity.engine.distributed import Processes
from posterity.engine.multi_seed import MultiSeed
from posterity.engine.round import Question, answer, arrive_client, personal_model
from posterity.engine.store import Store
from posterity.engine.tracing.trace import TraceCache
from posterity.experiment import run_folder
from posterity.experiment.kept_round import Kept
from posterity.experiment.setup import Setup

LIMIT = 2**30  # bytes of models that a folder holds for one round


@dataclass(frozen=True)
class Delivery:
    """Whose round and rule the models are, and why it is not the chosen round where it is not."""

    rule: str
    round: int
    point: str  # where members are scored
    note: str = ""
    kept: Kept = field(repr=False, kw_only=True)
    setup: Setup = field(repr=False, kw_only=True)
    folder: Path | None = field(default=None, repr=False, kw_only=True)

    def predict(self, client: int, x: Tensor, point: str | None = None) -> Tensor:
        """What the model of one client says about samples, as the method scores it; a newcomer's as it is received."""
        site, here, carry = self._model(client, point)
        return one_client.answer(site, one_client.at(here, keys.PREDICT), carry, x)

    def features(self, client: int, x: Tensor) -> Tensor:
        """What the network of that model hands to its head, (B, d)."""
        site, _, carry = self._model(client, None)
        pieces = torch.split(x, one_client.PREDICT_ROWS)
        with torch.no_grad():
            return torch.cat([site.model.features(carry.params, some)[0].flatten(1) for some in pieces])

    def _model(self, client: int, point: str | None) -> tuple[one_client.Site, Here, Carry]:
        """A client's model as the method scores it, or at another point; a newcomer's as it is received."""
        sim, late = self.setup.sim, client >= self.setup.sim.federation.members
        point = point or ("received" if late else self.point)
        site, here = arrive_client(sim, self.kept.late if late else self.kept.state, self._store, client, self.round)
        held = self.models if point == ("received" if late else self.point) else None
        if held is not None and client < held.clients:
            return site, here, held.carry(client)
        self._check_data(point)
        return site, here, one_client.personal_at(site, here, point)

    @property
    def _store(self) -> Store:
        return cast(Store, self.kept.records)  # it is only read

    @cached_property
    def models(self) -> Models | None:
        """The models that the folder holds."""
        path = None if self.folder is None else self.folder / models_file(self.round)
        if path is None or not path.exists():
            return None
        leaves, facts = run_folder.read_saved(path)
        return Models(leaves, self.setup.sim.root.device) if facts["point"] == self.point else None

    def _check_data(self, point: str) -> None:
        """Refuse to train without data: a folder has the models at its method's own point only."""
        absent = self.setup.sim.federation.absent
        if absent and (point == "trained" or any(one_client.passes_at(self.setup.sim, point, None))):
            raise ValueError(
                f"models at the point {point!r} are trained on the client's own data, and this run was loaded without "
                "them; hand them in (posterity.load(folder, federation=...)), or ask for the point 'received'"
            )


def models_file(round: int) -> str:
    return f"models-{round:06d}.safetensors"


@dataclass(frozen=True)
class Models:
    """The models of clients 0 … clients-1 as a folder has them: leaves by name, stacked."""

    leaves: dict[str, Tensor]
    device: torch.device

    @property
    def clients(self) -> int:
        return len(next(iter(self.leaves.values()), ()))

    def carry(self, client: int) -> Carry:
        """One client's model: its parameters, and what `predict` reads of that which passes gathered."""
        tops: dict[str, Any] = {"params": {}, "kept": {}}
        for name, leaf in self.leaves.items():
            top, _, rest = name.partition("/")
            *path, last = [top, rest] if top == "params" else name.split("/")  # a method's own leaves have a prefix
            tree = tops
            for part in path:
                tree = tree.setdefault(part, {})
            tree[last] = leaf[client].to(self.device)
        return Carry(tops["params"], tops["kept"], ())


class Looked(dict[str, Tree]):
    """What passes gathered, remembering which of it was looked at."""

    def __init__(self, kept: dict[str, Tree]) -> None:
        super().__init__(kept)
        self.seen: set[str] = set()

    def __getitem__(self, name: str) -> Tree:
        self.seen.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.seen.add(name)
        return super().get(name, default)

    def keys(self) -> Any:
        self.seen |= set(super().keys())
        return super().keys()

    def __iter__(self) -> Iterator[str]:
        self.seen |= set(super().keys())
        return super().__iter__()


@dataclass(frozen=True)
class ModelsOf(Wrapper):
    """A method that answers every sample with its model, all numbers in a row: an engine makes it as it scores."""

    reads: tuple[str, ...] = ()  # what `predict` looks at of that which passes gathered
    shapes: dict[int, Tree] = field(default_factory=dict, compare=False)  # of a client's model, by its numbers; as seen

    def predict(self, carry: Carry, x: Tensor, here: Here) -> Tensor:
        model = {"params": carry.params, "kept": {name: carry.kept[name] for name in self.reads}}
        flat = torch.cat([leaf.reshape(-1).to(torch.float64) for _, leaf in tree_named(model)])  # exact for float32
        like = tree_map(lambda leaf: torch.empty(leaf.shape, dtype=leaf.dtype, device="meta"), model)
        self.shapes.setdefault(flat.shape[0], like)
        return flat.expand(len(x), flat.shape[0])


def _reads(delivery: Delivery) -> tuple[str, ...]:
    """What `predict` looks at of that which passes gathered: seen once, with one client."""
    sim, store = delivery.setup.sim, cast(Store, delivery.kept.records)
    carry, here = personal_model(sim, delivery.kept.state, store, 0, delivery.round, delivery.point)
    kept = Looked(carry.kept)
    sim.method.predict(replace(carry, kept=kept), sim.federation.x[:1], replace(here, kept=kept))
    return tuple(sorted(kept.seen & set(carry.kept)))


def personal_models(delivery: Delivery, late: bool = False) -> list[Tree]:
    """The members' models at the point where their method is scored; or the newcomers', as received."""
    setup, kept, method = (
        delivery.setup,
        delivery.kept,
        cast(Any, ModelsOf(delivery.setup.sim.method, _reads(delivery))),
    )
    sim = replace(setup.sim, method=method, processes=Processes(), traces=TraceCache(setup.sim.traces.patience))
    federation, device, point = sim.federation, sim.root.device, "received" if late else delivery.point
    rows = torch.zeros(federation.clients, dtype=torch.int64, device=device)  # one row for each, whichever
    part = Part(rows, torch.arange(federation.clients + 1, device=device))
    span = (federation.members, federation.clients) if late else (0, federation.members)
    epochs = method.adaptation if point == "adapted" else 0
    question = Question(torch.arange(*span, device=device), (part,), point, epochs, newcomers=late)
    state, store = kept.late if late else kept.state, cast(Store, kept.records)
    (told,) = answer(MultiSeed.of([sim]), setup.engine, [state], [store], [question], kept.round)
    return [_parted(numbers[0], method.shapes[numbers.shape[1]]) for numbers in told[0]]


def _parted(flat: Tensor, like: Tree) -> Tree:
    """A model whose numbers stand in a row."""
    named, place = dict[str, Tensor](), 0
    for name, leaf in tree_named(like):
        named[name] = flat[place : place + leaf.numel()].to(leaf.dtype).reshape(leaf.shape)
        place += leaf.numel()
    return tree_filled(like, named)


def stacked_models(models: list[Tree]) -> Tree:
    """Clients' models one upon the other. What has a row for every sample of a client is padded with zeros, as in any
    stack: `predict` must not look at rows whose mask is 0."""
    return tree_map(_padded, *models)


def _padded(*leaves: Tensor) -> Tensor:
    sizes = [max(sizes) for sizes in zip(*(leaf.shape for leaf in leaves), strict=True)]
    full = leaves[0].new_zeros((len(leaves), *sizes))
    for row, leaf in zip(full, leaves, strict=True):
        row[tuple(slice(size) for size in leaf.shape)] = leaf
    return full


def save_models(folder: Path, setup: Setup, deliveries: list[Delivery]) -> str:
    """Write the clients' models of each round that is delivered; says why where it does not."""
    sim, members = setup.sim, setup.sim.federation.members
    if sim.federation.absent:  # they cannot be made again
        for delivery in deliveries:
            if delivery.folder is not None and (path := delivery.folder / models_file(delivery.round)).exists():
                run_folder.write_atomic(folder / path.name, path.read_bytes())
        return "stored as they were found"
    always = bool(sim.prepare())  # also what is received was fitted on the client's data (a temperature)
    if sim.method.scored == "received" and not always:
        return "made of the kept round when they are asked for"
    size = sim.federation.clients * tree_bytes(sim.initial)
    if size > LIMIT:
        return (f"not stored: {size / 2**30:.1f} GiB, more than the {LIMIT / 2**30:.0f} GiB that a folder holds; "
                "predictions need the data")  # fmt: skip
    for delivery in {each.round: each for each in deliveries if not each.note}.values():
        models = personal_models(delivery)
        if always and members < sim.federation.clients:
            models += personal_models(delivery, late=True)
        facts = {"round": delivery.round, "point": delivery.point}
        run_folder.save_checkpoint(folder, stacked_models(models), facts, models_file(delivery.round))
    return "stored"
