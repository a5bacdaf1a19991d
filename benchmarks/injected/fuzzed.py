"""Messages that were damaged at random, given to a server that waits for a client's reply.

Half of them are the honest reply with bytes cut, swapped, doubled, zeroed or overwritten (as
`tests/flower/test_codec.py` does); the other half has something in its header replaced by what does not belong there,
and is whole otherwise.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from flower.in_process import InProcess, node_of, sites
from flower.test_codec import spoilt, with_header

from injected.forged import AT, VICTIM
from injected.messages import difference, opened, setting
from posterity.engine.server import Accumulator
from posterity.flower.question import RoundQuestions
from posterity.flower.server import ScoresByName, Server
from posterity.flower.settings import RoundRules
from posterity.flower.site import answer
from posterity.settings.config import Config

ENDLESS = "1e400"  # JSON has no infinity, but numbers that become one
JUNK: tuple[Any, ...] = (
    None, True, -1, 0, 2, 2**63, 10**400, 0.5, 1e300, ENDLESS, "", "\ud800", "x" * 5000, [], {}, [[]], {"n": {}},
)  # fmt: skip
DEEP = json.loads("[" * 600 + "]" * 600)
CRASH = "**the server crashed**"
STEMS = (  # of what the server says, without names and numbers
    "the header lacks", "bytes are no message", "it is of client", "its scores are of",
    "the site did not send it", "fingerprint", "is missing", "is not expected", "holds a number that is not finite",
    "it holds a number of magnitude", "; expected",
)  # fmt: skip
TAKEN, OTHER = "accepted: all numbers are the honest ones", "accepted: some numbers are others, of the right form"


def lied(data: bytes, draw: random.Random) -> bytes:
    """The message with one thing in its header replaced, left out or added."""
    changed = with_header(data, lambda header: _replaced(header, draw))
    return changed.replace(f'\\"{ENDLESS}\\"'.encode(), ENDLESS.encode() + b"    ")  # as long as it was


def _replaced(value: Any, draw: random.Random) -> Any:
    if not isinstance(value, (dict, list)) or not value or draw.random() < 0.15:
        return draw.choice((*JUNK, DEEP))
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    place, what = draw.choice(keys), draw.random()
    if isinstance(value, list):
        inner = [] if what < 0.1 else [value[place]] * 2 if what < 0.2 else [_replaced(value[place], draw)]
        return [*value[:place], *inner, *value[place + 1 :]]
    if what < 0.1:
        return {name: part for name, part in value.items() if name != place}
    name = draw.choice(("", "kind", "\ud800")) if what < 0.2 else place
    return {**value, name: _replaced(value[place], draw)}


def begun(config: Config, folder: Path) -> Server:
    """A server after its first round."""
    server = opened(config, folder, InProcess(sites(config, folder)), lambda line: None, RoundRules())
    server.step()
    return server


class Spoiling:
    """A network on which a client's reply arrives damaged, in another way each time."""

    def __init__(self, site: Any, seed: int):
        self.site, self.draws, self.chance = site, torch.Generator().manual_seed(seed), random.Random(seed)
        self.honest, self.number = b"", -1

    def nodes(self) -> list[int]:
        return [node_of(VICTIM)]

    def ask(self, questions: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        for node, question in questions:
            self.honest = self.honest or answer(self.site(), question)
            self.number += 1
            spoil = (lambda data: data) if not self.number else (
                (lambda data: spoilt(data, self.draws)) if self.number % 2 else (lambda data: lied(data, self.chance))
            )  # fmt: skip
            yield node, spoil(self.honest)


def outcomes(count: int, seed: int = 0) -> Counter[str]:
    """How many of `count` damaged messages the server took, or refused with which sentence, or could not stand."""
    config, found = setting("scaffold"), Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        server = begun(config, Path(place))
        client = server.roster.clients[f"client {VICTIM}"]
        request = RoundQuestions(server.agreement, server.state, AT, (client.name,), (("trained", AT, 0),))
        server.exchange = Spoiling(sites(config, Path(place))[node_of(VICTIM)], seed)
        server.folder = Path(place) / "told"
        server.folder.mkdir()
        honest = server.collect(request, [client])
        for _ in range(count):
            scores = ScoresByName()
            try:
                visited = server.collect(request, [client], scores)
                server.write([*server.score_lines(scores)])
                found[_sentence(visited, honest)] += 1
            except Exception as error:
                found[f"{CRASH}: {type(error).__name__}"] += 1
    return found


def _sentence(visited: Accumulator, honest: Accumulator) -> str:
    """What became of a message; of a sentence, what stands before its first name or number."""
    if not visited.refused:
        return OTHER if difference(visited.total, honest.total) else TAKEN
    reason = visited.refused[0].reason
    return next((f"refused: … {stem} …" for stem in STEMS if stem in reason), f"refused: {reason}")


def table(count: int, seed: int = 0) -> tuple[str, bool]:
    """Sentences and how often each was said; and whether the server stood all of it."""
    found = outcomes(count, seed)
    crashes = sum(times for text, times in found.items() if text.startswith(CRASH))
    rows = [f"| {text} | {times:,} |" for text, times in found.most_common()] + [f"| crashes in all | {crashes:,} |"]
    return "\n".join([f"| what became of it | of {count:,} |", "|---|--:|", *rows]), crashes == 0


__all__ = ["outcomes", "table"]
