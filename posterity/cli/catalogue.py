"""`posterity methods --json`: everything that there is to know about methods, wrappers and names, for programs.

What a method sends is not declared but seen: each one plays a round with two small clients.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields
from typing import Any

from posterity import methods
from posterity.cli.listing import first_line, training_knobs
from posterity.core.hyperparameters import UNSTATED, Knob, describe, knobs, nearest
from posterity.core.protocol import Method
from posterity.core.training import Training
from posterity.core.wire import Sparse
from posterity.engine.round import first_state
from posterity.engine.store import Memory
from posterity.laws.case import make_case
from posterity.laws.history import one_round
from posterity.methods.fedavg import FedAvg

PLAYERS = (3, 4)  # clients of 8 and 5 samples
SAID = ("label", "reference", "scored", "absent")


def print_json(name: str | None) -> None:
    """One JSON object: all of them, or those of one name."""
    found = everything()
    if name is not None:
        word = name.lstrip("+")
        known = {each for group in found.values() for each in group}
        if word not in known:
            raise ValueError(f"there is no method, wrapper or name {word!r}: {nearest(word, known)}")
        found = {kind: {n: each for n, each in group.items() if n == word} for kind, group in found.items()}
    print(json.dumps(found, ensure_ascii=False, indent=1, allow_nan=False))


def everything() -> dict[str, dict[str, Any]]:
    """Methods, wrappers (around FedAvg) and names for specs, each by its name."""
    return {
        "methods": {name: _method(cls) for name, cls in methods.available().items()},
        "wrappers": {name: _wrapper(cls) for name, cls in methods.suffixes().items()},
        "names": {name: {**asdict(named), "told": named.told(name)} for name, named in methods.names().items()},
    }


def _method(cls: Any) -> dict[str, Any]:
    trains = any(f.name == "local" for f in fields(cls))
    return {
        "summary": first_line(cls),
        **{name: getattr(cls, name) for name in SAID},
        **message_facts(cls(local=Training()) if trains else cls()),
        "hyperparameters": [_knob(k) for k in knobs(cls) if k.name != "local"],
        "training": [_knob(k) for k in training_knobs(cls)],
    }


def _wrapper(cls: Any) -> dict[str, Any]:
    facts = message_facts(cls(FedAvg()))
    return {"summary": first_line(cls), "around": "fedavg", **facts, "hyperparameters": [_knob(k) for k in knobs(cls)]}


def message_facts(method: Method) -> dict[str, Any]:
    """Which kinds of message it sends under which names, and whether a sum that hides single messages would do."""
    case = make_case(method)
    try:
        sim = case.sim()
        done = one_round(sim, "oracle", first_state(sim), Memory(case.federation.members), PLAYERS, 1)
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
