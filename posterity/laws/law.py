"""What a law is: a name, a statement, a function that raises, and what usually breaks it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from posterity.laws.assertions import Broken
from posterity.laws.case import Case
from posterity.laws.locate import explained


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
