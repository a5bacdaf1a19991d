"""The command line."""

from posterity.cli.app import main

__all__ = ["main"]
