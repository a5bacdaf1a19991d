"""The command line: `app.py` joins the commands (`commands.py`), `flags.py` has their flags, `terminal.py` prints."""

from posterity.cli.app import main

__all__ = ["main"]
