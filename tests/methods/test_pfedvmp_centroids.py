"""Factors about class centroids: what each way of sending them costs, and that all of them say the same."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posterity.core.gaussian import Gaussian
from posterity.core.messages import Mean, Sum, fold_stack, merge, wire_bytes, zero_like
from posterity.core.tree import tree_bytes, tree_finite, tree_leaves, tree_map, tree_stack
from posterity.methods.pfedvmp.class_statistics import describe_classes
from posterity.methods.pfedvmp.factors import (
    FORMS,
    joint_mean,
    nearest_centroid,
    on_the_wire,
    pack,
    read_centroids,
    unpack,
)
from posterity.methods.pfedvmp.precision import low_rank, pseudo_inverses

DOUBLE = torch.float64
MIB = 2**20


def features(counts, d, seed=0):
    """Statistics of a client with so many samples of each class."""
    y = torch.cat([torch.full((n,), k) for k, n in enumerate(counts)])
    z = torch.randn(len(y), d, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE) + y[:, None]
    return describe_classes(z, y, torch.ones(len(y)), len(counts))


def factors(found):
    """Those of (11): matrices, a unit for each class that is there, and counts."""
    own, plain = Gaussian.of(found.mean, pseudo_inverses(found)), Gaussian.of(found.mean, (found.count > 0).double())
    return own, plain, found.count


def message(found, form, dtype=DOUBLE):
    """The factors of (11) as they are sent by clients of a precision."""
    return on_the_wire(pack(*factors(found), form), dtype)


def sent(counts, d, form, dtype=torch.float32, seed=0):
    return message(features(counts, d, seed), form, dtype)


def up(part):
    """Bytes of one client's part, as the engine counts them."""
    return wire_bytes({"classes": tree_stack([part])})


