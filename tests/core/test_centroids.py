"""Factors about class centroids: what each way of sending them costs, and that all of them say the same."""

import pytest
import torch

from posterity.core.centroids import FORMS, LowRank, describe_classes, low_rank, pack, shrunken_precision, unpack
from posterity.core.gaussian import Gaussian
from posterity.core.monoid import Mean, Sum, acceptable, fold_stack, merge, message_bytes, zero_like
from posterity.core.tree import tree_bytes, tree_cast, tree_leaves, tree_map, tree_rows, tree_stack

DOUBLE = torch.float64
MIB = 2**20


def features(counts, d, seed=0):
    """Statistics of a client with so many samples of each class."""
    y = torch.cat([torch.full((n,), k) for k, n in enumerate(counts)])
    z = torch.randn(len(y), d, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE) + y[:, None]
    return describe_classes(z, y, torch.ones(len(y)), len(counts))


def sent(counts, d, form, dtype=torch.float32, seed=0):
    found = features(counts, d, seed)
    if form == "low_rank":
        return tree_cast(LowRank.of(found, 1.0), dtype)
    full = LowRank.of(found, 1.0).expanded().value["factor"]
    return tree_cast(pack(full, found.count, form), dtype)


def up(part):
    """Bytes of one client's part, as the engine counts them."""
    return message_bytes({"classes": tree_stack([part])})


