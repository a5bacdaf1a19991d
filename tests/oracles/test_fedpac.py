"""FedPAC: its statistics (a) and its quadratic programme (c), against the specification and a generic solver."""

import pytest
import torch
from scipy.optimize import minimize

from posterity.core.common import sum_classes
from posterity.methods.fedpac import class_means, collaborate, describe, least_on_simplex

from .sims import DOUBLE, worst


def numbers(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=DOUBLE)


# --- (a) ----------------------------------------------------------------------------------------------------------
def test_who_said_nothing_keeps_its_head_and_gives_none():
    rows, variance = numbers(1, 0, 3)[:, None, None], numbers(0.2, 0, 0.2)
    alpha = collaborate(variance, rows)
    assert alpha[1].tolist() == [0, 1, 0]
    assert alpha[:, 1].tolist() == [0, 1, 0]
    assert worst(alpha[[0, 2]][:, [0, 2]], collaborate(variance[[0, 2]], rows[[0, 2]])) == 0


def test_statistics_of_three_samples():
    """The specification's: Σ‖z‖² = 14 and ‖H‖² = 20/9, so V = (14/3 − 20/9)/3 = 22/27."""
    z, y = numbers([1, 0], [3, 0], [0, 2]), torch.tensor([0, 0, 1])
    sums = sum_classes(z, y, torch.ones(3, dtype=DOUBLE), 2)
    variance, rows = describe(sums)
    assert float(variance) == pytest.approx(0.8148148, abs=1e-7)
    assert float(variance) == pytest.approx(22 / 27, abs=1e-15)
    assert rows.tolist() == [pytest.approx([4 / 3, 0], abs=1e-15), pytest.approx([0, 2 / 3], abs=1e-15)]
    assert class_means(sums).tolist() == [[2, 0], [0, 2]]


def test_statistics_are_the_papers_sum_over_classes():
    """V = (1/n) Σ_c [π_c E‖z‖²_c − π_c² ‖µ_c‖²], class by class; a class without samples has zeros."""
    z, y = torch.randn(11, 3, generator=torch.Generator().manual_seed(1), dtype=DOUBLE), torch.arange(11) % 3
    variance, rows = describe(sum_classes(z, y, torch.ones(11, dtype=DOUBLE), 4))
    expected = 0.0
    for c in range(3):
        mine = z[y == c]
        share, mean = len(mine) / 11, mine.mean(0)
        expected += share * float((mine**2).sum(1).mean()) - share**2 * float((mean**2).sum())
        assert worst(rows[c], share * mean) < 1e-15
    assert float(variance) == pytest.approx(expected / 11, abs=1e-14)
    assert rows[3].tolist() == [0, 0, 0]


def test_one_sample_has_no_variance_and_none_is_negative():
    z = numbers([0.1, 0.7, 1e3 / 3])
    assert 0 <= float(describe(sum_classes(z, torch.tensor([1]), torch.ones(1, dtype=DOUBLE), 2))[0]) < 1e-9


# --- (c) ----------------------------------------------------------------------------------------------------------
def test_programme_of_the_specification():
    alpha = collaborate(numbers(0.2, 0.2, 0.2), numbers(1, 1, 3)[:, None, None])
    near, far = [0.488372, 0.488372, 0.023256], [0.023256, 0.023256, 0.953488]
    for row, expected in zip(alpha.tolist(), (near, near, far), strict=True):
        assert row == pytest.approx(expected, abs=1e-6)
    exact = numbers(21, 21, 1) / 43  # by hand: 0.2·2a² + (0.2 + 4)(1 − 2a)², least at a = 21/43
    assert worst(alpha[0], exact) < 1e-7  # 1e-8 on the diagonal


def test_equal_clients_are_weighted_by_their_precision():
    alpha = collaborate(numbers(1, 2, 4), torch.ones(3, 2, 2, dtype=DOUBLE))
    assert worst(alpha, (numbers(4, 2, 1) / 7).expand(3, 3)) < 1e-7


def test_without_variance_everybody_takes_its_own():
    """α = e_i has the least value there is, 0; the ridge moves less than the cut."""
    rows = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    assert worst(collaborate(torch.zeros(5, dtype=DOUBLE), rows), torch.eye(5, dtype=DOUBLE)) == 0
    twins = collaborate(torch.zeros(2, dtype=DOUBLE), torch.ones(2, 1, 1, dtype=DOUBLE))
    assert worst(twins, torch.full((2, 2), 0.5, dtype=DOUBLE)) < 1e-15


