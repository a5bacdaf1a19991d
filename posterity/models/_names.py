"""Words for a name that was not found: what there is, and what was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def unknown(what: str, given: str, possible: Iterable[str]) -> str:
    """The text of an error: `given` is no `what`; the nearest names; all names."""
    names = [n for n in possible if n]
    near = get_close_matches(given, names, n=3, cutoff=0.5)
    guess = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    return f"There is no {what} {given!r}.{guess} Possible: {', '.join(names) if names else 'none'}."
