"""What was typed wrong, and what is worth a remark, in a sentence."""

from __future__ import annotations

import os
import sys
import warnings
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TextIO

from posterity.cli.neutral import paragraphs

PACKAGE = str(Path(__file__).resolve().parents[1])


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


def say_remarks() -> None:
    """Print what the package warns of as one line: Python's own form adds a line of our code, which helps nobody."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
             line: str | None = None) -> None:  # fmt: skip
        if filename.startswith(PACKAGE) and issubclass(category, UserWarning):
            print(f"note: {paragraphs(str(message))}", file=sys.stderr)
        else:
            usual(message, category, filename, lineno, file, line)

    warnings.showwarning = show
