"""Paired intervals against scipy and plain numpy, Holm by hand, seeds by brute force, levels by simulation."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from kinds import everything
from scipy import stats

from posterity.evaluate.paired import (
    ClientValues,
    Paired,
    Sample,
    Samples,
    compare_all,
    compare_pair,
    detectable,
    holm,
    seeds_needed,
)


def plain(*values: float) -> Samples:
    return {s: Sample(v) for s, v in enumerate(values)}


def method(table: np.ndarray, sizes: np.ndarray, same: bool) -> Samples:
    """Of a table (seeds, clients) and its sizes."""
    return {
        s: Sample(float(np.average(row, weights=sizes[s])), ClientValues(row, sizes[s], s, "all" if same else s))
        for s, row in enumerate(table)
    }


def two(seed: int, seeds: int, clients: int, same: bool, sd: float = 0.05) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two methods' tables, and sizes."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(3, 40, (1 if same else seeds, clients)).astype(float)
    sizes = np.broadcast_to(sizes, (seeds, clients))
    common = rng.normal(0.8, 0.1, (seeds, clients))
    return common + rng.normal(0.02, sd, (seeds, clients)), common + rng.normal(0, sd, (1, clients)), sizes


def test_without_clients_it_is_the_paired_t_test() -> None:
    for seed, seeds in enumerate((2, 3, 4, 5, 7, 10, 30)):
        rng = np.random.default_rng(seed)
        a, b = rng.normal(0.9, 0.02, seeds), rng.normal(0.88, 0.02, seeds)
        pair = compare_pair(plain(*a), plain(*b))
        other = stats.ttest_rel(a, b)
        assert pair.design == "seeds"
        assert pair.p == pytest.approx(other.pvalue, rel=1e-10)
        assert pair.interval == pytest.approx(tuple(other.confidence_interval(0.95)), rel=1e-10)
        assert compare_pair(plain(*b), plain(*a)).difference == pytest.approx(-pair.difference)


@pytest.mark.parametrize("seed", range(8))
def test_nested_by_numpy_and_scipy(seed: int) -> None:
    """The larger of the two variances; among the eight draws each is the larger one at least once (checked below)."""
    seeds = 3 + seed
    a, b, sizes = two(seed, seeds, 12, False)
    pair = compare_pair(method(a, sizes, False), method(b, sizes, False))
    expected, _ = nested_by_hand(a - b, sizes)
    assert pair.design == "nested"
    assert pair.interval == pytest.approx(expected, rel=1e-10)
    error = (expected[1] - expected[0]) / 2 / stats.t.isf(0.025, seeds - 1)
    assert pair.p == pytest.approx(2 * stats.t.sf(abs(pair.difference) / error, seeds - 1), rel=1e-8)


def nested_by_hand(d: np.ndarray, sizes: np.ndarray) -> tuple[tuple[float, float], bool]:
    each = [float(np.average(row, weights=n)) for row, n in zip(d, sizes, strict=True)]
    inside = []
    for row, n, mean in zip(d, sizes, each, strict=True):
        w = n / n.sum()
        inside.append(sum(w[k] ** 2 * (row[k] - mean) ** 2 / (1 - w[k]) for k in range(len(row))))
    between, within = float(np.var(each, ddof=1)), float(np.mean(inside))
    error = math.sqrt(max(between, within) / len(each))
    return stats.t.interval(0.95, len(each) - 1, np.mean(each), error), between > within


def test_both_variances_were_met() -> None:
    larger = {nested_by_hand(a - b, sizes)[1] for a, b, sizes in (two(s, 3 + s, 12, False) for s in range(8))}
    assert larger == {True, False}


@pytest.mark.parametrize("seed", range(7))
def test_crossed_by_numpy_and_scipy(seed: int) -> None:
    seeds, clients = 3 + seed % 4, 4 + 3 * seed
    a, b, sizes = two(seed, seeds, clients, True, 0.03)
    pair = compare_pair(method(a, sizes, True), method(b, sizes, True))
    d, w = a - b, sizes[0] / sizes[0].sum()

    def spread(x: np.ndarray) -> float:
        return float(np.sum(w**2 * (x - np.sum(w * x)) ** 2 / (1 - w)))

    by_seed = np.array([np.sum(w * row) for row in d])
    first, second = np.var(by_seed, ddof=1) / seeds, spread(d.mean(0))
    rest = np.array(
        [[d[s, k] - d[:, k].mean() - by_seed[s] + by_seed.mean() for k in range(clients)] for s in range(seeds)]
    )
    both = sum(spread(row) for row in rest) / (seeds * (seeds - 1))
    total = max(first, second, first + second - both)
    f1, f2 = seeds - 1, 1 / np.sum(w**2) - 1
    df = max(total**2 / (first**2 / f1 + second**2 / f2 + both**2 / f1 / f2), min(f1, f2))
    assert pair.design == "crossed"
    assert pair.df == pytest.approx(df, rel=1e-9)
    assert pair.interval == pytest.approx(stats.t.interval(0.95, df, by_seed.mean(), math.sqrt(total)), rel=1e-9)


def test_client_variance_is_unbiased_when_only_rows_vary() -> None:
    """Two kinds of clients, 5 and 45 rows: the mean of (1) over many draws is the variance of the pooled mean."""
    rng = np.random.default_rng(0)
    sizes, seeds = np.array([5.0, 45.0, 5.0, 20.0]), 4000
    a = rng.standard_normal((seeds, 4)) / np.sqrt(sizes)
    pooled = a @ sizes / sizes.sum()
    assert np.var(pooled) == pytest.approx(1 / 75, rel=0.07)
    level = a - pooled[:, None]  # so that nothing is left between seeds, and only the clients speak
    pair = compare_pair(
        method(level, np.tile(sizes, (seeds, 1)), False), method(0 * a, np.tile(sizes, (seeds, 1)), False)
    )
    assert pair.per_seed == pytest.approx(1 / 75, rel=0.05)


def test_seeds_that_agree_by_grain_are_not_proof() -> None:
    """Every seed has one row more: no spread over seeds. The clients say that a row is nothing."""
    table = np.zeros((3, 6))
    table[:, 0] = 1.0
    sizes = np.ones((3, 6))
    pair = compare_pair(method(table, sizes, False), method(0 * table, sizes, False))
    assert np.ptp(pair.each) == 0
    assert pair.p is not None
    assert pair.p > 0.1
    alone = compare_pair(plain(0.7, 0.7, 0.7), plain(0.6, 0.6, 0.6))
    assert (alone.p, alone.interval, alone.needed, alone.separated) == (None, None, None, False)
    assert compare_pair(plain(0.7 + 1e-16, 0.7, 0.7), plain(0.6, 0.6, 0.6)).p is None, "rounding is no spread"


def test_seven_digits_are_no_spread() -> None:
    """A row of seven more with each seed; a packed file has 0.1428572 of the one and 0.1428571 of the other."""
    whole = [plain(*values) for values in ((4 / 7, 5 / 7), (3 / 7, 4 / 7))]
    packed = [plain(*(float(f"{x.value:.7g}") for x in each.values())) for each in whole]
    assert packed[0] != whole[0]
    assert [compare_pair(*each).p for each in (whole, packed)] == [None, None]


def test_sums_in_another_order_do_not_tell_methods_apart() -> None:
    """The same method twice, but for the last digits; a spread of a hundred thousandth is one."""
    ours, theirs = plain(0.7, 0.8, 0.75), plain(0.7 + 1.0e-13, 0.8 + 1.1e-13, 0.75 + 0.9e-13)
    pair = compare_pair(ours, theirs)
    assert (pair.p, pair.needed) == (1.0, None)
    other = plain(0.7 + 3e-5, 0.8 + 5e-5, 0.75 + 4e-5)
    assert compare_pair(ours, other).p == pytest.approx(
        stats.ttest_rel([0.7, 0.8, 0.75], [x.value for x in other.values()]).pvalue
    )


def test_identical_methods() -> None:
    a, _, sizes = two(0, 4, 5, False)
    for pair in (
        compare_pair(plain(0.5, 0.6), plain(0.5, 0.6)),
        compare_pair(method(a, sizes, False), method(a, sizes, False)),
        compare_pair(method(a, sizes[:1].repeat(4, 0), True), method(a, sizes[:1].repeat(4, 0), True)),
    ):
        assert (pair.p, pair.difference, pair.interval, pair.needed) == (1.0, 0.0, (0.0, 0.0), None)


def test_which_design_is_used() -> None:
    a, b, sizes = two(1, 3, 5, True)
    mine, theirs = method(a, sizes, True), method(b, sizes, True)
    assert compare_pair(mine, theirs).design == "crossed"
    other = {s: Sample(x.value, ClientValues(b[s], sizes[s], "other rows", "all")) for s, x in theirs.items()}
    assert compare_pair(mine, other).design == "seeds", "not the same rows for both methods"
    partly = {**theirs, 1: Sample(theirs[1].value)}
    assert compare_pair(mine, partly).design == "seeds", "one seed without a list of clients"
    grown = {s: Sample(x.value, ClientValues(x.clients.values, sizes[s] + s, s, "all")) for s, x in mine.items()}  # type: ignore[union-attr]
    same = {s: Sample(x.value, ClientValues(x.clients.values, sizes[s] + s, s, "all")) for s, x in theirs.items()}  # type: ignore[union-attr]
    assert compare_pair(grown, same).design == "nested", "other sizes with every seed"
    broken = a.copy()
    broken[1, 2] = np.nan
    assert compare_pair(method(broken, sizes, True), theirs).seeds == 2, "a seed without a number is not shared"


def test_a_client_without_rows_has_no_say() -> None:
    a, b, sizes = two(2, 4, 6, False)
    bare = compare_pair(method(a, sizes, False), method(b, sizes, False))
    wider = [np.hstack([x, np.full((4, 1), np.nan)]) for x in (a, b)]
    more = np.hstack([sizes, np.zeros((4, 1))])
    ours, theirs = (
        {s: Sample(float(np.average(x[s], weights=sizes[s])), ClientValues(w[s], more[s], s, s)) for s in range(4)}
        for x, w in zip((a, b), wider, strict=True)
    )
    assert compare_pair(ours, theirs).interval == pytest.approx(bare.interval)


@pytest.mark.parametrize("same", [True, False])
def test_a_sample_of_the_clients_is_not_paired_with_all_of_them(same: bool) -> None:
    """The round that validation chose has a sample, another method's last round has everybody: either way round."""
    a, b, sizes = two(3, 4, 20, True)
    some = np.arange(20) % 3 == 0
    few = np.where(some, sizes, 0.0)
    part = {
        s: Sample(float(np.average(row[some], weights=few[s][some])), ClientValues(np.where(some, row, np.nan), few[s],
                                                                                   s, "all" if same else s))
        for s, row in enumerate(a)
    }  # fmt: skip
    whole = method(b, sizes, same)
    for pair in (compare_pair(part, whole), compare_pair(whole, part)):
        assert pair.design == "seeds"
        each = [abs(part[s].value - whole[s].value) for s in range(4)]
        assert np.abs(pair.each) == pytest.approx(each)
    assert compare_pair(part, part).design == ("crossed" if same else "nested"), "the same sample is paired"


