"""The rounds that selection rules choose, kept while a run goes on: what is reported is what is delivered.

Every evaluated round may become the one that a rule settles on; then its State and records are kept, and what was kept
before is let go. With a folder, kept rounds are written before the checkpoint that knows of them, and those that it
does not want are removed after it. Which rounds are kept follows from the lines alone: a run that goes on from any of
its checkpoints comes to choose the same rounds again, and keeps what it has not kept before.

    kept-000012.safetensors        the State that members and newcomers met, who has a record
    kept-000012-0000.safetensors   their records, in pieces that fit into memory
    models-000012.safetensors      the members' models, where they were moved by their client's own data

The pieces are written first: where the first file is, all of them are. A kept round is never changed. Models that were
moved (`adapted`, `trained`) cannot be made again without data, so a finished run's folder has them; no row of data is
in there. Others are made of the round that was kept.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posterity.core.protocol import Carry, Here
from posterity.core.tree import Tree, tree_bytes, tree_cat, tree_filled, tree_map, tree_named, tree_rows
from posterity.core.wrapper import Wrapper
from posterity.data.federation import Part
from posterity.engine import client as one_client
from posterity.engine import keys
from posterity.engine.cache import TraceCache
from posterity.engine.disk_store import DiskStore
from posterity.engine.processes import Processes
from posterity.engine.round import Question, answer, personal_model, receive
from posterity.engine.simulation import Simulation
from posterity.engine.store import Store
from posterity.evaluate import goal_of, select
from posterity.evaluate.selection import RULES
from posterity.experiment.setup import Setup
from posterity.runs import files
from posterity.runs.folder import read_saved, restore, save_checkpoint
from posterity.runs.lines import Line, ScoreLine, scores_of
from posterity.settings.config import Config
from posterity.settings.hyperparameters import nearest, split_list


def keeping(config: Config, show: str) -> Config:
    """The configuration of a run whose round is to be kept under the rule `show`, too."""
    rules = rules_of(config)
    return config if show in (*rules, "last") else replace(config, keep=",".join((*rules, show)))


def rules_of(config: Config) -> tuple[str, ...]:
    """The selection rules whose rounds are kept: the last round is there anyway."""
    asked = [rule for rule in split_list(config.keep) if rule not in ("validated", "last")]
    for rule in asked:
        if rule not in RULES:
            raise ValueError(f"keep: there is no selection rule {rule!r}: {nearest(rule, RULES)}")
    return ("validated", *asked)


@dataclass
class Chosen:
    """What a run keeps of its rounds; the process that leads has it."""

    config: Config
    sim: Simulation
    folder: Path | None
    entries: list[dict[str, Any]] = field(default_factory=list)
    kept: dict[int, Kept] = field(default_factory=dict)  # in memory
    unsaved: set[int] = field(default_factory=set)

    @property
    def before(self) -> bool:
        """Whether the method is scored before a round is combined, right after training."""
        return bool(self.sim.method.scored == "trained")

    def recover(self, lines: Sequence[Line]) -> None:
        """Go on from what the lines of a checkpoint say."""
        by_round: dict[int, list[ScoreLine]] = {}
        for line in scores_of(lines):
            by_round.setdefault(line.round, []).append(line)
        self.entries = [entry for some in by_round.values() if (entry := self._entry(some))]

    def _entry(self, scores: Sequence[ScoreLine]) -> dict[str, Any]:
        """The values that rules choose by, of the scores of one round."""
        metric, point = goal_of(self.sim.federation.task).name, self.sim.method.scored
        mine = [line for line in scores if (line.point, line.group) == (point, "members")]
        return {"round": mine[0].round, **{line.part: line.value(metric) for line in mine}} if mine else {}

    def wanted(self) -> set[int]:
        """The rounds that the rules choose by now; for a method scored after training, the run's last round, too."""
        if not self.entries:
            return set()
        higher = goal_of(self.sim.federation.task).higher
        found = {select(self.entries, rule, higher).round for rule in rules_of(self.config)}
        if self.before and self.entries[-1]["round"] == self.config.rounds:
            found.add(self.config.rounds)
        return {round for round in found if round is not None}

    def consider(
        self, round: int, scores: Sequence[ScoreLine], state: Tree, store: Store, before: bool,
        gather: Callable[[], None],
    ) -> None:  # fmt: skip
        """Keep a round if a rule has just chosen it: before it is combined, or with its new state."""
        if before != self.before:
            if round in self.unsaved:  # the round is over: this is what newcomers meet
                self.kept[round] = replace(self.kept[round], late=state)
            return
        processes = self.sim.processes
        if processes.leads and (entry := self._entry(scores)):
            self.entries.append(entry)
        wanted = self.wanted()
        if not processes.all_gather(float(round in wanted))[0]:
            return
        gather()
        if processes.leads:
            self._keep(round, state, store)
            self.kept = {r: kept for r, kept in self.kept.items() if r in wanted}
            self.unsaved &= wanted

    def _keep(self, round: int, state: Tree, store: Store) -> None:
        device, each = self.sim.root.device, None
        if isinstance(store, DiskStore) and self.folder is not None:  # they may be larger than memory
            each = save_records(self.folder, round, store)
            like = store.read(torch.nonzero(store.known)[:1, 0]) if bool(store.known.any()) else ()
            records = read_records(self.folder, round, store.known.clone(), each, like, device)
        else:
            records = copied(store, device)
        self.kept[round] = Kept(round, state, records, state, each)
        self.unsaved.add(round)

    def write(self) -> None:
        """Write what is kept; the checkpoint that knows of it comes next."""
        if self.folder is None:
            return
        for round in sorted(self.unsaved):
            self.kept[round].save(self.folder)
        self.unsaved = set()

    def prune(self) -> None:
        """The checkpoint is on disk: remove other rounds, first the file that says one is there."""
        paths = [] if self.folder is None else self.folder.glob(f"{PREFIX}[0-9]*.safetensors")
        for path in sorted(paths, key=lambda path: len(path.name)):
            if int(path.name[len(PREFIX) :][:6]) not in self.wanted():
                path.unlink()


