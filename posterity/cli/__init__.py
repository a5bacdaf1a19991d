"""The command line: `app.py` has the commands, `flags.py` their flags, `listing.py` and `show.py` what they print."""

from posterity.cli.app import main

__all__ = ["main"]
