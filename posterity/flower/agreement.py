"""What server and sites agree on before the first round: each makes it by itself, and a fingerprint says that it fits.

It follows from the configuration, which all are given, and from what sites register: the shape of a sample, the classes
and how many training samples there are. Nobody needs another one's data for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from posterity import methods, models
from posterity.core.messages import Offer
from posterity.core.network import Network, Params, Task, bind, held
from posterity.core.protocol import Facts, Method, Pass, State
from posterity.core.random import fold, make_key
from posterity.core.tree import STATIC, Tree, is_node, tree_map, tree_parts
from posterity.engine.keys import CLIENT, SERVER
from posterity.experiment.fingerprint import fields_of, sources
from posterity.experiment.setup import DTYPES
from posterity.flower.codec import CodecError, fingerprint
from posterity.settings.config import Config, settings_where
from posterity.version import __version__

MOST = 2**40  # samples, and numbers of one sample: more is a mistake
ROWS = settings_where(lambda use: use.changes == "division")  # which rows are for what


@dataclass(frozen=True)
class SampleSpec:
    shape: tuple[int, ...]  # of one
    task: Task
    classes: tuple[str, ...]  # their names; none for regression
    integers: bool = False  # samples are whole numbers
    columns: tuple[str, ...] = ()  # names of the numbers of a sample, if they have any

    def facts(self) -> dict[str, Any]:
        listed = {"shape": list(self.shape), "classes": list(self.classes), "columns": list(self.columns)}
        return {**listed, "task": self.task, "integers": self.integers}

    def fits(self, agreed: SampleSpec) -> bool:
        """Whether samples can be put as agreed: the same columns in any order, and no other class."""
        alike = replace(self, classes=agreed.classes, columns=agreed.columns) == agreed
        same = sorted(self.columns) == sorted(agreed.columns)
        return alike and same and set(self.classes) <= set(agreed.classes)

    @staticmethod
    def read(facts: Mapping[str, Any]) -> SampleSpec:
        """As somebody else says it: checked."""
        shape, task, classes, integers = map(facts.get, ("shape", "task", "classes", "integers"))
        columns = facts.get("columns", [])
        is_shape = isinstance(shape, list) and all(type(n) is int and 0 < n < MOST for n in shape)
        if not is_shape or math.prod(facts["shape"]) >= MOST:
            raise CodecError(f"its samples have the shape {shape!r:.80}")
        if task not in ("classification", "regression") or not _are_names(classes):
            raise CodecError(f"its task is {task!r:.80}, its classes are {classes!r:.80}")
        if not _are_names(columns) or type(integers) is not bool:
            raise CodecError(f"its columns are {columns!r:.80}, and integers is {integers!r:.40}")
        return SampleSpec(tuple(facts["shape"]), task, tuple(facts["classes"]), integers, tuple(columns))

    def order_of(self, columns: tuple[str, ...], whose: str) -> list[int]:
        """Where these columns stand among `columns`, the same ones in another order."""
        for name in (*self.columns, *columns):
            if name not in columns or name not in self.columns:
                lacks = "has no column" if name not in columns else "has a column that others lack,"
                raise ValueError(f"{whose} {lacks} {name!r}; expected {', '.join(self.columns)}, in any order")
        return [columns.index(name) for name in self.columns]


def _are_names(given: Any) -> bool:
    return isinstance(given, list) and all(type(each) is str for each in given)


@dataclass(frozen=True)
class Agreement:
    """Method, network, first parameters and keys of an experiment (`engine.client.Setting`)."""

    config: Config
    kind: SampleSpec
    facts: Facts
    method: Method
    model: Network
    initial: Params

    def passes(self, epochs: int | None = None) -> tuple[Pass, ...]:
        return self.method.passes() if epochs is None else self.method.adapt(epochs)

    def prepare(self) -> tuple[Pass, ...]:
        return self.method.prepare()

    @cached_property
    def root(self) -> Tensor:
        return make_key(self.config.seed)

    @cached_property
    def visits(self) -> Tensor:
        return fold(self.root, CLIENT)

    def first_state(self) -> State:
        """The server's state before the first round. A site needs it for its shapes alone."""
        return self.method.init(self.model, self.initial, self.facts)

    @cached_property
    def grows(self) -> bool:
        """Whether a client may come later: nothing in the State depends on how many there are."""
        more = replace(self.facts, clients=self.facts.clients + 1, samples=self.facts.samples + 1)
        return same_tree(self.first_state(), self.method.init(self.model, self.initial, more))

    def offer(self, state: State, client: int | None) -> Offer:
        """What a state offers to a client; None: to a newcomer."""
        return Offer(*self.method.offer(state, None if client is None else torch.tensor(client)))

    def offer_like(self, client: int | None) -> Offer:
        blank: Offer = tree_map(torch.zeros_like, self.offer(self.first_state(), client))
        return blank

    @cached_property
    def fingerprint(self) -> str:
        """Of whatever would make the two sides compute something else."""
        agreed = {
            "posterity": __version__,
            "method": [self.config.method, fields_of(self.method), sources(self.config, self.method)],
            "network": [self.config.model, self.config.settings("model"), self.config.precision],
            "run": [self.config.seed, self.config.least, self.config.rounds, self.config.dtype],
            "samples": self.kind.facts(),
            "federation": [self.facts.clients, self.facts.samples, self.facts.classes, self.facts.public],
            "rows": {name: getattr(self.config, name) for name in ROWS},
            "data": {name: str(value) for name, value in self.config.settings("data").items()},
        }
        return fingerprint(agreed, self.initial, held(self.model))


def same_tree(one: Tree, two: Tree) -> bool:
    """Whether two trees hold the same, what is static included."""
    if not is_node(one):
        return torch.equal(one, two)
    static = [f.name for f in fields(one) if f.metadata.get(STATIC)] if is_dataclass(one) else []
    mine, other = dict(tree_parts(one)), dict(tree_parts(two))
    fixed = all(getattr(one, name) == getattr(two, name) for name in static)
    return fixed and mine.keys() == other.keys() and all(same_tree(part, other[name]) for name, part in mine.items())


def agree(config: Config, kind: SampleSpec, clients: int, samples: int, public: int = 0) -> Agreement:
    if config.device != "cpu":
        raise ValueError(f"device {config.device!r} was given: server and sites compute on their CPUs; give cpu")
    if config.augment is not None:
        raise ValueError(f"augment = {config.augment!r} was given: it needs everybody's pictures; leave it out")
    if kind.task == "classification" and len(kind.classes) < 2:
        raise ValueError(f"sites named the classes {list(kind.classes)}; expected two: give a smaller min_count")
    dtype = DTYPES[config.dtype]
    some = torch.zeros((2, *kind.shape), dtype=torch.int64 if kind.integers else dtype)
    options, classes = config.settings("model"), len(kind.classes)
    model = models.as_network(config.model, kind.shape, classes, kind.task, options, some)
    model = model.with_compute_dtype(torch.bfloat16) if config.precision == "bf16" else model
    model, initial = bind(model, model.init(config.seed, dtype))
    method = methods.build(config.method, config.settings(), config.training(), config.least)
    key = fold(make_key(config.seed), SERVER)
    return Agreement(config, kind, Facts(clients, samples, classes, key, public), method, model, initial)
