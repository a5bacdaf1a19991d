"""Small readers of words and amounts that users type."""

from __future__ import annotations

import math

from posterity.core.hyperparameters import nearest as nearest
from posterity.data.pool import DataError


def read_share(value: str | float, what: str) -> float:
    """A share in [0, 1) from "20%" or 0.2."""
    text = str(value).strip()
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:  # also refuses nan
        raise DataError(f'{what} is {value!r}; expected a share below 1 such as "20%" or 0.2')
    return share


def read_amount(value: str | float, total: int, what: str) -> int:
    """How many of `total` are meant by "25%", by a share below 1, or by a whole number."""
    text = str(value).strip()
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = -1.0
    number = number if math.isfinite(number) else -1.0
    if text.endswith("%"):
        amount = round(total * number / 100)
    elif 0 < number < 1:
        amount = round(total * number)
    else:
        amount = int(number) if number == int(number) else -1
    if not 0 <= amount <= total or number < 0:
        raise DataError(f'{what} is {value!r}; expected a percentage such as "25%" or a whole number up to {total}')
    return amount


def read_split(text: str) -> float:
    """The share held out, from "80/20"."""
    try:
        train, held = (float(part) for part in text.split("/"))
    except ValueError:
        train, held = 0.0, 0.0
    if train <= 0 or held < 0 or abs(train + held - 100) > 1e-6:
        raise DataError(f'split is {text!r}; expected two percentages that add up to 100, such as "80/20"')
    return held / 100
