"""All methods, wrappers and names for specs as one JSON object, for programs: what there is to know about each.

    python recipes/catalogue.py [NAME]

What a method sends is not declared but seen: each one plays a round with two small clients.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

from posterity import methods
from posterity.cli.listing import first_line, training_knobs
from posterity.core.messages import Sparse
from posterity.core.passes import Training
from posterity.core.protocol import Method
from posterity.engine.round import first_state
from posterity.engine.store import Store
from posterity.laws.case import make_case, one_round
from posterity.methods.fedavg import FedAvg
from posterity.settings.hyperparameters import UNSTATED, Knob, describe, knobs, nearest
from posterity.settings.names import Named

PLAYERS = (3, 4)  # clients of 8 and 5 samples
SAID = ("label", "reference", "scored", "absent")


def everything(only: str | None = None) -> dict[str, dict[str, Any]]:
    """Methods, wrappers (around FedAvg) and names for specs, each by its name; or what has one name."""
    known: dict[str, dict[str, Any]] = {
        "methods": methods.available(), "wrappers": methods.suffixes(), "names": methods.names()
    }  # fmt: skip
    every = {each for group in known.values() for each in group}
    if only is not None and only not in every:
        raise ValueError(f"there is no method, wrapper or name {only!r}: {nearest(only, every)}")
    return {kind: {name: DESCRIBED[kind](name, each) for name, each in group.items() if only in (None, name)}
            for kind, group in known.items()}  # fmt: skip


def _method(name: str, cls: Any) -> dict[str, Any]:
    trains = any(f.name == "local" for f in fields(cls))
    return {
        "summary": first_line(cls),
        **{said: getattr(cls, said) for said in SAID},
        **message_facts(cls(local=Training()) if trains else cls()),
        "hyperparameters": [_knob(k) for k in knobs(cls) if k.name != "local"],
        "training": [_knob(k) for k in training_knobs(cls)],
    }


def _wrapper(name: str, cls: Any) -> dict[str, Any]:
    facts = message_facts(cls(FedAvg()))
    return {"summary": first_line(cls), "around": "fedavg", **facts, "hyperparameters": [_knob(k) for k in knobs(cls)]}


def _name(name: str, named: Named) -> dict[str, Any]:
    return {**asdict(named), "told": named.describe(name)}


DESCRIBED: dict[str, Callable[[str, Any], dict[str, Any]]] = {"methods": _method, "wrappers": _wrapper, "names": _name}


def message_facts(method: Method) -> dict[str, Any]:
    """Which kinds of message it sends under which names, and whether a sum that hides single messages would do."""
    case = make_case(method)
    try:
        sim = case.sim()
        done = one_round(sim, "oracle", first_state(sim), Store(case.federation.members), PLAYERS, 1)
    except ValueError as error:  # it refuses this network, or these clients
        return {"messages": None, "plain_sum": None, "why": str(error)}
    kinds = {name: _kind(part) for name, part in done.sent.items()}
    plain = all(part.secure_sum for part in done.sent.values())
    return {"messages": kinds, "plain_sum": plain, "bytes_up": done.log.bytes_up // len(PLAYERS)}


def _kind(part: Any) -> str:
    """The kind of a part of a message; what need not travel is no kind."""
    return _kind(part.part) if isinstance(part, Sparse) else type(part).__name__


def _knob(knob: Knob) -> dict[str, Any]:
    stated = {} if knob.paper is UNSTATED else {"paper": _plain(knob.paper)}
    search = {} if knob.search is None else {"search": list(knob.search)}
    about = {"type": describe(knob.kind), "meaning": knob.doc, "source": knob.source or "ours"}
    choices = {"choices": list(knob.choices)} if knob.choices else {}
    return {"name": knob.name, "default": _plain(knob.default), **stated, **about, **choices, **search}


def _plain(value: Any) -> Any:
    """A value as JSON has it: endless numbers as words."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    name = sys.argv[1].lstrip("+") if sys.argv[1:] else None
    print(json.dumps(everything(name), ensure_ascii=False, indent=1, allow_nan=False))
