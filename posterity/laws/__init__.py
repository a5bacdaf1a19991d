"""Laws that every method keeps, whoever wrote it: `posterity check my_package.foo:Foo` runs them.

Each law is a function of a `Case` (a method on a small federation, `case.py`) that raises `LawBroken`, and the text
says which client, round and leaf, by how much, and what usually helps. Everything is deterministic: the federation is
made from fixed keys. Laws are declared by `law.py`; they compare runs kept by `history.py`, with `assertions.py`:

    invariance   engine, order, blocks, company, padding and numbers of clients change nothing
    draws        other keys give other draws
    purity       a function's answer depends on its arguments alone
    records      what lasts: records, states, refused messages, scoring, resuming
    seeds        several seeds at once
    sums         messages add up
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from posterity.core.hyperparameters import nearest
from posterity.core.protocol import Method
from posterity.laws import draws, invariance, purity, records, seeds, sums
from posterity.laws.case import Case, make_case
from posterity.laws.law import FOUND, Law, LawBroken

LAWS: tuple[Law, ...] = tuple(FOUND)


@dataclass(frozen=True)
class Verdict:
    """What became of one law."""

    law: str
    statement: str
    held: bool
    detail: str  # empty if the law held
    seconds: float


def check(method: Method, model_name: str = "mlp", only: Iterable[str] = ()) -> list[Verdict]:
    """The verdict of every law (or of those named in `only`) about `method` with a small network."""
    wanted = tuple(only)
    names = [law.name for law in LAWS]
    for name in wanted:
        if name not in names:
            raise ValueError(f"there is no law {name!r}: {nearest(name, names)}")
    looked_at = make_case(method, model_name)
    return [_verdict(law, looked_at) for law in LAWS if not wanted or law.name in wanted]


def _verdict(law: Law, looked_at: Case) -> Verdict:
    began, detail = time.perf_counter(), ""
    try:
        law.function(looked_at)
    except LawBroken as broken:
        detail = str(broken)
    return Verdict(law.name, law.statement, not detail, detail, time.perf_counter() - began)


__all__ = ["LAWS", "Case", "Law", "LawBroken", "Verdict", "check", "draws", "invariance", "make_case", "purity",
           "records", "seeds", "sums"]  # fmt: skip
