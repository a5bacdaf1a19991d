"""What a hostile site sends in place of its message: functions of what it was asked and of what it sent before.

`messages.py` plays them in one process. For a real deployment this file is copied, as it stands, into the app of the
hostile site, beside `hostile_app.py`; so it imports nothing but posterity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from posterity.flower.codec import encode, join_arrays, read_arrays, read_header

VICTIM, AT = 1, 2  # the client whose reply is forged, and the round
BOUND = 2.0  # of +clip
SENT, OFFERED = "params/value/", "shared/params/"  # where parameters stand in a message, and in an offer


@dataclass(frozen=True)
class Seen:
    """What a site knows when it answers in round `AT`."""

    question: bytes
    reply: bytes  # its honest one
    earlier: bytes  # that of the round before


Forge = Callable[[Seen], bytes | str]


@dataclass(frozen=True)
class Forged:
    """A message that is another one than was computed, and what is promised for the end of its run."""

    fault: str
    forge: Forge
    promise: str  # "without" that message, "differs" from the undisturbed run, or does so "bounded" by +clip
    method: str = "fedavg"
    own: Mapping[str, str] = field(default_factory=dict)  # settings of the method


def is_forged(client: str, asked: Mapping[str, Any]) -> bool:
    """Whether this is the question whose answer is forged."""
    visit = (asked["ask"], asked.get("round"), asked.get("trial")) == ("visit", AT, False)
    return visit and client == f"client {VICTIM}"


def changed(reply: bytes, change: Callable[[str, Tensor], Tensor], **facts: Any) -> bytes:
    """The message with every number of its values changed, in the right form; weights stay as they are."""
    header, arrays = read_header(reply), read_arrays(reply)
    sent = {name: change(name, leaf) if "value" in name.split("/") else leaf for name, leaf in arrays.items()}
    return join_arrays(sent, header.fingerprint, {**header.facts, **facts}, header.complete)


def scaled(factor: float, seen: Seen) -> bytes:
    return changed(seen.reply, lambda _, leaf: leaf * factor)


def poisoned_within(bound: float, seen: Seen) -> bytes:
    """As far from the broadcast as +clip allows, towards −20 × the parameters: no honest client can do more."""
    offered = {n.removeprefix(OFFERED): leaf for n, leaf in read_arrays(seen.question).items() if n.startswith(OFFERED)}
    mine = {n.removeprefix(SENT): leaf for n, leaf in read_arrays(seen.reply).items() if n.startswith(SENT)}
    away = {name: -20 * leaf.double() - offered[name] for name, leaf in mine.items()}
    far = torch.cat([leaf.flatten() for leaf in away.values()]).norm()
    sent = {SENT + name: (offered[name] + bound / far * leaf).to(mine[name]) for name, leaf in away.items()}
    return changed(seen.reply, lambda name, leaf: sent.get(name, leaf))


def misshapen(seen: Seen) -> bytes:
    header = read_header(seen.reply)
    return encode({"params": torch.zeros(3, 3)}, header.fingerprint, header.facts)


def disguised(seen: Seen) -> bytes:
    """The old message under the new round's number: its numbers are finite and in the right form."""
    return changed(seen.earlier, lambda _, leaf: leaf, round=AT)


CLIPPED = {"method": "fedavg+clip", "own": {"bound": f"{BOUND:g}"}}
FORGED: dict[str, Forged] = {
    "nan": Forged("NaN", partial(scaled, float("nan")), "without"),
    "shapes": Forged("wrong names and shapes", misshapen, "without"),
    "huge": Forged("numbers of 1e30", partial(scaled, 1e30), "without"),
    "large": Forged("numbers of 1e12, which the codec and float32 can hold", partial(scaled, 1e12), "without"),
    "poisoner": Forged("a finite poisoner: −20 × its parameters", partial(scaled, -20.0), "differs"),
    "poisoner-clip": Forged(
        "the same with +clip, which the site ignores", partial(scaled, -20.0), "without", **CLIPPED
    ),
    "poisoner-within": Forged(
        "the same with +clip, just inside the bound", partial(poisoned_within, BOUND), "bounded", **CLIPPED
    ),
    "replayed": Forged("its message of round 1 again (an old round)", lambda s: s.earlier, "without", "scaffold"),
    "disguised": Forged("its message of round 1 under the number of round 2", disguised, "differs"),
    "garbage": Forged("2,000 bytes of nothing", lambda _: bytes(2000), "without", "scaffold"),
    "cut": Forged("a message without its last 5 bytes", lambda seen: seen.reply[:-5], "without", "scaffold"),
}

__all__ = ["AT", "BOUND", "FORGED", "VICTIM", "Forge", "Forged", "Seen", "is_forged"]