def test_few_or_no_shared_seeds() -> None:
    one = compare_pair({0: Sample(0.9), 1: Sample(0.8)}, {1: Sample(0.7), 2: Sample(0.7)})
    assert (one.seeds, one.p, one.interval) == (1, None, None)
    assert one.difference == pytest.approx(0.1)
    none = compare_pair({0: Sample(0.9)}, {1: Sample(0.7)})
    assert (none.seeds, none.p) == (0, None)
    assert math.isnan(none.difference)
    odd = compare_pair(plain(math.inf, 1.0, 1.2), plain(0.5, 0.4, math.nan))
    assert odd.each == pytest.approx((0.6,))


@pytest.mark.parametrize(
    ("ps", "adjusted"),
    [
        ([0.01, 0.04, 0.03], [0.03, 0.06, 0.06]),
        ([0.5], [0.5]),
        ([0.04, 0.04], [0.08, 0.08]),
        ([0.9, 0.001, 0.9, 0.02], [1.0, 0.004, 1.0, 0.06]),
        ([0.0, 1.0], [0.0, 1.0]),
        ([0.012, None, 0.02], [0.024, None, 0.024]),
        ([], []),
    ],
)
def test_holm_by_hand(ps: list[float | None], adjusted: list[float | None]) -> None:
    assert [p for p, _ in holm(ps)] == pytest.approx(adjusted)


