"""The accumulator contract: what clients send adds up the same in any order, in any tree, in float64."""

from decimal import MAX_EMAX, MIN_EMIN, Decimal, localcontext
from functools import reduce

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posterity.core.messages import (
    Bag,
    LogMean,
    Mean,
    Moments,
    Rows,
    Sum,
    fold_stack,
    merge,
    zero_like,
)
from posterity.core.tree import (
    tree_bytes,
    tree_cast,
    tree_finite,
    tree_leaves,
    tree_map,
    tree_named,
    tree_rows,
    tree_stack,
)

KINDS = ("sum", "mean", "mean per number", "log mean", "moments", "rows", "bag")
each_kind = pytest.mark.parametrize("kind", KINDS)
few = settings(derandomize=True, max_examples=12, deadline=None, database=None)
CLIENTS = 6


def message(kind, k, dtype=torch.float64, seed=0):
    """Client k's message of a kind: two leaves, of different sizes and scales."""
    g = torch.Generator().manual_seed(100 * seed + k)
    value = {
        "w": torch.randn(3, 2, generator=g, dtype=torch.float64).to(dtype),
        "b": 1e3 * torch.randn(2, generator=g, dtype=torch.float64).to(dtype),
    }
    weight = (1 + 40 * torch.rand((), generator=g, dtype=torch.float64)).to(dtype)
    made = {
        "sum": lambda: Sum(value),
        "mean": lambda: Mean(weight, value),
        "mean per number": lambda: Mean(tree_map(lambda v: v.abs() + 0.1, value), tree_map(torch.sin, value)),
        "log mean": lambda: LogMean(-weight * 10, value),
        "moments": lambda: Moments(weight, value, tree_map(torch.square, value)),
        "rows": lambda: Rows(torch.tensor(k), value),
        "bag": lambda: Bag(torch.tensor(k), value),
    }[kind]()
    return {"it": made}


def folded(parts):
    return fold_stack(tree_stack(parts))


def single(part):
    """One client's message as a total."""
    return folded([part])


def close(left, right, tolerance):
    """All leaves equal, relative to the largest number of the leaf."""
    a, b = dict(tree_named(left)), dict(tree_named(right))
    assert a.keys() == b.keys()
    for name, leaf in a.items():
        if torch.equal(leaf, b[name]):  # infinities too
            continue
        scale = float(leaf.abs().max()) if leaf.numel() else 0.0
        gap = float((leaf - b[name]).abs().max()) if leaf.numel() else 0.0
        assert gap <= tolerance * max(scale, 1e-300), (name, gap, scale)


def in_a_tree(parts, choices):
    """Merge neighbours chosen one after the other until one is left: any binary tree over any order."""
    parts = list(parts)
    for c in choices:
        if len(parts) == 1:
            break
        i = c % (len(parts) - 1)
        parts[i : i + 2] = [merge(parts[i], parts[i + 1])]
    return reduce(merge, parts)


@each_kind
@few
@given(st.permutations(range(CLIENTS)), st.lists(st.integers(0, 100), min_size=CLIENTS, max_size=CLIENTS))
def test_any_order_and_any_tree(kind, order, choices):
    parts = [message(kind, k) for k in range(CLIENTS)]
    whole = folded(parts)
    close(folded([parts[i] for i in order]), whole, 1e-12)
    close(in_a_tree([single(parts[i]) for i in order], choices), whole, 1e-12)


@each_kind
def test_any_tree_in_float32(kind):
    """Messages arrive in float32; totals are float64, so trees agree far better than the 1e-6 asked for."""
    parts = [message(kind, k, torch.float32) for k in range(CLIENTS)]
    whole = folded(parts)
    close(in_a_tree([single(p) for p in reversed(parts)], [3, 1, 0, 2, 0]), whole, 1e-6)
    assert all(leaf.dtype in (torch.float64, torch.int64) for leaf in tree_leaves(whole))


@each_kind
def test_streaming_in_float32_without_the_fold(kind):
    """Even added up in float32, by `+` alone, any order agrees to 1e-6 or so."""
    parts = [tree_cast(single(message(kind, k)), torch.float32) for k in range(CLIENTS)]
    close(reduce(merge, parts), reduce(merge, parts[::-1]), 2e-6)


