"""What a law is: a name, a statement, a function that raises, and what usually breaks it.

Which line of an author's file did it: an exception explained, or the line during which something changed.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from posterity.laws.case import Broken, Case
from posterity.settings.plugins import Place, is_yours, place_of, told

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


def explained(error: BaseException) -> str:
    """An exception in one line: where, what was written there, and what that means."""
    place, said = place_of(error), str(error)
    for words, meaning in MEANINGS:
        if words in said:
            return meaning if place is None else f"{place}: `{place.text}` {meaning}"
    return told(error)


def line_of_change(look: Callable[[], Any], run: Callable[[], Any]) -> Place | None:
    """The line of yours during which what `look()` returns became another, in a call of `run`."""
    watcher = _Watcher(look)
    before = sys.gettrace()
    sys.settrace(watcher.enter)
    try:
        with suppress(Exception):
            run()
    finally:
        sys.settrace(before)
    watcher.compare()
    return watcher.found


class _Watcher:
    def __init__(self, look: Callable[[], Any]) -> None:
        self.look, self.state = look, look()
        self.place: Place | None = None  # the line under way
        self.found: Place | None = None
        self.known: dict[str, bool] = {}  # files, and whether they are yours

    def compare(self) -> None:
        if self.found is None and self.place is not None and self.look() != self.state:
            self.found = self.place

    def enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self.step if self._yours(frame) else None

    def step(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.compare()
        if event == "line":
            self.place = _place(frame)
        elif event == "return" and frame.f_back is not None and self._yours(frame.f_back):
            self.place = _place(frame.f_back)
        return self.step

    def _yours(self, frame: FrameType) -> bool:
        file = frame.f_code.co_filename
        if file not in self.known:
            self.known[file] = is_yours(file)
        return self.known[file]


def _place(frame: FrameType) -> Place:
    return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)


class LawBroken(AssertionError):
    """A method breaks a law; the text says which, where, by how much, and what usually helps."""

    def __init__(self, law: str, statement: str, found: str, cause: str) -> None:
        super().__init__(f"{found}\n  law '{law}': {statement}\n  usual cause and remedy: {cause}")
        self.law, self.statement, self.found, self.cause = law, statement, found, cause


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
