"""The variance within a class: its own, bounded by what other classes and other clients say; against plain numpy."""

import numpy as np
import pytest
import torch

from posterity.core.monoid import fold_stack
from posterity.core.spread import (
    common_variance,
    describe_classes,
    read_sums,
    scale_of,
    scaled_precision,
    sum_classes,
    told,
)
from posterity.core.tree import tree_stack

DOUBLE = torch.float64
NU = 10.0
LABELS = {  # seven clients: labels of their rows, and rows that are made equal
    "ordinary": ([0] * 6 + [1] * 9 + [2] * 4, []),
    "one class": ([0] * 12, []),
    "equal rows": ([0] * 3 + [1] * 9 + [2] * 20, [0]),
    "equal rows alone": ([0] * 3, [0]),
    "single samples": ([0, 1, 2], []),
    "pairs": ([0] * 2 + [1] * 2 + [2] * 2, []),
    "two classes of equal rows": ([0] * 5 + [1] * 7 + [2] * 30, [0, 1]),
}


def rows(labels, equal, seed=0, d=5):
    generator = np.random.default_rng(seed)
    y = np.array(labels)
    z = 2.0 + generator.standard_normal((len(y), d)) * np.linspace(0.5, 1.5, d)
    for k in equal:
        z[y == k] = z[y == k][0]
    return z, y


def found_of(z, y, mode):
    z, y, ones = torch.tensor(z), torch.tensor(y), torch.ones(len(y))
    return describe_classes(z, y, ones, 3) if mode == "shrinkage" else read_sums(sum_classes(z, y, ones, 3))


def by_hand(z, y, mode, common):
    """Precisions (list of three) from the formulas, in plain numpy; None: the client knows no variance."""
    d = z.shape[1]
    parts = [z[y == k] - z[y == k].mean(0) if (y == k).any() else np.zeros((0, d)) for k in range(3)]
    squares = [float((p**2).sum()) / d for p in parts]
    free = [max(len(p) - 1, 0) for p in parts]
    alone = sum(squares) / max(sum(free), 1)
    if not common and alone <= 1e-3 * float((z**2).mean()):
        return None
    guess = common or alone
    pooled = (sum(squares) + NU * guess) / (sum(free) + NU)
    result = []
    for k in range(3):
        count = len(parts[k])
        v = (sum(squares) - squares[k] + NU * guess) / (sum(free) - free[k] + NU)
        least = NU * v / (free[k] + NU)
        if mode == "isotropic":
            result.append(count / max(squares[k] / max(free[k], 1), least))
        else:
            s2 = max(squares[k] / count, least) if count > 2 else pooled
            shrunken = (parts[k].T @ parts[k] + NU * s2 * np.eye(d)) / (count + NU)
            result.append(count * np.linalg.inv(shrunken))
    return result


@pytest.mark.parametrize("mode", ["isotropic", "shrinkage"])
@pytest.mark.parametrize("common", [0.0, 0.8])
@pytest.mark.parametrize("client", LABELS)
def test_precisions_by_hand(client, common, mode):
    z, y = rows(*LABELS[client])
    own, plain = scaled_precision(found_of(z, y, mode), NU, torch.tensor(common, dtype=DOUBLE))
    expected = by_hand(z, y, mode, common)
    if expected is None:
        assert client in ("equal rows alone", "single samples")
        assert not own.any()
        assert plain.tolist() == [np.sum(y == k) for k in range(3)]
    else:
        assert not plain.any()
        for k in range(3):
            np.testing.assert_allclose(own[k].numpy(), expected[k], rtol=1e-10, atol=1e-12)


def test_the_specification_holds_where_a_class_has_spread():
    """Three classes of 8 with about one variance: Z/s² with the class's own s², to the last digit but rounding."""
    z, y = rows([0] * 8 + [1] * 8 + [2] * 8, [])
    own, _ = scaled_precision(found_of(z, y, "isotropic"), NU, torch.tensor(0.0))
    for k in range(3):
        assert float(own[k]) == pytest.approx(8 / z[y == k].var(0, ddof=1).mean(), rel=1e-12)


@pytest.mark.parametrize("mode", ["isotropic", "shrinkage"])
def test_equal_rows_weigh_no_more_than_a_few(mode):
    """Equal rows of a class beside others, told or not: their precision is below twice that of rows with spread."""
    z, y = rows([0] * 3 + [1] * 40 + [2] * 40, [0], seed=3)
    usual = 3 / np.mean([z[y == k].var(0, ddof=1).mean() for k in (1, 2)])
    for common in (0.0, 1.0):
        own, _ = scaled_precision(found_of(z, y, mode), NU, torch.tensor(common, dtype=DOUBLE))
        top = float(own[0]) if mode == "isotropic" else float(torch.linalg.eigvalsh(own[0]).max())
        assert usual < top < 2 * usual


def test_the_variance_at_a_typical_client():
    """exp of the mean of log s², weights F/(F + ν₀); clients without spread say nothing. Seven of them by hand."""
    expected, weights, said = [], [], []
    for seed, (labels, equal) in enumerate(LABELS.values()):
        z, y = rows(labels, equal, seed)
        z = z * (1 + seed) ** 2
        squares = sum(float(((z[y == k] - z[y == k].mean(0)) ** 2).sum()) for k in set(labels))
        free = len(y) - len(set(labels))
        if squares > 1e-9:
            expected.append(np.log(squares / (5 * free)))
            weights.append(free / (free + NU))
        said.append({"it": told(found_of(z, y, "shrinkage" if seed % 2 else "isotropic"), NU)})
        assert float(said[-1]["it"].value["weight"]) == pytest.approx(weights[-1] if squares > 1e-9 else 0)
    assert len(expected) == 5
    total = fold_stack(tree_stack(said))["it"]
    wanted = np.exp(np.average(expected, weights=weights))
    assert float(common_variance(total, torch.tensor(7.0))) == pytest.approx(wanted, rel=1e-12)
    assert float(common_variance(total.zero(), torch.tensor(7.0))) == 7.0


def test_the_scale_follows_the_features():
    """Features times c: every variance times c²."""
    z, y = rows(*LABELS["equal rows"])
    one, far = (
        scale_of(found_of(c * z, y, "isotropic"), NU, torch.tensor(0.3 * c * c, dtype=DOUBLE)) for c in (1.0, 1e4)
    )
    assert torch.allclose(far.others / one.others, torch.full((3,), 1e8, dtype=DOUBLE), rtol=1e-9)
    assert float(far.pooled / one.pooled) == pytest.approx(1e8)