def test_small_weights_are_dropped_and_the_rest_sums_to_one():
    """Two clients, V = (1, v), H equal: α = (v, 1)/(1 + v), just below and just above 1e-3."""
    rows = torch.zeros(2, 1, 1, dtype=DOUBLE)
    assert collaborate(numbers(1, 1100), rows)[0].tolist() == [1, 0]
    kept = collaborate(numbers(1, 900), rows)[0]
    assert kept.tolist() == pytest.approx([900 / 901, 1 / 901], abs=1e-9)
    three = collaborate(numbers(1, 1, 5000), torch.zeros(3, 1, 1, dtype=DOUBLE))
    assert three[2].tolist() == pytest.approx([0.5, 0.5, 0], abs=1e-9)


def objective(variance, rows, i):
    """diag V + G_i, from differences."""
    away = rows[i] - rows
    return (torch.diag(variance) + torch.einsum("jab,lab->jl", away, away)).numpy()


def generic(quadratic):
    """The least αᵀAα on the simplex by a solver for anything smooth."""
    m = len(quadratic)
    unity = {"type": "eq", "fun": lambda a: a.sum() - 1}
    return minimize(lambda a: a @ quadratic @ a, [1 / m] * m, jac=lambda a: 2 * quadratic @ a, method="SLSQP",
                    bounds=[(0, 1)] * m, constraints=unity, options={"ftol": 1e-15, "maxiter": 2000}).x  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_programme_against_a_generic_solver(seed):
    """Values agree to 1e-8 of theirs; weights where the cut does not reach."""
    draw = torch.Generator().manual_seed(seed)
    m = 3 + 2 * seed
    rows = torch.randn(m, 3, 2, generator=draw, dtype=DOUBLE) * [0.1, 1, 5][seed % 3] + 7
    variance = torch.rand(m, generator=draw, dtype=DOUBLE) ** 3
    for i in range(m):
        quadratic = objective(variance, rows, i)
        found = least_on_simplex(torch.from_numpy(quadratic)[None])[0].numpy()
        best = generic(quadratic)
        assert found.min() >= 0
        assert found.sum() == pytest.approx(1, abs=1e-12)
        assert found @ quadratic @ found <= (best @ quadratic @ best) * (1 + 1e-7)
        assert found == pytest.approx(best, abs=2e-4)
        cut = collaborate(variance, rows)[i].numpy()
        kept = found * (found >= 1e-3)
        assert cut == pytest.approx(kept / kept.sum(), abs=1e-6)


@pytest.mark.parametrize(("m", "scale"), [(100, 0.05), (100, 1.0), (60, 30.0), (40, 1e-3)])
def test_many_participants(m, scale):
    """Karush-Kuhn-Tucker: no participant's slope is below the common one of those that have weight."""
    draw = torch.Generator().manual_seed(m)
    rows = scale * torch.randn(m, 10, 4, generator=draw, dtype=DOUBLE)
    variance = torch.rand(m, generator=draw, dtype=DOUBLE)
    for i in (0, m // 2, m - 1):
        quadratic = torch.from_numpy(objective(variance, rows, i))[None]
        alpha = least_on_simplex(quadratic)[0]
        slope = quadratic[0] @ alpha
        assert float(slope.min() / (alpha @ slope)) > 1 - 1e-6
        assert float((alpha * (slope - alpha @ slope)).abs().max()) < 1e-6
    whole = collaborate(variance, rows)
    assert bool(whole.isfinite().all())
    assert worst(whole.sum(1), torch.ones(m, dtype=DOUBLE)) < 1e-12


def test_the_numbering_of_clients_does_not_matter_and_chunks_neither(monkeypatch):
    draw = torch.Generator().manual_seed(3)
    rows, variance = torch.randn(9, 2, 2, generator=draw, dtype=DOUBLE), torch.rand(9, generator=draw, dtype=DOUBLE)
    order = torch.randperm(9, generator=draw)
    alpha = collaborate(variance, rows)
    assert worst(collaborate(variance[order], rows[order]), alpha[order][:, order]) < 1e-9
    monkeypatch.setattr("posterity.methods.fedpac.CHUNK", 200)
    assert worst(collaborate(variance, rows), alpha) < 1e-12


def test_what_cannot_be_solved_keeps_its_head():
    rows = torch.zeros(3, 1, 1, dtype=DOUBLE)
    rows[2] = 1e200  # its square overflows
    assert torch.equal(collaborate(numbers(1, 1, 1), rows), torch.eye(3, dtype=DOUBLE))
    alone = collaborate(numbers(0.3), torch.ones(1, 2, 2, dtype=DOUBLE))
    assert alone.tolist() == [[1.0]]
