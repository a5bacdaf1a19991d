"""Runs that were done again are moved aside (`seed-0.before-1`): kept, but in no table, and not gone on with."""

from __future__ import annotations

import re
from pathlib import Path

MARK = ".before-"
NAME = re.compile(re.escape(MARK) + r"\d+$")


def is_aside(path: Path, folder: Path) -> bool:
    """Whether a run below `folder` was moved aside; named itself, it is a run like any other."""
    return any(NAME.search(part) for part in path.relative_to(folder).parts)


__all__ = ["MARK", "is_aside"]
