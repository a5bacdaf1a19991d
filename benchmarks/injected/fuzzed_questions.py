"""Questions that were damaged at random, given to a site: the other direction of `fuzzed.py`, damaged in the same ways.

Whatever a site refuses must leave its folder as it was, to the byte; what it answers is told apart by whether its reply
is the honest one.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import torch
from flower.in_process import node_of, sites
from flower.test_codec import spoilt

from injected.forged import AT, VICTIM
from injected.fuzzed import begun, lied
from injected.messages import setting
from posterity.flower.question import RoundQuestions
from posterity.flower.site import ClientSite, answer

CRASH, WRITTEN = "**the site crashed**", "**refused, but something was written**"
SAME, OTHER = "answered: as the honest question", "answered: other numbers, or another question of the right form"
STEMS = (  # of what the site says, without names and numbers
    "the header lacks", "the header is", "bytes are no message", "this is no message", "schema version",
    "the header says that it has", "is there twice", "the payload has", "has the type", "fingerprint", "is missing",
    "is not expected", "the server asks for", "the question is of round", "the question lacks",
    "the question wants scores", "the question's", "its samples have", "its task is", "its columns are",
    "the server's samples are", "has no record of round", "; expected",
)  # fmt: skip


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def outcomes(count: int, seed: int = 0) -> Counter[str]:
    """How many of `count` damaged questions a site answered, or refused with which sentence, or could not stand."""
    config, found = setting("scaffold"), Counter[str]()
    draws, chance = torch.Generator().manual_seed(seed), random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        server, folder = begun(config, Path(place)), Path(place) / "sites"
        client, number = server.roster.clients[f"client {VICTIM}"], server.roster.numbers[f"client {VICTIM}"]
        points = (("received", AT - 1, 0), ("trained", AT, 0))
        question = RoundQuestions(server.agreement, server.state, AT, (client.name,), points).question(
            client, number, AT - 1
        )
        kept = Path(place) / "kept"
        shutil.copytree(folder, kept)
        make, before = sites(config, Path(place))[node_of(VICTIM)], files(folder)
        honest = answer(make(), question)
        for i in range(count):
            if files(folder) != before:
                shutil.rmtree(folder)
                shutil.copytree(kept, folder)
            damaged = spoilt(question, draws) if i % 2 else lied(question, chance)
            found[outcome(make(), damaged, honest, folder, before)] += 1
    return found


def outcome(site: ClientSite, damaged: bytes, honest: bytes, folder: Path, before: dict[str, bytes]) -> str:
    """What became of one question; of a sentence, what stands before its first name or number."""
    try:
        return SAME if answer(site, damaged) == honest else OTHER
    except (ValueError, OSError) as error:
        if files(folder) != before:
            return f"{WRITTEN}: {error}"
        text = str(error)
        return next((f"refused: … {stem} …" for stem in STEMS if stem in text), f"refused: {text:.200}")
    except Exception as error:
        return f"{CRASH}: {type(error).__name__}"


def table(count: int, seed: int = 0) -> tuple[str, bool]:
    """Sentences and how often each was said; and whether the site stood all of it."""
    found = outcomes(count, seed)
    bad = sum(times for text, times in found.items() if text.startswith((CRASH, WRITTEN)))
    rows = [f"| {text} | {times:,} |" for text, times in found.most_common()]
    rows.append(f"| crashes, and refusals that wrote something | {bad:,} |")
    return "\n".join([f"| what became of the question | of {count:,} |", "|---|--:|", *rows]), bad == 0


__all__ = ["outcomes", "table"]