def test_all_pairs_carry_holm_and_their_level() -> None:
    rng = np.random.default_rng(5)
    methods = [plain(*rng.normal(0.8 + 0.03 * m, 0.01, 6)) for m in range(4)]
    pairs = compare_all(methods)
    assert list(pairs) == list(combinations(range(4), 2))
    raw = sorted((pair.p, key) for key, pair in pairs.items())
    reached = 0.0
    for rank, (p, key) in enumerate(raw):
        reached = max(reached, min(1.0, (6 - rank) * p))
        assert pairs[key].holm == pytest.approx(reached)
        assert pairs[key].separated == (reached < 0.05)
        assert pairs[key].level == pytest.approx(0.05 / (6 - rank))


def power_by_scipy(shift: float, df: float, level: float) -> float:
    """scipy gives nan for the far tail of a noncentral t where it is below 1e-9."""
    cut = stats.t.isf(level / 2, df)
    return float(stats.nct.sf(cut, df, shift) + np.nan_to_num(stats.nct.cdf(-cut, df, shift)))


@pytest.mark.parametrize(
    ("gap", "sd", "level"),
    [(1.0, 1.0, 0.05), (-2.0, 1.0, 0.05), (0.5, 1.0, 0.05), (1.0, 0.2, 0.05), (0.3, 1.0, 0.05 / 15), (5.0, 1.0, 0.01),
     (0.11, 1.0, 0.05)],
)  # fmt: skip
def test_seeds_needed_by_brute_force(gap: float, sd: float, level: float) -> None:
    expected = next(s for s in range(2, 1001) if power_by_scipy(abs(gap) / sd * math.sqrt(s), s - 1, level) >= 0.8)
    assert seeds_needed(gap, sd**2, level=level) == expected


