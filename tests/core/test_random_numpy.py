"""Keys made by numpy are the keys of `core.random`, word for word."""

from __future__ import annotations

import pytest
import torch

from posterity.core import _random_numpy as random_numpy
from posterity.core import random

NUMBERS = {
    "a number": 7,
    "zero": 0,
    "more than a word": 2**40,
    "negative": -1,
    "a tensor": torch.tensor(2**45 + 3),
    "several": torch.arange(5)[:, None],
    "none": torch.zeros(0, 1, dtype=torch.int64),
}


@pytest.mark.parametrize("number", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("shape", [(2,), (3, 2)])
def test_fold(shape, number):
    key = torch.randint(0, 2**32, shape, generator=torch.Generator().manual_seed(3))
    if isinstance(number, torch.Tensor) and number.dim() and len(shape) == 1:
        number = number[:, 0]
    ours, theirs = random_numpy.fold(key, number), random.fold(key, number)
    assert ours.dtype == theirs.dtype
    assert torch.equal(ours, theirs)


def test_threefry():
    generator = torch.Generator().manual_seed(4)
    key = torch.randint(0, 2**32, (6, 2), generator=generator)
    low, high = torch.randint(0, 2**32, (2, 6), generator=generator)
    pairs = zip(random_numpy.threefry(key, low, high), random.threefry(key, low, high), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_nothing_is_written_to_what_is_handed_in():
    key, number = random.make_key(5), torch.arange(3)
    random_numpy.fold(key, number)
    assert torch.equal(key, random.make_key(5))
    assert torch.equal(number, torch.arange(3))
