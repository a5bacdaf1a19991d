"""Names that came from somebody's file, in a terminal: neither acted on (`core/text.py`) nor read as rich's markup."""

from __future__ import annotations

from rich.markup import escape

from posterity.core.text import plain


def label(text: str) -> str:
    """A name for a table or a line of rich."""
    return escape(plain(text))


def paragraphs(text: str) -> str:
    """A text of several lines, to be printed without markup."""
    return plain(text, keep="\n\t")
