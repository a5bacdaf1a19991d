"""What left a site, leaf by leaf, and what it says when it does not answer.

Every leaf and every fact of every reply has a line in a file beside the client's records:

    {"round": 3, "leaf": "classes/value/count", "shape": [10], "bytes": 40, "count": 6, "checksum": "9f…"}

`count` is the smallest number of samples behind a number of the leaf: of a class's statistics the smallest class that
was told, of anything else that was trained or counted all training samples of the site; 0 where nothing was told, and
null where it is not known or no samples are behind it (a name). A line is written before the reply goes, so that what
left is there even if it never arrived. Round 0 is registration.

What a site says when it does not answer is never a value of its data. A sentence that was made while data were read may
hold a cell, a label or a path: it stays in the site's own log, and the server is told what kind of problem there is.
Sentences about the configuration, or about the server's own question (`CodecError`), know nothing of the data and go as
they are. Whatever goes is written down first, as any reply is.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from posterity.flower.codec import CodecError, read_arrays, read_facts
from posterity.runs.files import append_lines, read_lines

LOG = "the site's own log says what it is"
UNWRITTEN = f"why it does not answer could not be written down at the site, so it is not told; {LOG}"
LONGEST = 1000  # characters that are told


class SiteError(ValueError):
    """Why a site does not answer; `public` is what the server hears of it."""

    def __init__(self, sentence: str, public: str) -> None:
        super().__init__(sentence)
        self.public = public


@contextmanager
def refusing(public: str | None = None) -> Iterator[None]:
    """Of what is refused inside the server hears `public`; None: the sentence, which knows no data."""
    try:
        yield
    except (SiteError, CodecError):
        raise
    except (ValueError, OSError) as error:
        raise SiteError(str(error), str(error) if public is None else f"{public}; {LOG}") from error


def refuse(error: Exception, place: Path | None, round: int) -> str:
    """What the server is told, once it stands in this client's list of what left."""
    if isinstance(error, SiteError):
        text = error.public
    else:
        text = str(error) if isinstance(error, CodecError) else f"{type(error).__name__} in its work; {LOG}"
    text = text[:LONGEST]
    try:
        if place is not None:
            write_sent(place, [_line(round, "refusal", [], text.encode(errors="replace"), None)])
    except (OSError, ValueError):
        return UNWRITTEN
    return text


SENT = "sent.jsonl"
NAMES = {"round", "leaf", "shape", "bytes", "count", "checksum"}  # of a line
DIGITS = 16  # of SHA-256, in hexadecimal
Line = dict[str, Any]


def describe_reply(
    data: bytes, round: int, facts: Mapping[str, int | None], leaves: Mapping[str, int | None]
) -> list[Line]:
    """The lines of a reply, with the counts behind its facts and the parts of its message."""
    found = []
    for name, value in read_facts(data).items():
        found.append(_line(round, name, [], json.dumps(value, sort_keys=True).encode(), facts.get(name)))
    for name, array in read_arrays(data).items():
        raw = array.reshape(-1).view(torch.uint8).numpy().tobytes()
        found.append(_line(round, name, list(array.shape), raw, leaves.get(name.split("/")[0])))
    return found


def counts_behind(method: Any, message: Mapping[str, Any], train: int, smallest: int) -> dict[str, int | None]:
    """The least count behind each part of a message: of the `smallest` class that is told, or of all `train` rows.

    Unknown for a method that is not of this package.
    """
    by_class = {part for parts in getattr(method, "class_statistics", {}).values() for part in parts}
    while hasattr(method, "inner"):
        method = method.inner
    rest = train if type(method).__module__.startswith("posterity.") else None
    return {part: smallest if part in by_class else rest for part in message}


def read_sent(path: Path) -> list[Line]:
    lines = read_lines(path)
    for number, line in enumerate(lines, start=1):
        if not (isinstance(line, dict) and line.keys() >= NAMES):
            raise ValueError(f"{path}, line {number} is not of a {SENT}; give the folder of a client's record")
    return lines


def summarise_sent(lines: Sequence[Line]) -> list[Line]:
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line["leaf"], []).append(line)
    told = []
    for leaf, every in found.items():
        rounds, counts = [line["round"] for line in every], [line["count"] for line in every if line["count"]]
        size, span = sum(line["bytes"] for line in every), [min(rounds), max(rounds)]
        least = min(counts, default=None)
        told.append({"leaf": leaf, "times": len(every), "rounds": span, "bytes": size, "count": least})
    return told


def write_sent(place: Path, lines: list[Line]) -> None:
    place.mkdir(parents=True, exist_ok=True)
    append_lines(place / SENT, lines)


def _line(round: int, leaf: str, shape: list[int], data: bytes, count: int | None) -> Line:
    checksum = hashlib.sha256(data).hexdigest()[:DIGITS]
    return {"round": round, "leaf": leaf, "shape": shape, "bytes": len(data), "count": count, "checksum": checksum}