LIMIT = 2**30  # bytes of models that a folder holds for one round


@dataclass(frozen=True)
class Delivery:
    """The round that models are of, by which rule, and why it is not the chosen one."""

    rule: str
    round: int
    point: str  # where members are scored
    note: str = ""
    kept: Kept = field(repr=False, kw_only=True)
    setup: Setup = field(repr=False, kw_only=True)
    folder: Path | None = field(default=None, repr=False, kw_only=True)

    def predict(self, client: int, x: Tensor, point: str | None = None) -> Tensor:
        """What a client's model says about samples, as it is scored; a newcomer's as received."""
        site, here, carry = self._model(client, point)
        return one_client.answer(site, one_client.at(here, keys.PREDICT), carry, x)

    def features(self, client: int, x: Tensor) -> Tensor:
        """What the network of that model hands to its head, (B, d)."""
        site, _, carry = self._model(client, None)
        pieces = torch.split(x, one_client.PREDICT_ROWS)
        with torch.no_grad():
            return torch.cat([site.model.features(carry.params, some)[0].flatten(1) for some in pieces])

    def _model(self, client: int, point: str | None) -> tuple[one_client.Site, Here, Carry]:
        """A client's model as it is scored, or at another point; a newcomer's as received."""
        sim, late = self.setup.sim, client >= self.setup.sim.federation.members
        point = point or ("received" if late else self.point)
        site, here = receive(sim, self.kept.late if late else self.kept.state, self.kept.records, client, self.round)
        held = self.models if point == ("received" if late else self.point) else None
        if held and client < len(next(iter(held.values()))):
            return site, here, carry_of({name: leaf[client].to(sim.root.device) for name, leaf in held.items()})
        if sim.federation.absent and (point == "trained" or any(one_client.passes_at(sim, point, None))):
            raise ValueError(
                f"models at the point {point!r} are trained on the client's own data, and this run was loaded without "
                "them; hand them in (posterity.load(folder, federation=...)), or ask for the point 'received'"
            )
        return site, here, one_client.personal_at(site, here, point)

    @cached_property
    def models(self) -> Mapping[str, Tensor]:
        """The models that the folder holds, of the clients from 0 on: leaves by name, stacked."""
        path = None if self.folder is None else self.folder / models_file(self.round)
        if path is None or not path.exists():
            return {}
        leaves, facts = read_saved(path)
        return leaves if facts["point"] == self.point else {}


def models_file(round: int) -> str:
    return f"models-{round:06d}.safetensors"


