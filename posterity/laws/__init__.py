"""Laws that every method keeps, whoever wrote it: `posterity check my_package.foo:Foo` runs them.

Each law is a function of a `Case` (a method on a small federation, `case.py`) that raises `LawBroken`, and the text
says which client, round and leaf, by how much, and what usually helps. Everything is deterministic: the federation is
made from fixed keys. Laws are declared by `law.py`; they compare runs that `case.py` keeps:

    plain        the method runs at all
    purity       a function's answer depends on its arguments alone; it can be stacked
    invariance   engine, order, blocks, company, padding, numbers of clients and other seeds change nothing
    draws        other keys give other draws
    records      what lasts: records, states, refused messages, scoring, resuming
    memory       what clients hold is what they declare
    sums         messages add up
    withheld     what must not be sent

They are tried from cause to consequence (`ORDER`): what only follows from a law that is broken is not tried.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from posterity.core.protocol import Method
from posterity.laws import draws, invariance, memory, plain, purity, records, sums, withheld  # noqa: F401
from posterity.laws.case import Case, make_case
from posterity.laws.law import FOUND, Law, LawBroken
from posterity.settings.hyperparameters import nearest

ROOTS = ("runs", "purity", "seed", "stacking")  # nothing can be told behind one of these that is broken
ORDER: dict[str, tuple[str, ...]] = {  # laws as they are tried, and the laws whose break would break them, too
    **dict.fromkeys(ROOTS, ()),
    "structure": (),
    "precision": (),
    "mask": (),
    "draws": (),
    "company": ("mask", "draws"),
    "engines": ("mask", "draws", "company"),
    "recording": ("engines",),
    "sums": (),
    "order": ("sums",),
    "blocks": ("sums", "company", "mask"),
    "weights": ("sums",),
    "empty": ("sums",),
    "probabilities": (),
    "scoring": (),
    "newcomers": ("mask", "company", "engines"),
    "absent": ("structure",),
    "refusal": ("sums", "company", "mask", "structure"),
    "resume": ("structure",),
    "renumbering": ("mask", "company", "engines"),
    "withholding": ("structure",),
    "seeds": ("structure", "mask", "company", "engines"),
    "memory": (),
}
LAWS: tuple[Law, ...] = tuple(sorted(FOUND, key=lambda law: list(ORDER).index(law.name)))


@dataclass(frozen=True)
class Verdict:
    law: str
    statement: str
    held: bool
    detail: str  # empty if the law held
    seconds: float
    follows: str = ""  # the broken law from which this one only follows: it was not tried


def check(
    method: Method,
    model_name: str = "mlp",
    only: Iterable[str] = (),
    watch: Callable[[Verdict], None] = lambda verdict: None,
) -> list[Verdict]:
    """The verdict of every law (or of those named in `only`) about `method` with a small network.

    `watch` is handed each verdict as it is found.
    """
    wanted = tuple(only)
    names = [law.name for law in LAWS]
    for name in wanted:
        if name not in names:
            raise ValueError(f"there is no law {name!r}: {nearest(name, names)}")
    looked_at, found = make_case(method, model_name), list[Verdict]()
    for law in LAWS:
        if not wanted or law.name in wanted:
            causes = (*ROOTS, *ORDER[law.name])
            broken = next((v.law for v in found if not v.held and not v.follows and v.law in causes), "")
            found.append(_verdict(law, looked_at, broken))
            watch(found[-1])
    return found


def _verdict(law: Law, looked_at: Case, cause: str) -> Verdict:
    if cause:
        return Verdict(law.name, law.statement, False, f"not tried: follows from {cause}", 0.0, cause)
    began, detail = time.perf_counter(), ""
    try:
        law.function(looked_at)
    except LawBroken as broken:
        detail = str(broken)
    return Verdict(law.name, law.statement, not detail, detail, time.perf_counter() - began)


__all__ = ["LAWS", "ROOTS", "Case", "Law", "LawBroken", "Verdict", "check", "make_case"]
