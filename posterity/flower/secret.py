"""What the server draws in secret, where a method protects clients from each other by it (`+dp`).

Sites are given the run's seed, so whatever follows from it they can compute too: noise that was drawn from it could be
subtracted again, and a cohort be foretold. A method that says `secret` has the noise of `combine` and its cohorts drawn
from a number of the operating system's instead. It is drawn when the run begins, stays in the server's folder in a file
that its owner alone can read, so that a run that was interrupted goes on with it, and is neither sent nor logged.
Whatever else is drawn follows from the seed, as in a simulation; so do the other methods, to the last bit.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from posterity.core.random import fold, make_key
from posterity.engine.keys import SERVER
from posterity.experiment.run_folder import sync_folder

SECRET = "server.secret"  # in the server's folder
BITS = 63  # what a key is made of


@dataclass(frozen=True, repr=False)
class ServerKeys:
    """What a server's cohorts and its part of a round are drawn from; not shown where it is printed."""

    number: int

    @cached_property
    def root(self) -> Tensor:
        """The key of cohorts."""
        return make_key(self.number)

    @cached_property
    def server(self) -> Tensor:
        """The key of what the server draws in `combine`."""
        return fold(self.root, SERVER)


def is_secret(method: Any) -> bool:
    """Whether a method, or one that it wraps, protects clients by what the server draws."""
    while not getattr(method, "secret", False):
        if not hasattr(method, "inner"):
            return False
        method = method.inner
    return True


def open_keys(folder: Path, method: Any, seed: int, begun: bool, secret: int | None = None) -> ServerKeys:
    """The keys of a run: of its seed, or of its secret, which a run that has `begun` must still have.

    A `secret` that is given is taken, and nothing is written: for tests.
    """
    if not is_secret(method):
        return ServerKeys(seed)
    if secret is not None:
        return ServerKeys(secret)
    path = folder / SECRET
    if begun and not path.exists():
        raise ValueError(f"{path} is missing: with it the run's noise and its cohorts are drawn, and with another one "
                         "noise could be told from what it hides; put it back, or give 'out' another folder and "
                         "'experiment' another name")  # fmt: skip
    return ServerKeys(_read(path) if path.exists() else _draw(path))


def _draw(path: Path) -> int:
    """A new secret, in a file that nobody else can read from its first byte on, and that is all there or not at all."""
    number, part = secrets.randbits(BITS), path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)  # of a server that died while it wrote
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(f"{number:016x}\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    sync_folder(path.parent)
    return number


def _read(path: Path) -> int:
    text = path.read_text(encoding="ascii", errors="replace").strip()
    if len(text) != 16 or any(each not in "0123456789abcdef" for each in text) or int(text, 16) >= 2**BITS:
        raise ValueError(f"{path} is damaged: expected a number of 16 digits; put the old file back, or give 'out' "
                         "another folder and 'experiment' another name")  # fmt: skip
    return int(text, 16)


__all__ = ["SECRET", "ServerKeys", "is_secret", "open_keys"]
