"""Words for a name that was not found: what there is, and what was probably meant."""

from __future__ import annotations

from collections.abc import Iterable

from posterity.core.hyperparameters import nearest


def unknown(what: str, given: str, possible: Iterable[str]) -> str:
    """The text of an error: `given` is no `what`; the nearest names; all names."""
    return f"there is no {what} {given!r}: {nearest(given, [n for n in possible if n])}"
