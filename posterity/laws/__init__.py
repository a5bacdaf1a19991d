"""Laws that every method keeps, whoever wrote it: `posterity check my_package.foo:Foo` runs them.

Each law is a function of a `Subject` that raises `LawBroken`, and the text says which client, round and leaf, by how
much, and what usually helps. Everything is deterministic: the federation is made from fixed keys.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from posterity.core.hyperparameters import nearest
from posterity.core.protocol import Method
from posterity.laws import company, draws, purity, records, seeds, sums
from posterity.laws.law import FOUND, Law, LawBroken
from posterity.laws.subject import Subject, subject

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
    looked_at = subject(method, model_name)
    return [_verdict(law, looked_at) for law in LAWS if not wanted or law.name in wanted]


def _verdict(law: Law, looked_at: Subject) -> Verdict:
    began, detail = time.perf_counter(), ""
    try:
        law.function(looked_at)
    except LawBroken as broken:
        detail = str(broken)
    return Verdict(law.name, law.statement, not detail, detail, time.perf_counter() - began)


__all__ = ["LAWS", "Law", "LawBroken", "Subject", "Verdict", "check", "company", "draws", "purity", "records", "seeds",
           "subject", "sums"]  # fmt: skip
