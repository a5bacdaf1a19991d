"""What was typed wrong, in a sentence."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from typing import Any

from posterity.cli.neutral import paragraphs


def told(error: Any) -> str:
    """What a mistake in the flags says, with the nearest command: typer names it since 0.20, and we support 0.13."""
    message = str(getattr(error, "message", error))
    context = getattr(error, "ctx", None)
    if "No such command" not in message or "Did you mean" in message or context is None:
        return message
    close = get_close_matches(message.split("'")[1], list(getattr(context.command, "commands", {})))
    return message + (f" Did you mean {' or '.join(map(repr, close))}?" if close else "")


def sentence(error: Exception) -> str:
    """What an error says, which may name a column or a client as somebody's file does."""
    return paragraphs(str(error))


def tell_of_yours(error: Exception) -> None:
    """End with a sentence if the error comes from a file that the user wrote: with its line, without a traceback."""
    from posterity.core.outside import place_of, told

    if place_of(error) is not None and not os.environ.get("POSTERITY_DEBUG"):
        print(f"error: {paragraphs(told(error))} (POSTERITY_DEBUG=1 shows the traceback)", file=sys.stderr)
        sys.exit(2)
