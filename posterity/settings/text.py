"""Text that comes from somebody else's file, made harmless for a terminal: names of files, columns, classes, clients.

A name may hold an escape sequence that clears the screen, recolours it or rewrites the line above, a carriage return,
or a mark that reverses the reading order. `plain` shows such characters instead of obeying them. It knows nothing of
rich's markup (`rich.markup.escape` of its result) or of HTML (jinja2 escapes that).
"""

import unicodedata

ORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # turn the direction of what follows
OBEYED = frozenset(("Cc", "Cs", "Zl", "Zp"))  # controls, halves of characters (odd file names), line ends of Unicode


def plain(text: object, keep: str = "") -> str:
    r"""`text` in which every character that a terminal would obey is shown as its code; those in `keep` stay.

    >>> print(plain("ward\x1b[2J 3"), plain("first\nsecond", keep="\n").count("\n"))
    ward\x1b[2J 3 1
    """
    shown = str(text)
    if shown.isascii() and shown.isprintable():
        return shown
    return "".join(c if c in keep else _code(c) if _obeyed(c) else c for c in shown)


def paragraphs(text: object) -> str:
    """The same for a text of several lines, which stay."""
    return plain(text, keep="\n\t")


def _obeyed(character: str) -> bool:
    return unicodedata.category(character) in OBEYED or character in ORDERING


def _code(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"
