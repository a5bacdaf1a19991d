"""The version, for those that need nothing else of the package."""

__version__ = "0.1.0"