def test_seeds_cannot_show_everything() -> None:
    assert seeds_needed(0.0, 1.0) is None
    assert seeds_needed(0.05, 1.0) is None, "more than a thousand"
    assert seeds_needed(1.0, 1.0, lasting=1.0, clients_df=9) is None, "other clients differ more than that"
    few, more = seeds_needed(1.0, 1.0), seeds_needed(1.0, 1.0, lasting=0.05, clients_df=19)
    assert few is not None
    assert more is not None
    assert few < more


def test_detectable_gap_has_a_power_of_eighty_per_cent() -> None:
    pairs = [Paired((0.0,) * 3, 0.0, "seeds", error=e, df=2, p=1.0) for e in (1.0, 2.0, 7.0)]
    gap = detectable(pairs)
    assert gap is not None
    assert power_by_scipy(gap / 2, 2, 0.05 / 3) == pytest.approx(0.8, abs=1e-5)
    assert detectable([]) is None


@pytest.mark.parametrize("seeds", [3, *everything(5, 10)])
@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize(
    ("seed_sd", "client_sd", "rest_sd"), [(1, 0, 0.01), (0, 1, 0.01), (0, 0, 1), (0.3, 1, 1), (0.3, 0, 1)]
)
def test_level_holds(seeds: int, same: bool, seed_sd: float, client_sd: float, rest_sd: float) -> None:
    """No difference, twelve unequal clients: named a winner in at most 6.5 % (400 draws: 5 % + two standard errors)."""
    rng = np.random.default_rng([seeds, same, round(10 * seed_sd), round(10 * client_sd)])
    found = 0
    for _ in range(400):
        sizes = np.broadcast_to(rng.lognormal(3, 0.8, (1 if same else seeds, 12)), (seeds, 12))
        clients = rng.normal(0, client_sd, (1 if same else seeds, 12))
        d = rng.normal(0, seed_sd, (seeds, 1)) + clients + rng.normal(0, rest_sd, (seeds, 12))
        pair = compare_pair(method(d, sizes, same), method(0 * d, sizes, same))
        found += pair.p is not None and pair.p < 0.05
    assert found / 400 <= 0.072


def test_separated_after_the_correction_not_before() -> None:
    """Three methods: one pair has p = 0.024 by itself, which is 0.07 over three pairs."""
    found = compare_all([plain(1.0, 2.0, 3.0, 4.2), plain(0.5, 1.0, 2.4, 2.6), plain(2.5, 1.2, 4.1, 3.0)])
    pair = found[0, 1]
    assert pair.p == pytest.approx(stats.ttest_rel([1.0, 2.0, 3.0, 4.2], [0.5, 1.0, 2.4, 2.6]).pvalue, rel=1e-9)
    assert pair.p < 0.05 < pair.holm
    assert not pair.separated
    assert compare_all([plain(1.0, 2.0, 3.0, 4.2), plain(0.5, 1.0, 2.4, 2.6)])[0, 1].separated
