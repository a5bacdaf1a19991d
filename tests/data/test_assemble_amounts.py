"""Amounts as users type them."""

import pytest

from posterity.data.assemble import read_amount, read_share, read_split


@pytest.mark.parametrize(
    ("value", "total", "amount"),
    [("25%", 10, 2), ("35%", 10, 4), ("99%", 10, 10), ("15%", 20, 3), ("0.35", 10, 4), (0.36, 10, 4), (7, 10, 7),
     ("7", 10, 7), ("100%", 9, 9), (0, 9, 0)],
)  # fmt: skip
def test_shares_are_rounded_to_the_nearest(value: str | float, total: int, amount: int) -> None:
    assert read_amount(value, total, "subset") == amount


def test_shares_and_splits() -> None:
    assert read_share("20%", "public") == read_share(0.2, "public") == 0.2
    assert [read_split(text) for text in ("80/20", "100/0", "70/30")] == [0.2, 0.0, 0.3]
