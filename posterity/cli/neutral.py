"""Names that came from somebody's file, made harmless: a terminal must not act on what a column is called."""

from __future__ import annotations

from rich.markup import escape

# Characters that move the cursor, colour, ring, retitle a window (C0, DEL, C1), or turn the direction of reading round.
ACTING = [*range(0x20), *range(0x7F, 0xA0), 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
SHOWN = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in ACTING}
LINES = {code: shown for code, shown in SHOWN.items() if code not in (0x0A, 0x09)}


def harmless(text: str) -> str:
    """`text` on one line, with characters that a terminal would act on written out (`\\x1b`)."""
    return text.translate(SHOWN)


def harmless_lines(text: str) -> str:
    """The same for a text of several lines."""
    return text.translate(LINES)


def label(text: str) -> str:
    """A name for a table of rich: harmless, and not read as markup."""
    # rich leaves a backslash at the end of a text to escape what we write behind it
    return escape(harmless(text))
