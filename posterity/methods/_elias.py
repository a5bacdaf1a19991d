"""Levels of a quantiser in Elias' gamma code, with their signs: what QLSD's gradients travel as.

    level l >= 0   2 floor(log2(l + 1)) + 1 bits, and one for the sign where l > 0

First come the lengths of all levels in unary (as many zeros as the code has further digits, and a one), then all
further digits and signs: as many bits as one code after the other, but arrays can be read at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Bits = npt.NDArray[np.uint8]


def coded(levels: Tensor) -> Tensor:
    """Signed levels (n,) int64 as bytes."""
    signed = levels.numpy()
    number = np.abs(signed) + 1  # gamma codes begin at 1
    digits = _digits(number)
    unary = np.zeros(int(digits.sum()) + len(number), dtype=np.uint8)
    unary[np.cumsum(digits + 1) - 1] = 1
    rest = np.zeros(int((digits + (signed != 0)).sum()), dtype=np.uint8)
    place = _places(digits, signed != 0)
    for power in range(int(digits.max(initial=0))):
        some = digits > power
        rest[place[some] + power] = (number[some] >> power) & 1
    rest[(place + digits)[signed != 0]] = signed[signed != 0] < 0
    return torch.from_numpy(np.packbits(np.concatenate((unary, rest))))


def decoded(data: Tensor, count: int, most: int) -> Tensor:
    """The `count` signed levels of `coded`, none above `most`; anything else is a ValueError."""
    bits = np.unpackbits(data.numpy())
    ends = np.flatnonzero(bits)[:count]
    if len(ends) < count:
        raise ValueError(f"a code of {count} levels has only {len(ends)}")
    digits = np.diff(ends, prepend=-1) - 1
    if digits.max(initial=0) > np.log2(most + 1):
        raise ValueError(f"a level is above {most}")
    rest = bits[int(ends[-1]) + 1 if count else 0 :]
    some = digits > 0  # a level above 0: its code is above 1
    place, length = _places(digits, some), int((digits + some).sum())
    if not (len(rest) - 8 < length <= len(rest)) or rest[length:].any():
        raise ValueError(f"a code of {count} levels has {len(data)} bytes, which is not what they take")
    number = np.left_shift(1, digits)
    for power in range(int(digits.max(initial=0))):
        here = digits > power
        number[here] |= rest[place[here] + power].astype(np.int64) << power
    level = number - 1
    if level.max(initial=0) > most:
        raise ValueError(f"a level is {level.max()}, above {most}")
    level[some] *= 1 - 2 * rest[(place + digits)[some]].astype(np.int64)
    return torch.from_numpy(level)


def _digits(number: Any) -> Any:
    """floor(log2) of whole numbers from 1 to 2^52, exactly."""
    return np.frexp(number.astype(np.float64))[1].astype(np.int64) - 1


def _places(digits: Any, signs: Any) -> Any:
    """Where the further digits of each level begin."""
    length = digits + signs
    return np.cumsum(length) - length


__all__ = ["coded", "decoded"]
