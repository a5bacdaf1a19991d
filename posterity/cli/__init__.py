"""The command line: `app.py` joins the commands (`*_commands.py`), `flags.py` has their flags, `show.py` prints."""

from __future__ import annotations

from posterity.cli.app import main

__all__ = ["main"]
