"""The law about draws: another client, round, pass, step or seed means another key, and methods use it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from posterity.core import random
from posterity.core.protocol import Here
from posterity.laws.case import Broken, Case, make_case, predictions, run
from posterity.laws.law import Observed, law

Words = tuple[int, ...]
VISITS = ((1, 3, 8), (1, 5, 8))  # the cohorts that are listened to


@law(
    "draws",
    "Another client, round, pass, step or seed means another draw.",
    "a key made inside the method (make_key(0)), kept from an earlier call, or folded from too little. Draw with "
    "here.key, or fold(here.key, i) for the i-th draw of a call, and hand key=here.key to the model.",
)
def law_draws(case: Case) -> None:
    if case.model.name == "mlp" and not any("drop" in n for n, _ in case.model.module.named_modules()):
        case = make_case(case.method, "mlp_dropout", case.dtype)  # most methods are noisy only there
    first, second = keys_of_run(case, case.seed), keys_of_run(case, case.seed + 1)
    if first.clash:
        raise Broken(first.clash)
    for words in first.keys.keys() & second.keys.keys():
        raise Broken(f"{first.keys[words]} draws with the same key under seeds {case.seed} and {case.seed + 1}")


@dataclass
class KeyLog:
    place: str = ""  # the call for a client under way; empty outside
    given: dict[Words, str] = field(default_factory=dict)
    keys: dict[Words, str] = field(default_factory=dict)
    clash: str = ""

    def call(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        """A function of the method, for `Observed`: open and close of a pass have one key."""
        here = args[-1] if args and isinstance(args[-1], Here) else None
        if here is None:
            return function(*args)
        part, _, what = name.rpartition(" of pass ")
        moment = f", step {int(here.step)}" if part == "step" else ""
        called = name if not part else f"pass {what}" if part == "step" else f"open and close of pass {what}"
        self.place = f"{called} of client {int(here.client)} in round {int(here.round)}{moment}"
        self.note(self.given, here.key, "is given")
        try:
            return function(*args)
        finally:
            self.place = ""

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


def keys_of_run(case: Case, seed: int) -> KeyLog:
    """The keys of two rounds and one scoring, one client after another; made once."""

    def listen() -> KeyLog:
        log = KeyLog()
        sim = case.sim(seed=seed, method=Observed(case.method, log.call))
        with logging_keys(log):
            made = run(sim, "oracle", VISITS)
            predictions(sim, "oracle", made.state, made.store(), (1, 3), "adapted")
        return log

    made: KeyLog = case.once(f"heard {seed}", listen)
    return made
