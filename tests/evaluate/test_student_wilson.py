"""Wilson's interval against SciPy's, and at its edges."""

from __future__ import annotations

import pytest
from scipy.stats import binomtest

from posterity.evaluate.student import wilson


@pytest.mark.parametrize(("right", "trials"), [(5, 10), (0, 10), (10, 10), (1, 1), (0, 1), (997, 1000), (12, 40)])
@pytest.mark.parametrize("level", [0.05, 0.2])
def test_it_is_scipys(right: int, trials: int, level: float) -> None:
    theirs = binomtest(right, trials).proportion_ci(1 - level, method="wilson")
    assert wilson(right / trials, trials, level) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_without_trials_everything_is_possible() -> None:
    assert wilson(0.0, 0) == (0.0, 1.0)


def test_a_share_a_little_beyond_one_is_no_error() -> None:
    low, high = wilson(1.0000000001, 20)
    assert 0 < low < high == 1.0