def carry_of(leaves: Mapping[str, Tensor]) -> Carry:
    """One client's model: its parameters, and what `predict` reads of that which passes gathered."""
    tops: dict[str, Any] = {"params": {}, "kept": {}}
    for name, leaf in leaves.items():
        top, _, rest = name.partition("/")
        *path, last = [top, rest] if top == "params" else name.split("/")  # a method's own leaves have a prefix
        tree = tops
        for part in path:
            tree = tree.setdefault(part, {})
        tree[last] = leaf
    return Carry(tops["params"], tops["kept"], ())


class Looked(UserDict[str, Tree]):
    """What passes gathered, remembering which of it was looked at."""

    def __init__(self, kept: Mapping[str, Tree]) -> None:
        super().__init__(kept)
        self.seen = set[str]()

    def __getitem__(self, name: str) -> Tree:
        self.seen.add(name)
        return super().__getitem__(name)


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


def personal_models(delivery: Delivery, late: bool = False) -> list[Tree]:
    """The members' models at the point where their method is scored; or the newcomers', as received."""
    kept, sim, point = delivery.kept, delivery.setup.sim, "received" if late else delivery.point
    carry, here = personal_model(sim, kept.state, kept.records, 0, delivery.round, delivery.point)
    looked: Any = Looked(carry.kept)  # what `predict` looks at is seen once, with one client
    sim.method.predict(replace(carry, kept=looked), sim.federation.x[:1], replace(here, kept=looked))
    method: Any = ModelsOf(sim.method, tuple(sorted(looked.seen & set(carry.kept))))
    sim = replace(sim, method=method, processes=Processes(), traces=TraceCache(sim.traces.patience))
    federation, device = sim.federation, sim.root.device
    rows = torch.zeros(federation.clients, dtype=torch.int64, device=device)  # one row for each, whichever
    part = Part(rows, torch.arange(federation.clients + 1, device=device))
    span = (federation.members, federation.clients) if late else (0, federation.members)
    epochs = method.adaptation if point == "adapted" else 0
    question = Question(torch.arange(*span, device=device), (part,), point, epochs, newcomers=late)
    state = kept.late if late else kept.state
    told = answer(sim, delivery.setup.engine, state, kept.records, question, kept.round)
    return [_parted(numbers[0], method.shapes[numbers.shape[1]]) for numbers in told[0]]


def _parted(flat: Tensor, like: Tree) -> Tree:
    """A model whose numbers stand in a row."""
    named, place = dict[str, Tensor](), 0
    for name, leaf in tree_named(like):
        named[name] = flat[place : place + leaf.numel()].to(leaf.dtype).reshape(leaf.shape)
        place += leaf.numel()
    return tree_filled(like, named)


def _padded(*leaves: Tensor) -> Tensor:
    """Clients' leaves one upon the other. What has a row for every sample of a client is padded with zeros, as in any
    stack: `predict` must not look at rows whose mask is 0."""
    sizes = [max(sizes) for sizes in zip(*(leaf.shape for leaf in leaves), strict=True)]
    full = leaves[0].new_zeros((len(leaves), *sizes))
    for row, leaf in zip(full, leaves, strict=True):
        row[tuple(slice(size) for size in leaf.shape)] = leaf
    return full


def save_models(folder: Path, setup: Setup, deliveries: list[Delivery]) -> str:
    """Write the clients' models of each round that is delivered; says why where it does not."""
    sim, members = setup.sim, setup.sim.federation.members
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
        save_checkpoint(folder, tree_map(_padded, *models), facts, models_file(delivery.round))
    return "stored"


PIECE = 2**28  # bytes of records that are written, or read, at once
PREFIX = "kept-"
PARTS = (("kept", ""), ("kept", "-*"), ("models", ""))  # what a folder may hold of one round


@dataclass
class Records:
    """Personal records of an earlier round; `fetch` has them by place among those that exist."""

    known: Tensor  # (clients,) bool, on the host
    fetch: Callable[[Tensor], Tree]
    device: torch.device
    ready: bool = True  # to be read

    def expect_like(self, rows: Tree) -> None:
        """Their shape is known."""

    def read(self, clients: Tensor) -> Tree:
        """A stack of the records of `clients`, who all have one."""
        place = self.known.cumsum(0) - 1
        return tree_map(lambda leaf: leaf.to(self.device), self.fetch(place[clients.cpu()]))


