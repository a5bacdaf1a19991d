"""What a law is: a name, a statement, a function that raises, and what usually breaks it.

Beside it what several laws need: a method whose calls are observed, and the line of an author's file during which
something changed.
"""

import functools
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Any

from posterity.core.protocol import Pass
from posterity.core.wrapper import Wrapper
from posterity.laws.case import Broken, Case
from posterity.settings.plugins import Place, describe_error, is_yours, place_of

MEANINGS = (  # words of PyTorch, and what an author should read instead
    ("data-dependent control flow", "asks a tensor whether it is true: data-dependent control flow cannot be stacked; "
                                    "use torch.where and masks"),
    (".item()", "reads a number out of a tensor (.item(), float, int), which cannot be stacked; compute with tensors"),
    ("randomness", "draws from PyTorch's global generator (vmap knows no randomness); draw with posterity.core's "
                   "uniform or normal and here.key"),
    ("in-place", "writes into a tensor in place; return a new one"),
    ("dynamic shape", "makes a tensor whose size depends on values (x[x > 0], nonzero), which cannot be stacked; use "
                      "masks"),
)  # fmt: skip


class LawBroken(AssertionError):
    """A method breaks a law; the text says which, where, by how much, and what usually helps."""

    def __init__(self, law: str, statement: str, found: str, cause: str) -> None:
        super().__init__(f"{found}\n  law '{law}': {statement}\n  usual cause and remedy: {cause}")
        self.law = law


@dataclass(frozen=True)
class Law:
    name: str
    statement: str
    function: Callable[[Case], None]


FOUND: list[Law] = []


def law(name: str, statement: str, cause: str) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Make a function a law: it joins the list, and whatever it or the method raises becomes a `LawBroken`."""

    def wrap(function: Callable[[Case], None]) -> Callable[[Case], None]:
        @functools.wraps(function)
        def checked(case: Case) -> None:
            try:
                function(case)
            except Broken as found:
                raise LawBroken(name, statement, str(found), cause) from None
            except Exception as error:
                raise LawBroken(name, statement, explained(error), cause) from error

        FOUND.append(Law(name, statement, checked))
        return checked

    return wrap


def explained(error: BaseException) -> str:
    place = place_of(error)
    for words, meaning in MEANINGS:
        if words in str(error):
            return meaning if place is None else f"{place}: `{place.text}` {meaning}"
    return describe_error(error)


def _observed(name: str) -> Callable[..., Any]:
    return lambda self, *args: self.call(name, getattr(self.inner, name), *args)


@dataclass(frozen=True)
class Observed(Wrapper):
    """The method, each of whose functions is called by `call(name, function, *arguments)`, those of its passes too."""

    call: Callable[..., Any]

    init = _observed("init")
    offer = _observed("offer")
    combine = _observed("combine")
    report = _observed("report")
    join = _observed("join")
    start = _observed("start")
    message = _observed("message")
    predict = _observed("predict")

    def passes(self) -> tuple[Pass, ...]:
        return self._passes("passes")

    def adapt(self, epochs: int) -> tuple[Pass, ...]:
        return self._passes("adapt", epochs)

    def prepare(self) -> tuple[Pass, ...]:
        return self._passes("prepare")

    def _passes(self, name: str, *args: Any) -> tuple[Pass, ...]:
        given = self.call(name, getattr(self.inner, name), *args)
        return tuple(self._pass(each, f"pass {number} of {name}") for number, each in enumerate(given))

    def _pass(self, each: Pass, name: str) -> Pass:
        def part(which: str) -> Callable[..., Any]:
            return partial(self.call, f"{which} of {name}", getattr(each, which))

        return replace(each, open=part("open"), step=part("step"), close=part("close"))


def line_of_change(look: Callable[[], Any], run: Callable[[], Any]) -> Place | None:
    """The line of yours during which what `look()` returns became another, in a call of `run`."""
    start, current, found = look(), list[Place](), list[Place]()
    yours = functools.cache(is_yours)

    def compare() -> None:
        if current and not found and look() != start:
            found.append(current[-1])

    def step(frame: FrameType, event: str, argument: Any) -> Any:
        compare()
        caller = frame.f_back
        if event == "line":
            current[:] = [_place(frame)]
        elif event == "return" and caller is not None and yours(caller.f_code.co_filename):
            current[:] = [_place(caller)]
        return step

    before = sys.gettrace()
    sys.settrace(lambda frame, event, argument: step if yours(frame.f_code.co_filename) else None)
    try:
        with suppress(Exception):
            run()
    finally:
        sys.settrace(before)
    compare()
    return found[0] if found else None


def _place(frame: FrameType) -> Place:
    return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
