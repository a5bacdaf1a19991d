"""Amounts that users ask of data: `core/parse.py` reads them, the sentences about wrong ones stand here."""

from __future__ import annotations

from posterity.core.parse import MISTAKES, parse_amount, parse_share, parse_split
from posterity.data.pool import DataError


def read_share(value: str | float, what: str) -> float:
    """A share in [0, 1) from "20%" or 0.2."""
    try:
        share = parse_share(value)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:  # also refuses nan
        raise DataError(f'{what} is {value!r}; expected a share below 1 such as "20%" or 0.2')
    return share


def read_amount(value: str | float, total: int, what: str) -> int:
    """How many of `total` are meant by "25%", by a share below 1, or by a whole number."""
    try:
        return parse_amount(value, total)
    except MISTAKES:
        raise DataError(
            f'{what} is {value!r}; expected a percentage such as "25%" or a whole number up to {total}'
        ) from None


def read_newcomers(value: str | float, clients: int) -> int:
    """How many of the clients come late; somebody must be left to train."""
    late = read_amount(value, clients, "newcomers")
    if late >= clients > 0:
        raise DataError(
            f"newcomers is {value!r}; expected up to {clients - 1} of {clients} clients, so that somebody is left to "
            "train; lower it"
        )
    if not late and parse_share(value) > 0:
        raise DataError(f"newcomers is {value!r}, which is nobody of {clients} clients; expected 0 or more; raise it")
    return late


def read_split(text: str) -> float:
    """The share held out, from "80/20"."""
    try:
        train, held = parse_split(text)
    except ValueError:
        train, held = 0.0, 0.0
    if train <= 0 or held < 0 or not abs(train + held - 100) <= 1e-6:  # also refuses nan
        raise DataError(
            f'split is {text!r}; expected two percentages that add up to 100, the first above 0, such as "80/20"'
        )
    return held / 100
