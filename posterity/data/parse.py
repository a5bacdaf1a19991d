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


def read_split(text: str) -> float:
    """The share held out, from "80/20"."""
    try:
        train, held = parse_split(text)
    except ValueError:
        train, held = 0.0, 0.0
    if train <= 0 or held < 0 or abs(train + held - 100) > 1e-6:
        raise DataError(f'split is {text!r}; expected two percentages that add up to 100, such as "80/20"')
    return held / 100
