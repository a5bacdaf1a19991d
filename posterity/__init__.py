"""Personalised federated learning with honest uncertainty."""

__version__ = "0.1.0"