def test_bytes_of_the_specification():
    """Matrices and their shifts are float64 for float32 clients too; d + 1 numbers besides belong to the ridge."""
    assert up(sent((24,), 512, "dense")) == 8 * (262_144 + 512) + 4 * (512 + 2)
    assert up(sent((24,), 512, "symmetric")) == 8 * (512 * 513 // 2 + 512) + 4 * (512 + 2)


def test_other_kinds_cost_what_their_leaves_hold():
    stack = {"a": Sum(torch.zeros(3, 5)), "b": Mean(torch.ones(3), {"w": torch.zeros(3, 2, 2, dtype=DOUBLE)})}
    assert wire_bytes(stack) == tree_bytes(stack) == 3 * (5 * 4 + 4 + 4 * 8)


def test_numbers_that_are_not_finite_are_counted_and_refused():
    part = sent((4, 2), 3, "symmetric")
    ill = tree_map(lambda leaf: torch.full_like(leaf, torch.nan), part)
    stack = {"classes": tree_stack([part, ill])}
    assert wire_bytes(stack) == 2 * up(part)
    assert tree_finite(stack).tolist() == [True, False]


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
    own, plain, count = factors(features((7, 2), 4))
    again, same, number = unpack(pack(own, plain, count, "symmetric"))
    assert torch.equal(again.precision, again.precision.mT)
    assert torch.allclose(again.precision, own.precision, rtol=1e-14)
    assert all(torch.equal(*pair) for pair in ((again.shift, own.shift), (number, count), (same.shift, plain.shift)))
    number = Gaussian.of(own.shift, count)  # no matrix: nothing to halve
    assert unpack(pack(number, plain, count, "symmetric"))[0].form == "isotropic"
    assert unpack(pack(None, plain, count, "symmetric"))[0] is None


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


# --- the read-out -----------------------------------------------------------------------------------------------------


def test_the_mean_of_matrices_and_numbers_is_the_plain_solution():
    """Seven products of well-conditioned factors against a plain solve; absent factors are no trouble."""
    generator = torch.Generator().manual_seed(4)
    roots = torch.randn(7, 5, 5, generator=generator, dtype=DOUBLE)
    shift, lean = torch.randn(2, 7, 5, generator=generator, dtype=DOUBLE)
    number = torch.rand(7, generator=generator, dtype=DOUBLE)
    found = joint_mean(Gaussian(roots @ roots.mT, shift), Gaussian(number, lean))
    full = roots @ roots.mT + number[:, None, None] * torch.eye(5, dtype=DOUBLE)
    assert torch.allclose(found, torch.linalg.solve(full, shift + lean), rtol=1e-9)


@pytest.mark.parametrize("size", [1e10, 1e14, 1e18, 1e24, 1e30])
def test_the_mean_of_a_steep_and_a_flat_factor(size):
    """Λ = s vvᵀ + αI: along v the steep factor's mean, elsewhere the mean of the flat ones, however large s is."""
    v = torch.tensor([3.0, -2.0, 6.0], dtype=DOUBLE) / 7
    steep, flat = torch.tensor([5.0, 1.0, -2.0], dtype=DOUBLE), torch.tensor([-1.0, 4.0, 0.5], dtype=DOUBLE)
    matrix = size * torch.outer(v, v)
    found = joint_mean(Gaussian.of(steep[None], matrix[None]), Gaussian.of(flat[None], torch.ones(1, dtype=DOUBLE)))[0]
    expected = flat + (v @ (steep - flat)) * v
    assert float((found - expected).abs().max()) < max(1e-6, 20 / size)


def test_a_mean_that_nothing_decides_is_zero_and_nothing_raises():
    v = torch.tensor([0.6, 0.8], dtype=DOUBLE)
    none = Gaussian(torch.zeros(3, dtype=DOUBLE), torch.zeros(3, 2, dtype=DOUBLE))
    matrix = torch.stack([torch.outer(v, v), -torch.eye(2, dtype=DOUBLE), torch.full((2, 2), torch.inf, dtype=DOUBLE)])
    found = joint_mean(Gaussian(matrix, v.expand(3, 2)), none)
    assert torch.allclose(found[0], v)  # along v: v·v / 1; across: nothing
    assert not found[1].any()  # no precision is negative
    assert bool(found[2].isnan().all())
    total = pack(Gaussian(matrix, v.expand(3, 2)), none, torch.ones(3, dtype=DOUBLE))
    centre = torch.full((3, 2), 7.0, dtype=DOUBLE)
    assert torch.equal(read_centroids(total, 1.0, centre, False)[1:], centre[1:])


def test_an_improper_factor_has_no_mean_and_no_covariance():
    bad = Gaussian(torch.tensor([[1.0, 2.0], [2.0, 1.0]]), torch.ones(2))
    assert bool(bad.mean().isnan().all())
    assert bool(bad.covariance().isnan().all())


# --- newcomers --------------------------------------------------------------------------------------------------------


def logits(centroids, known, z):
    """A newcomer's logits by the nearest-centroid head."""
    first = {"w": torch.zeros_like(centroids), "b": torch.zeros(len(centroids)).to(centroids)}
    head = nearest_centroid(first, centroids, known.to(centroids), torch.ones(()))
    return z @ head["w"].T + head["b"]


@given(st.integers(0, 10_000), st.integers(1, 5), st.floats(-3, 4), st.floats(-3, 3), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_class_that_nobody_has_is_never_nearest(seed, some, far, wide, thin):
    """Features anywhere, centroids of any length. The logits of the others are ‖z‖² − ‖z − µ‖²."""
    generator = torch.Generator().manual_seed(seed)
    known = (torch.randperm(6, generator=generator) < some).double()
    centroids = 10**wide * torch.randn(6, 4, generator=generator, dtype=DOUBLE) * known[:, None]
    z = 10**far * torch.randn(20, 4, generator=generator, dtype=DOUBLE)
    if thin:
        centroids, z = centroids.float(), z.float()
    found = logits(centroids, known, z)
    assert bool(known[found.argmax(-1)].all())
    best = found.masked_fill(known == 0, -torch.inf).amax(-1, keepdim=True)
    assert bool((found.masked_fill(known > 0, -torch.inf) < best).all())
    if not thin:
        expected = (z**2).sum(-1, keepdim=True) - torch.cdist(z, centroids) ** 2
        assert torch.allclose(
            found[:, known > 0], expected[:, known > 0], rtol=1e-6, atol=1e-6 * 10 ** (2 * max(far, wide))
        )


def test_unknown_classes_by_hand():
    """µ = (3, 0) and (0, 1): w = (6, 0), (0, 2), b = −9, −1; the unknown one has w = (3, 1), b = −5 − 9 − 1."""
    centroids = torch.tensor([[3.0, 0.0], [0.0, 0.0], [0.0, 1.0]])
    found = logits(centroids, torch.tensor([1, 0, 1]), torch.tensor([[0.0, 0.0], [-10.0, -20.0], [2.0, 5.0]]))
    assert found.tolist() == [[-9, -15, -1], [-69, -65, -41], [3, -4, 9]]


def test_nobody_knows_a_class_or_the_newcomer_is_none():
    first = {"w": torch.randn(2, 3), "b": torch.randn(2)}
    for known, new in ((torch.zeros(2), torch.ones(())), (torch.ones(2), torch.zeros(()))):
        head = nearest_centroid(first, torch.randn(2, 3), known, new)
        assert all(torch.equal(head[n], first[n]) for n in first)
