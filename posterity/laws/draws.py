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
from posterity.engine.engines import ORACLE
from posterity.engine.round import first_state, score, train_round
from posterity.engine.store import Memory
from posterity.laws.case import Broken, Case, make_case
from posterity.laws.law import law

Words = tuple[int, ...]
VISITS = ((0, 1, 3), (1, 5, 8))  # the cohorts that are listened to


@dataclass
class KeyLog:
    """Which keys the method was given and which it drew with, and where."""

    place: str = ""  # the call under way; empty outside the method
    given: dict[Words, str] = field(default_factory=dict)
    keys: dict[Words, str] = field(default_factory=dict)
    clash: str = ""

    def note(self, book: dict[Words, str], key: Tensor, what: str) -> None:
        for words in _words(key):
            other = book.setdefault(words, self.place)
            if other != self.place and not self.clash:
                self.clash = f"{self.place} {what} the same key as {other}"


def _words(key: Tensor) -> list[Words]:
    """The keys behind a tensor (..., 2), also under `vmap` and `grad`."""
    inside = torch._C._functorch
    while inside.is_functorch_wrapped_tensor(key):
        key = inside.get_unwrapped(key)
    with torch._C._DisableFuncTorch():  # PyTorch 2.6 would wrap what `reshape` returns
        return [tuple(words) for words in key.reshape(-1, 2).tolist()]


@contextmanager
def logging_keys(log: KeyLog) -> Iterator[None]:
    """Everything drawn through `core.random` inside the method is written down."""
    original = random.bits

    def bits(key: Tensor, count: int) -> tuple[Tensor, Tensor]:
        if log.place:
            log.note(log.keys, key, "draws with")
        return original(key, count)

    random.bits = bits
    try:
        yield
    finally:
        random.bits = original


@dataclass(frozen=True)
class KeyLogged(Wrapper):
    """The method, telling `log` which of its functions runs for whom."""

    log: KeyLog = field(default_factory=KeyLog)

    def _at(self, name: str, function: Callable[..., Any], here: Here, *args: Any, step: bool = False) -> Any:
        moment = f", step {int(here.step)}" if step else ""
        self.log.place = f"{name} of client {int(here.client)} in round {int(here.round)}{moment}"
        self.log.note(self.log.given, here.key, "is given")
        try:
            return function(*args)
        finally:
            self.log.place = ""

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

    def prepare(self) -> tuple[Pass, ...]:
        return tuple(self._pass(p, f"pass {i} of prepare") for i, p in enumerate(self.inner.prepare()))


def keys_of_run(case: Case, seed: int) -> KeyLog:
    """The keys of two rounds and one scoring, one client after another; made once."""

    def listen() -> KeyLog:
        log = KeyLog()
        sim = case.sim(seed=seed, method=KeyLogged(case.method, log))
        with logging_keys(log):
            state, store = first_state(sim), Memory(case.federation.members)
            for number, cohort in enumerate(VISITS, 1):
                state, _ = train_round(sim, ORACLE, state, store, torch.tensor(cohort), number, 2)
            score(sim, ORACLE, state, store, torch.tensor([1, 3]), 2, [case.federation.test], "adapted")
        return log

    made: KeyLog = case.once(f"heard {seed}", listen)
    return made


@law(
    "draws",
    "Another client, round, pass, step or seed means another draw.",
    "a key made inside the method (make_key(0)), kept from an earlier call, or folded from too little. Draw with "
    "here.key, or fold(here.key, i) for the i-th draw of a call, and hand key=here.key to the model.",
)
def law_draws(case: Case) -> None:
    cases = [case]
    if case.model.name == "mlp" and not any("drop" in n for n, _ in case.model.module.named_modules()):
        cases.append(make_case(case.method, "mlp_dropout", case.dtype))  # most methods are noisy only there
    for each in cases:
        first, second = keys_of_run(each, case.seed), keys_of_run(each, case.seed + 1)
        if first.clash:
            raise Broken(first.clash)
        for words in first.keys.keys() & second.keys.keys():
            raise Broken(f"{first.keys[words]} draws with the same key under seeds {case.seed} and {case.seed + 1}")