@each_kind
def test_identity(kind):
    total = folded([message(kind, k) for k in range(3)])
    nothing = zero_like(total)
    close(merge(total, nothing), total, 0.0)
    close(merge(nothing, total), total, 0.0)
    close(merge(nothing, nothing), nothing, 0.0)


@each_kind
def test_a_stack_cut_in_two(kind):
    parts = [message(kind, k) for k in range(CLIENTS)]
    close(merge(folded(parts[:2]), folded(parts[2:])), folded(parts), 1e-12)


@pytest.mark.parametrize("kind", ["mean", "mean per number", "log mean", "moments"])
def test_a_client_in_two_halves(kind):
    """Two copies with half the weight each are one client."""

    def half(part):
        if kind == "log mean":
            return LogMean(part.log_weight - torch.log(torch.tensor(2.0, dtype=torch.float64)), part.value)
        if kind == "moments":
            return Moments(part.weight / 2, part.mean, tree_map(lambda s: s / 2, part.square))
        return Mean(tree_map(lambda w: w / 2, part.weight), part.value)

    first, second = message(kind, 0), message(kind, 1)
    split = {"it": half(second["it"])}
    left, right = folded([first, split, split]), folded([first, second])
    if kind == "log mean":  # `effective` counts copies, and must: compare the mean
        left, right = ({"it": t["it"].value, "w": t["it"].log_weight} for t in (left, right))
    close(left, right, 1e-12)


def test_totals_are_kept_in_float64():
    """2^24 + 1 is not a float32: 20 million ones added to a float32 sum would stop at 2^24."""
    stack = {"it": Sum(torch.cat([torch.full((1,), 2.0**24), torch.ones(3)]))}
    assert float(fold_stack(stack)["it"].value) == 2.0**24 + 3
    mean = fold_stack({"it": Mean(torch.tensor([2.0**24, 1.0]), {"t": torch.tensor([[0.0], [2.0**24 + 2]])})})["it"]
    assert float(mean.mean()["t"]) == pytest.approx((2.0**24 + 2) / (2.0**24 + 1), rel=1e-15)


def test_values_by_hand():
    """Weights 1, 3 and values 0, 4: mean 3, centred square 1·9 + 3·1 = 12, variance 3 (plus squares within)."""
    weight, value = torch.tensor([1.0, 3.0]).double(), {"t": torch.tensor([[0.0], [4.0]]).double()}
    assert float(fold_stack({"it": Mean(weight, value)})["it"].mean()["t"]) == 3
    assert float(fold_stack({"it": LogMean(weight.log(), value)})["it"].mean()["t"]) == pytest.approx(3, abs=1e-14)
    within = {"t": torch.tensor([[2.0], [6.0]]).double()}
    moments = fold_stack({"it": Moments(weight, value, within)})["it"]
    assert float(moments.mean["t"]) == 3
    assert float(moments.variance()["t"]) == (12 + 8) / 4
    per_number = {"t": torch.tensor([[1.0, 0.0], [1.0, 2.0]]).double()}
    both = fold_stack({"it": Mean(per_number, {"t": torch.tensor([[0.0, 5.0], [4.0, 7.0]]).double()})})["it"]
    assert both.mean()["t"].tolist() == [2, 7]


def test_effective_clients():
    """(Σw)²/Σw²: equal weights 4 → 4; weights 1, 3 → 16/10; the same by streaming."""
    for weights, expected in (([2.0] * 4, 4.0), ([1.0, 3.0], 1.6)):
        parts = [{"it": LogMean(torch.tensor(w).double().log(), {"t": torch.zeros(1).double()})} for w in weights]
        assert float(folded(parts)["it"].effective()) == pytest.approx(expected, abs=1e-12)
        assert float(reduce(merge, [single(p) for p in parts])["it"].effective()) == pytest.approx(expected, abs=1e-12)


LOG_WEIGHTS = [
    [-1e300] * 4, [1e300] * 4, [-1e15] * 7, [-5000.0] * 3, [0.0] * 5, [-1.7e308] * 2, [1.7e308] * 9,
    [-1e300, -1e300, -2e300], [1e300, -1e300, 0.0], [-1e15, -1e15 - 1, -1e15 - 1, -1e15 + 0.5],
    [-5000.0, -5000.001, -5003.0], [0.0, -1.0, -2.5, 1.5], [3e4, 3e4 - 0.125, 2e4], [-1e16] * 3 + [-1e16 - 2] * 2,
]  # fmt: skip


