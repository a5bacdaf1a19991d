"""Rows are parted off in whole groups, as near to the amount as they come."""

import numpy as np
import pytest
import torch

from posterity.data.assemble import part_off


def taken(sizes: list[int], amount: int, seed: int) -> int:
    group = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    some, _ = part_off(torch.arange(sum(sizes)), amount, np.random.default_rng(seed), group)
    return len(some)


@pytest.mark.parametrize(
    ("size", "amount", "expected"), [(3, 5, 6), (3, 4, 3), (3, 6, 6), (10, 26, 30), (10, 24, 20), (4, 2, 4)]
)
def test_equal_groups_by_hand(size: int, amount: int, expected: int) -> None:
    assert {taken([size] * 12, amount, seed) for seed in range(5)} == {expected}


def test_where_all_groups_are_larger_than_wanted_the_smallest_is_taken() -> None:
    assert {taken([9, 6, 7], 1, seed) for seed in range(10)} == {6}


def test_a_group_is_left_even_if_everything_is_asked_for() -> None:
    assert {taken([2, 2, 2], 6, seed) for seed in range(10)} == {4}