def test_bytes_of_the_specification():
    """Z = 24, d = 512: 11,799 numbers for V and s instead of 262,144. The rest: d for the mean, one count."""
    assert up(sent((24,), 512, "low_rank")) == 4 * (11_799 + 512 + 1)
    assert up(sent((24,), 512, "dense")) == 4 * (262_144 + 512 + 1)
    assert up(sent((24,), 512, "symmetric")) == 4 * (512 * 513 // 2 + 512 + 1)
    silent = Gaussian(torch.zeros(10, 512, 512), torch.zeros(10, 512))
    rest = 4 * (10 * 512 + 10)
    assert up(pack(silent, torch.zeros(10))) - rest == 10 * MIB
    assert round((up(pack(silent, torch.zeros(10), "symmetric")) - rest) / MIB, 1) == 5.0


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_bytes_of_low_rank_follow_the_class_counts(dtype):
    """No sample: the count alone. One: the mean too. Z: min(d, Z − 1) directions; more than d samples add nothing."""
    d, size = 6, dtype.itemsize
    expected = {0: 1, 1: 1 + d, 2: 1 + d + (d + 1), 5: 1 + d + 4 * (d + 1), 7: 1 + d + d * (d + 1)}
    expected[30] = expected[7]
    for count, numbers in expected.items():
        assert up(sent((count, 1), d, "low_rank", dtype)) == size * (numbers + 1 + d), count
    both = [sent((30, 2), d, "low_rank", dtype), sent((0, 5), d, "low_rank", dtype)]
    assert message_bytes({"classes": tree_stack(both)}) == sum(up(b) for b in both)


def test_small_classes_are_cheapest_by_their_directions():
    """r (d + 1) against d (d + 1)/2 against d²: directions win while Z − 1 < d/2, and lose to the triangle beyond."""
    small = [up(sent((9, 3, 0, 1), 16, form)) for form in ("low_rank", "symmetric", "dense")]
    assert small == sorted(small)
    assert len(set(small)) == 3
    half = [up(sent((10, 10), 16, form)) for form in ("symmetric", "low_rank", "dense")]
    full = [up(sent((40, 40), 16, form)) for form in ("symmetric", "dense", "low_rank")]
    assert half == sorted(half)
    assert full == sorted(full)


def test_other_kinds_cost_what_their_leaves_hold():
    stack = {"a": Sum(torch.zeros(3, 5)), "b": Mean(torch.ones(3), {"w": torch.zeros(3, 2, 2, dtype=DOUBLE)})}
    assert message_bytes(stack) == tree_bytes(stack) == 3 * (5 * 4 + 4 + 4 * 8)


def test_numbers_that_are_not_finite_are_counted_and_refused():
    part = sent((4, 2), 3, "low_rank")
    ill = tree_map(lambda leaf: torch.full_like(leaf, torch.nan), part)
    stack = {"classes": tree_stack([part, ill])}
    assert message_bytes(stack) == up(part) + 2 * 4  # two counts that say nothing
    assert acceptable(stack).tolist() == [True, False]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_keeps_the_laws_of_sums(form):
    """Order, association, the zero, and stacks cut anywhere; totals are float64 whatever was sent."""
    parts = [sent((4, 0, 9), 5, form, seed=1), sent((1, 2, 30), 5, form, seed=2), sent((0, 3, 3), 5, form, seed=3)]
    whole = fold_stack({"it": tree_stack(parts)})
    singles = [fold_stack({"it": tree_stack([p])}) for p in parts]
    nothing = zero_like(whole)
    totals = [
        merge(merge(singles[0], singles[1]), singles[2]),
        merge(singles[2], merge(singles[1], singles[0])),
        merge(fold_stack({"it": tree_stack(parts[1:])}), singles[0]),
        merge(nothing, merge(whole, nothing)),
    ]
    assert all(leaf.dtype == DOUBLE for leaf in tree_leaves(whole))
    for total in totals:
        for left, right in zip(tree_leaves(total), tree_leaves(whole), strict=True):
            assert torch.allclose(left, right, rtol=1e-12, atol=1e-12)


def test_a_triangle_brings_the_matrix_back():
    found = features((7, 2), 4)
    factor = Gaussian.of(found.mean, shrunken_precision(found, 10.0))
    again, count = unpack(pack(factor, found.count, "symmetric"))
    assert torch.equal(again.precision, again.precision.mT)
    assert torch.allclose(again.precision, factor.precision, rtol=1e-14)
    assert torch.equal(again.shift, factor.shift)
    assert torch.equal(count, found.count)
    plain = Gaussian.of(found.mean, found.count)  # no matrix: nothing to halve
    assert unpack(pack(plain, found.count, "symmetric"))[0].form == "isotropic"


def test_a_class_has_one_direction_less_than_samples():
    """Features near 1e12 leave a mean that is rounded by 1e-4: the centred rows do not quite add up to 0."""
    z = 1e12 + torch.randn(3, 6, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    found = describe_classes(z, torch.zeros(3, dtype=torch.int64), torch.ones(3), 1)
    spread = torch.linalg.svdvals(found.away)
    assert float(spread[2] / spread[0]) > 1e-5  # the cut of small singular values alone would let it pass
    assert int((low_rank(found)[1] > 0).sum()) == 2


def test_directions_do_not_depend_on_what_stands_between():
    """Other classes and padding only add rows of zeros; V has signs of its own and no rows that mean nothing."""
    alone = features((6,), 4)
    among = describe_classes(*(torch.cat(pair) for pair in (
        (alone.away + alone.mean[0], torch.full((9, 4), 1e6, dtype=DOUBLE)),
        (torch.zeros(6, dtype=torch.int64), torch.tensor([0, 1, 2] * 3)),
        (torch.ones(6), torch.zeros(9)),
    )), classes=3)  # fmt: skip
    (basis, weight), (other, heavy) = low_rank(alone), low_rank(among)
    assert torch.allclose(other[0], basis[0], atol=1e-12)
    assert torch.allclose(heavy[0], weight[0], rtol=1e-10)
    assert not other[1:].any()
    top = basis[0].gather(-1, basis[0].abs().argmax(-1, keepdim=True))
    assert bool((top > 0).all())
    padded = tree_rows(LowRank.of(features((3,), 4), 1.0).basis, 0)
    assert padded.shape == (4, 4)
    assert not padded[2:].any()