@dataclass(frozen=True)
class Kept:
    """A round at the evaluation point of its method: `state` and `records` are those that the members were met with.

    A method that is scored right after training was met before the round was combined; newcomers meet what it became.
    """

    round: int
    state: Tree
    records: Any  # a `Store`, or `Records`: they are only read
    late: Tree  # the State that newcomers meet
    each: int | None = None  # records in a piece, where they have been written already

    def save(self, folder: Path) -> None:
        """Write it, at last the file that says so."""
        each = save_records(folder, self.round, self.records) if self.each is None else self.each
        trees = {"state": self.state, "known": {"clients": self.records.known}}
        if self.late is not self.state:
            trees["late"] = self.late
        save_checkpoint(folder, trees, {"round": self.round, "each": each}, file_of(self.round))


def file_of(round: int, piece: int | None = None) -> str:
    return f"{PREFIX}{round:06d}{'' if piece is None else f'-{piece:04d}'}.safetensors"


def copied(store: Store, device: torch.device) -> Records:
    """The records of now, in memory of the host."""
    known, who = store.known.clone(), torch.nonzero(store.known)[:, 0]
    rows = tree_map(lambda leaf: leaf.cpu().clone(), store.read(who.to(device))) if len(who) else ()
    return Records(known, lambda places: tree_rows(rows, places), device)


def save_records(folder: Path, round: int, records: Store | Records) -> int:
    """Write all records piece by piece; how many are in a piece."""
    who = torch.nonzero(records.known)[:, 0]
    size = tree_bytes(records.read(who[:1])) if len(who) else 0
    if not size:  # nobody has a record, or there is nothing in it
        return 1
    each = max(1, PIECE // size)
    for number, some in enumerate(torch.split(who, each)):
        facts = {"round": round, "piece": number}
        save_checkpoint(folder, {"personal": records.read(some)}, facts, file_of(round, number))
    return each


def read_records(folder: Path, round: int, known: Tensor, each: int, like: Tree, device: torch.device) -> Records:
    """Records that `save_records` wrote, in the shape of `like`, a stack of one; a piece is read when it is needed."""

    @lru_cache(maxsize=1)
    def piece(number: int) -> Tree:
        leaves, _ = read_saved(folder / file_of(round, number))
        here = len(next(iter(leaves.values()))) if leaves else each
        table = tree_map(lambda leaf: leaf.cpu().expand(here, *leaf.shape[1:]), like)
        return restore(table, leaves, "personal")

    def fetch(places: Tensor) -> Tree:
        if not tree_bytes(like):
            return like
        numbers = places // each
        order = torch.argsort(numbers, stable=True)  # piece by piece
        present = sorted(set(numbers.tolist()))
        found = tree_cat([tree_rows(piece(number), places[numbers == number] % each) for number in present])
        return tree_rows(found, torch.argsort(order))

    return Records(known, fetch, device)


def read_kept(folder: Path, round: int, state: Tree, like: Callable[[], Tree], device: torch.device) -> Kept | None:
    """A round that was kept in a run's folder, in the shape of `state`; None if it was not."""
    path = folder / file_of(round)
    if not path.exists():
        return None
    leaves, facts = read_saved(path)
    placed: dict[str, Any] = {name: leaf.to(device) for name, leaf in leaves.items()}
    known = leaves["known/clients"]
    before = restore(state, placed, "state")
    late = restore(state, placed, "late") if any(n.startswith("late/") for n in leaves) else before
    records = read_records(folder, round, known, facts["each"], like() if bool(known.any()) else (), device)
    return Kept(round, before, records, late)


def names_in(folder: Path, rounds: set[int]) -> list[str]:
    """The files of a folder that models of these rounds are delivered from."""
    names = ["inputs", *(f"{kind}-{round:06d}{piece}" for round in rounds for kind, piece in PARTS)]
    return sorted(path.name for name in names for path in folder.glob(f"{name}.safetensors"))


def check_delivered(folder: Path, rounds: set[int], known: Iterable[str]) -> None:
    """Refuse a run's folder in which a file that will be delivered from is missing or not as it was written.

    They are read when a model is asked for, which may be long after a run that could still be begun again has gone on.
    Of other rounds there may be files that a kill left; they are never read.
    """
    for name in known:
        if not (folder / name).exists():
            raise files.DamagedFile(f"{folder / name} is missing, and the run has written it; {files.ADVICE}")
    for name in names_in(folder, rounds):
        files.check_tensors(folder / name)
