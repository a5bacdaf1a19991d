"""The law about draws: another client, round, pass, step or seed means another key, and methods use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from posterity.core import random
from posterity.core.protocol import Here, Pass
from posterity.core.wrapper import Wrapper
from posterity.engine.loop import ORACLE
from posterity.engine.round import first_state, score, train_round
from posterity.engine.store import Memory
from posterity.laws.gaps import Broken
from posterity.laws.law import law
from posterity.laws.subject import Subject
from posterity.laws.subject import subject as subject_for

Words = tuple[int, ...]
VISITS = ((0, 1, 3), (1, 5, 8))  # the cohorts that are listened to


@dataclass
class Ear:
    """Which keys the method was given and which it drew with, and where."""

    place: str = ""  # the call under way; empty outside the method
    given: dict[Words, str] = field(default_factory=dict)
    keys: dict[Words, str] = field(default_factory=dict)
    clash: str = ""

    def hear(self, book: dict[Words, str], key: Tensor, what: str) -> None:
        for words in _words(key):
            other = book.setdefault(words, self.place)
            if other != self.place and not self.clash:
                self.clash = f"{self.place} {what} the same key as {other}"


def _words(key: Tensor) -> list[Words]:
    """The keys behind a tensor (..., 2), also under `vmap` and `grad`."""
    inside = torch._C._functorch
    while inside.is_functorch_wrapped_tensor(key):
        key = inside.get_unwrapped(key)
    return [tuple(words) for words in key.reshape(-1, 2).tolist()]


@contextmanager
def listening(ear: Ear) -> Iterator[None]:
    """Everything drawn through `core.draw` inside the method is written down."""
    original = random.bits

    def bits(key: Tensor, count: int) -> tuple[Tensor, Tensor]:
        if ear.place:
            ear.hear(ear.keys, key, "draws with")
        return original(key, count)

    random.bits = bits
    try:
        yield
    finally:
        random.bits = original


@dataclass(frozen=True)
class Overheard(Wrapper):
    """The method, telling `ear` which of its functions runs for whom."""

    ear: Ear = field(default_factory=Ear)

    def _at(self, name: str, function: Callable[..., Any], here: Here, *args: Any, step: bool = False) -> Any:
        moment = f", step {int(here.step)}" if step else ""
        self.ear.place = f"{name} of client {int(here.client)} in round {int(here.round)}{moment}"
        self.ear.hear(self.ear.given, here.key, "is given")
        try:
            return function(*args)
        finally:
            self.ear.place = ""

    def join(self, here: Here) -> Any:
        return self._at("join", self.inner.join, here, here)

    def start(self, here: Here) -> Any:
        return self._at("start", self.inner.start, here, here)

    def message(self, carry: Any, here: Here) -> Any:
        return self._at("message", self.inner.message, here, carry, here)

    def predict(self, carry: Any, x: Tensor, here: Here) -> Any:
        return self._at("predict", self.inner.predict, here, carry, x, here)

    def _pass(self, each: Pass, name: str) -> Pass:
        def step(carry: Any, batch: Any, here: Here) -> Any:
            return self._at(name, each.step, here, carry, batch, here, step=True)

        def edge(function: Callable[..., Any]) -> Callable[..., Any]:
            return lambda carry, here: self._at(f"open and close of {name}", function, here, carry, here)

        return replace(each, step=step, open=edge(each.open), close=edge(each.close))

    def passes(self) -> tuple[Pass, ...]:
        return tuple(self._pass(p, f"pass {i}") for i, p in enumerate(self.inner.passes()))

    def adapt(self, epochs: int) -> tuple[Pass, ...]:
        return tuple(self._pass(p, f"pass {i} of adapt") for i, p in enumerate(self.inner.adapt(epochs)))


def heard(subject: Subject, seed: int) -> Ear:
    """What was heard in two rounds and one scoring, one client after another; made once."""

    def listen() -> Ear:
        ear = Ear()
        sim = subject.sim(seed=seed, method=Overheard(subject.method, ear))
        with listening(ear):
            state, store = first_state(sim), Memory(subject.federation.members)
            for number, cohort in enumerate(VISITS, 1):
                state, _ = train_round(sim, ORACLE, state, store, torch.tensor(cohort), number, 2)
            score(sim, ORACLE, state, store, torch.tensor([1, 3]), 2, [subject.federation.test], "adapted")
        return ear

    made: Ear = subject.once(f"heard {seed}", listen)
    return made


@law(
    "draws",
    "Another client, round, pass, step or seed means another draw.",
    "a key made inside the method (make_key(0)), kept from an earlier call, or folded from too little. Draw with "
    "here.key, or fold(here.key, i) for the i-th draw of a call, and hand key=here.key to the model.",
)
def law_draws(subject: Subject) -> None:
    subjects = [subject]
    if subject.model.name == "mlp" and not any("drop" in n for n, _ in subject.model.module.named_modules()):
        subjects.append(subject_for(subject.method, "mlp_dropout", subject.dtype))  # most methods are noisy only there
    for each in subjects:
        first, second = heard(each, subject.seed), heard(each, subject.seed + 1)
        if first.clash:
            raise Broken(first.clash)
        for words in first.keys.keys() & second.keys.keys():
            raise Broken(
                f"{first.keys[words]} draws with the same key under seeds {subject.seed} and {subject.seed + 1}"
            )