def exactly(log_weights, values):
    """(Σw)²/Σw², Σwv/Σw and log Σw in 60 decimal places, the weights divided by the largest."""
    with localcontext() as context:
        context.prec, context.Emin, context.Emax = 60, MIN_EMIN, MAX_EMAX
        top = max(Decimal(w) for w in log_weights)
        gaps = [Decimal(w) - top for w in log_weights]
        weights = [gap.exp() if gap > -10_000 else Decimal(0) for gap in gaps]
        mass, square = sum(weights), sum(w * w for w in weights)
        mean = sum(w * Decimal(v) for w, v in zip(weights, values, strict=True)) / mass
        return float(mass * mass / square), float(mean), float(top + mass.ln())


@pytest.mark.parametrize("log_weights", LOG_WEIGHTS)
def test_effective_clients_and_means_of_log_weights_of_any_size(log_weights):
    """Four equal clients are worth four at −1e300 too, stacked, streamed, in trees and beside the zero."""
    values = [1.0, -2.0, 4.0, 0.5, 8.0, -1.0, 3.0, 2.0, 7.0][: len(log_weights)]
    parts = [{"it": LogMean(torch.tensor(w, dtype=torch.float64), {"t": torch.tensor([v], dtype=torch.float64)})}
             for w, v in zip(log_weights, values, strict=True)]  # fmt: skip
    effective, mean, log_total = exactly(log_weights, values)
    singles = [single(p) for p in parts]
    nothing, cut = zero_like(singles[0]), len(parts) // 2
    ways = {
        "stacked": folded(parts),
        "streamed": reduce(merge, singles),
        "not folded": reduce(merge, parts),
        "backwards": reduce(merge, singles[::-1]),
        "from the right": reduce(lambda a, b: merge(b, a), singles[::-1]),
        "in two stacks": merge(folded(parts[:cut]), folded(parts[cut:])),
        "a stack of totals": fold_stack(tree_stack([folded(parts[:cut]), folded(parts[cut:])])),
        "with zeros": reduce(merge, [nothing, *singles, nothing]),
    }
    for way, total in ways.items():
        assert float(total["it"].effective()) == pytest.approx(effective, rel=1e-13), way
        assert float(total["it"].mean()["t"]) == pytest.approx(mean, rel=1e-13), way
        assert float(total["it"].log_weight) == pytest.approx(log_total, rel=1e-15, abs=1e-14), way


def test_nobody_is_worth_no_client():
    nothing = zero_like({"it": LogMean(torch.tensor(-3.0).double(), {"t": torch.ones(2).double()})})
    assert float(nothing["it"].effective()) == 0 == float(merge(nothing, nothing)["it"].effective())


@pytest.mark.parametrize("kind", ["mean", "mean per number", "log mean", "moments"])
def test_no_weight_at_all_raises_and_is_never_nan(kind):
    """Clients of zero weight: a finite total that refuses to be read."""

    def weightless(part):
        return {"it": type(part)(
            tree_map(lambda w: torch.full_like(w, -torch.inf) if kind == "log mean" else torch.zeros_like(w),
                     part.log_weight if kind == "log mean" else part.weight),
            *([part.mean, tree_map(torch.zeros_like, part.square)] if kind == "moments" else [part.value]),
        )}  # fmt: skip

    parts = [weightless(message(kind, k)["it"]) for k in range(3)]
    for total in (folded(parts), reduce(merge, [single(p) for p in parts]), zero_like(folded(parts))):
        assert not any(leaf.isnan().any() for leaf in tree_leaves(total))
        with pytest.raises(ValueError, match="of nothing"):
            total["it"].variance() if kind == "moments" else total["it"].mean()
    mixed = folded([*parts, message(kind, 7)])["it"]
    heard = message(kind, 7)["it"]
    value = (lambda part: part.mean) if kind == "moments" else (lambda part: part.value)
    close(value(mixed), value(heard), 1e-14)


def test_numbers_without_weight_fall_back_to_what_is_missing():
    stack = {"it": Mean({"t": torch.tensor([[1.0, 0.0]])}, {"t": torch.tensor([[5.0, 9.0]])})}
    total = fold_stack(stack)["it"]
    assert total.mean({"t": torch.tensor([-1.0, -2.0])})["t"].tolist() == [5, -2]
    with pytest.raises(ValueError, match="mean of nothing"):
        total.mean()


