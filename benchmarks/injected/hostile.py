"""Faults of messages on a real deployment: one SuperLink and its SuperNodes play all of them, one run after the other.

The client app of each run is `hostile_app.py`, which forges one reply by the functions that faults in one process have
(`forged.py`). The end is held against the simulator's; that of a message which counted, also against the end that the
same message has in one process.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from injected.deployed import CLIENTS, LINK, ROUNDS, deployed
from injected.forged import AT, FORGED, Forged
from injected.messages import Outcome, difference, judged, play, setting
from posterity.laws.case import largest_gap
from posterity.runs.files import read_lines
from posterity.runs.folder import METRICS
from posterity.settings.config import Config

HERE = Path(__file__).parent
ROUNDING = 1e-6  # of float32: messages are added up in the order of their arrival, which another run need not have
TWICE = "Failed to store Message reply"  # what a SuperLink says of a second reply to one message
DEADLINES = {"again": 60}  # seconds, of runs in which a reply is waited for in vain
LATER = tuple(range(AT + 1, ROUNDS + 1))
# what is done to Flower's messages and processes, what is promised, and in which rounds the client is missing if it is
ONLY_FLOWER: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "foreign": ("a message of Flower's without posterity's bytes", "without", (AT,)),
    "exception": ("a ClientApp that raises when it has trained", "without", (AT,)),
    "duplicated": ("its reply is sent twice at once", "undisturbed", (AT,)),
    "killed": ("SIGKILL of a ClientApp's process when it has trained", "without", (AT,)),
    "again": ("its reply is sent again 3 s later; deadline 60 s", "without", LATER),  # the last: see below
}


def app(config: Config, name: str, folder: Path) -> Path:
    """The app of a configuration whose client is hostile in the way that its name says."""
    from flower.test_app_deployment import app_of  # needs Flower

    made: Path = app_of(config, name, folder)
    package = made / name.replace("-", "_")
    shutil.copy(HERE / "hostile_app.py", package / "client_app.py")
    shutil.copy(HERE / "forged.py", package / "forged.py")
    path = made / "pyproject.toml"
    path.write_text(path.read_text().replace("deadline = 3600", f"deadline = {DEADLINES.get(name, 600)}"))
    return made


def run(place: Any, name: str, config: Config, folder: Path) -> tuple[Any, list[dict[str, Any]]]:
    """A run to its end: its server, opened again, and its lines."""
    from flower.test_app_deployment import ended

    folder.mkdir(parents=True)
    place.run(app(config, name, folder))
    lines, server = read_lines(folder / "server" / METRICS), ended(place, config, name, folder)
    assert server.finished
    return server, lines


def forge(place: Callable[[], Any], name: str, made: Forged, folder: Path) -> Outcome:
    """A forged message of posterity's."""
    config = setting(made.method, made.own, CLIENTS, ROUNDS)
    server, lines = run(place(), name, config, folder)
    outcome = judged(made.fault, folder, (server, lines), config, made.promise)
    if made.promise == "without":
        return outcome
    beside, _, _ = play(folder / "beside", made.forge, config)
    gap, told = largest_gap(server.state, beside.state)[0], difference(server.state, beside.state)
    like = "up to rounding (" + told + ")" if gap else "bit for bit"
    return replace(outcome, end=f"{outcome.end}; as in one process, {like}", kept=outcome.kept and gap < ROUNDING)


def disturb(
    place: Callable[[], Any], name: str, fault: str, promise: str, absent: tuple[int, ...], folder: Path
) -> Outcome:
    """What is done to Flower's message, or to its process.

    A SuperNode fetches a question and then sends the next reply that it finds. One that it finds too late it sends for
    the next question, and from then on each reply goes out a question late; nothing can be played on it any more.
    """
    config, log = setting("scaffold", None, CLIENTS, ROUNDS), place().folder / LINK
    before = log.read_text().count(TWICE)
    outcome = judged(fault, folder, run(place(), name, config, folder), config, promise, absent)
    refused = log.read_text().count(TWICE) - before
    told = f"the SuperLink refused {refused} second reply; " if refused else ""
    return replace(
        outcome, said=told + outcome.said, kept=outcome.kept and bool(refused) == (name in ("duplicated", "again"))
    )


def faults(stack: ExitStack, folder: Path) -> dict[str, Callable[[Path], Outcome]]:
    """All of them, on a deployment that is started for the first and ends with the stack."""

    @cache
    def place() -> Any:
        return stack.enter_context(deployed(folder))

    return {
        **{name: partial(forge, place, name, made) for name, made in FORGED.items()},
        **{name: partial(disturb, place, name, *made) for name, made in ONLY_FLOWER.items()},
    }


__all__ = ["faults"]
