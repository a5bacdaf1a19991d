"""What a site says when it does not answer: never a value of its data.

A sentence that was made while data were read may hold a cell, a label or a path. It stays in the site's own log, and
the server is told what kind of problem there is. Sentences about the configuration, or about the server's own question
(`CodecError`), know nothing of the data and go as they are. Whatever goes is written down first, as any reply is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from posterity.core.codec import CodecError
from posterity.flower.sent import describe_refusal, write_sent

LOG = "the site's own log says what it is"
UNWRITTEN = f"why it does not answer could not be written down at the site, so it is not told; {LOG}"
LONGEST = 1000  # characters that are told


class SiteError(ValueError):
    """Why a site does not answer; `told` is what the server hears of it."""

    def __init__(self, sentence: str, told: str) -> None:
        super().__init__(sentence)
        self.told = told


@contextmanager
def telling(told: str | None = None) -> Iterator[None]:
    """Of whatever is refused inside the server hears `told`; None: the sentence itself, which knows no data."""
    try:
        yield
    except (SiteError, CodecError):
        raise
    except (ValueError, OSError) as error:
        raise SiteError(str(error), str(error) if told is None else f"{told}; {LOG}") from error


def refuse(error: Exception, place: Path | None, round: int) -> str:
    """What the server is told, once it stands in this client's list of what left; `place` is None before it has one."""
    if isinstance(error, SiteError):
        text = error.told
    else:
        text = str(error) if isinstance(error, CodecError) else f"{type(error).__name__} in its work; {LOG}"
    text = text[:LONGEST]
    try:
        if place is not None:
            write_sent(place, describe_refusal(text, round))
    except (OSError, ValueError):
        return UNWRITTEN
    return text


__all__ = ["SiteError", "refuse", "telling"]
