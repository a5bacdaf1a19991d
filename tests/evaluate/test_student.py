"""Student's t: tails, quantiles and power against scipy, from one degree of freedom to a million."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from posterity.evaluate import student

DF = (1, 1.37, 2, 2.7, 3, 4, 9, 29.5, 59, 61, 999, 12_345.6, 1e6)
LEVELS = (0.9, 0.5, 0.3, 0.1, 0.05, 0.01, 1e-4, 1e-8, 1e-12)


@pytest.mark.parametrize("df", DF)
def test_tail_quantile_and_density_equal_scipy(df: float) -> None:
    for level in LEVELS:
        t = stats.t.isf(level / 2, df)
        assert student.two_sided(t, df) == pytest.approx(2 * stats.t.sf(t, df), rel=1e-10)
        assert student.two_sided(-t, df) == student.two_sided(t, df)
        assert student.density(t, df) == pytest.approx(stats.t.pdf(t, df), rel=1e-9)
        assert 2 * stats.t.sf(student.quantile(level, df), df) == pytest.approx(level, rel=1e-10)


@pytest.mark.parametrize(
    ("level", "df", "printed"),  # from printed tables
    [(0.05, 2, 4.303), (0.05, 9, 2.262), (0.01, 4, 4.604), (0.1, 1, 6.314), (0.05, 29, 2.045), (0.02, 9, 2.821),
     (0.05, 120, 1.980)],
)  # fmt: skip
def test_quantiles_of_a_printed_table(level: float, df: float, printed: float) -> None:
    assert round(student.quantile(level, df), 3) == printed


@pytest.mark.parametrize(
    ("t", "df", "exact"),
    [(0.0, 3, 1.0), (1.0, 1, 0.5), (math.sqrt(2), 2, 1 - 1 / math.sqrt(2)), (math.inf, 5, 0.0), (1e200, 1, 0.0)],
)
def test_values_in_closed_form(t: float, df: float, exact: float) -> None:
    assert student.two_sided(t, df) == pytest.approx(exact, abs=1e-15)


def test_what_is_undefined_stays_so() -> None:
    assert math.isnan(student.two_sided(math.nan, 3))


def power_by_scipy(shift: float, df: float, level: float) -> float:
    """scipy gives nan for the far tail of a noncentral t where it is below 1e-9."""
    cut = stats.t.isf(level / 2, df)
    return float(stats.nct.sf(cut, df, shift) + np.nan_to_num(stats.nct.cdf(-cut, df, shift)))


@pytest.mark.parametrize("df", [1, 2, 5, 9, 29, 199, 999])
@pytest.mark.parametrize("level", [0.05, 0.05 / 15])
@pytest.mark.parametrize("shift", [0.0, 0.5, 3.65, 10.0])
def test_power_is_the_noncentral_tail(df: float, level: float, shift: float) -> None:
    assert student.power(shift, df, level) == pytest.approx(power_by_scipy(shift, df, level), abs=1e-6)


@pytest.mark.parametrize(("df", "level", "wanted"), [(9, 0.05, 0.8), (2, 0.05 / 3, 0.8), (4, 0.01, 0.9)])
def test_shift_gives_the_power_wanted(df: float, level: float, wanted: float) -> None:
    shift = student.shift_for(df, level, wanted)
    assert power_by_scipy(shift, df, level) == pytest.approx(wanted, abs=1e-5)