def test_log_weights_that_float64_cannot_hold():
    """e^−5000 is 0 in any float; differences of logarithms are all that matters: 1/(1 + e) of the way."""
    parts = [{"it": LogMean(torch.tensor(w).double(), {"t": torch.tensor([v]).double()})} for w, v in
             ((-5000.0, 2.0), (-5001.0, 3.0), (-9000.0, 1e6))]  # fmt: skip
    expected = 2 + 1 / (1 + 2.718281828459045)
    for total in (
        folded(parts),
        reduce(merge, [single(p) for p in parts]),
        reduce(merge, [single(p) for p in parts[::-1]]),
    ):
        assert float(total["it"].mean()["t"]) == pytest.approx(expected, abs=2e-11)


def test_merging_one_client_is_exactly_the_identity_in_float32():
    for k in range(20):
        part = message("mean", k, torch.float32)
        part["it"] = Mean(torch.tensor(float(k + 1)), part["it"].value)
        close(tree_cast(single(part), torch.float32), part, 0.0)


def test_merging_one_client_is_the_identity_to_rounding_in_float64():
    for k in range(20):
        part = message("mean", k)
        close(single(part), part, 1e-15)


def test_rows_and_bags_are_kept_in_the_order_of_the_clients():
    for kind in ("rows", "bag"):
        total = folded([message(kind, k) for k in (4, 0, 2)])["it"]
        assert total.client.tolist() == [0, 2, 4]
        assert torch.equal(total.value["w"][1], message(kind, 2)["it"].value["w"])
    table = {"w": torch.zeros(5, 3, 2).double(), "b": torch.zeros(5, 2).double()}
    filled = folded([message("rows", 3)])["it"].into(table)
    assert torch.equal(filled["w"][3], message("rows", 3)["it"].value["w"])
    assert not filled["w"][:3].any()


def test_two_rows_of_one_client_are_refused():
    with pytest.raises(ValueError, match="client 2 sent two rows"):
        merge(single(message("rows", 2)), single(message("rows", 2)))


def test_two_rows_of_one_client_in_one_stack_are_refused():
    with pytest.raises(ValueError, match="sent two rows"):
        folded([message("rows", 2), message("rows", 2)])


def test_only_finite_messages_are_acceptable():
    value = torch.tensor([[0.0, 1.0], [0.5, torch.nan], [0.5, -0.1], [1.0, 1.1], [torch.inf, 0.0]])
    assert tree_finite({"it": Sum(value)}).tolist() == [True, False, True, True, False]
    weight = torch.tensor([1.0, torch.nan, 1.0, 1.0, 1.0])
    assert tree_finite({"a": Mean(weight, {"t": torch.ones(5, 2)}), "b": Sum(value)}).tolist() == [
        True, False, True, True, False]  # fmt: skip


def test_other_names_cannot_be_added():
    left, right = single(message("sum", 0)), {"that": single(message("sum", 0))["it"]}
    with pytest.raises(ValueError, match=r"\['it'\] and \['that'\]"):
        merge(left, right)


def test_dicts_are_added_by_name_and_not_by_position():
    left = {"it": Sum({"a": torch.tensor(1.0), "b": torch.tensor(10.0)})}
    right = {"it": Sum({"b": torch.tensor(20.0), "a": torch.tensor(2.0)})}
    assert {n: float(v) for n, v in merge(left, right)["it"].value.items()} == {"a": 3.0, "b": 30.0}


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [("sum", 8), ("mean", 9), ("mean per number", 16), ("log mean", 9), ("moments", 17), ("rows", 8), ("bag", 8)],
)
def test_bytes(kind, numbers):
    """Two leaves of 6 and 2 numbers; Rows and Bag name their client in an int64."""
    stack = tree_stack([message(kind, k, torch.float32) for k in range(5)])
    assert tree_bytes(stack) == 5 * (4 * numbers + (8 if kind in ("rows", "bag") else 0))


def test_some_clients_of_a_stack():
    """What the engine does with refused messages: the fold of the remaining rows."""
    parts = [message("mean", k) for k in range(4)]
    kept = tree_rows(tree_stack(parts), torch.tensor([True, False, True, False]))
    close(fold_stack(kept), folded([parts[0], parts[2]]), 0.0)
