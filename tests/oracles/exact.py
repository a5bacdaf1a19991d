"""Equations (11) and (13) of pFedVMP in rational arithmetic: no rounding at all, whatever the condition."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

Matrix = list[list[Fraction]]


def centroid(clients, alpha=1.0) -> np.ndarray:
    """(Σ_n Λ_n)⁻¹ Σ_n Λ_n µ_n with Λ_n = Σ_n† + αI, of the clients' features (Z, d), in general position."""
    factors = [_factor([[Fraction(float(v)) for v in row] for row in z], Fraction(alpha)) for z in clients]
    total = [[sum(each) for each in zip(*rows, strict=True)] for rows in zip(*(m for m, _ in factors), strict=True)]
    shifts = [[row[0] for row in _times(m, [[v] for v in mean])] for m, mean in factors]
    shift = [[sum(entries)] for entries in zip(*shifts, strict=True)]
    return np.array([float(row[0]) for row in _solve(total, shift)])


def _factor(rows: Matrix, alpha: Fraction) -> tuple[Matrix, list[Fraction]]:
    count, d = len(rows), len(rows[0])
    mean = [sum(column, Fraction(0)) / count for column in zip(*rows, strict=True)]
    inverse = [[Fraction(0)] * d for _ in range(d)]
    if count > d:
        away = [[v - m for v, m in zip(row, mean, strict=True)] for row in rows]
        inverse = _solve([[v / count for v in row] for row in _times(_turned(away), away)], _unit(d))
    elif count > 1:  # Σ = DᵀGD with differences D of full row rank, so Σ† = Pᵀ G⁻¹ P, P = (DDᵀ)⁻¹ D
        differences = [[v - w for v, w in zip(row, rows[0], strict=True)] for row in rows[1:]]
        gram = [[(Fraction(i == j) - Fraction(1, count)) / count for j in range(count - 1)] for i in range(count - 1)]
        left = _solve(_times(differences, _turned(differences)), differences)
        inverse = _times(_turned(left), _times(_solve(gram, _unit(count - 1)), left))
    return [[v + alpha * (i == j) for j, v in enumerate(row)] for i, row in enumerate(inverse)], mean


def _solve(matrix: Matrix, right: Matrix) -> Matrix:
    """matrix⁻¹ right, by elimination."""
    size = len(matrix)
    rows = [[*left, *more] for left, more in zip(matrix, right, strict=True)]
    for i in range(size):
        best = max(range(i, size), key=lambda r: abs(rows[r][i]))
        rows[i], rows[best] = rows[best], rows[i]
        rows[i] = [v / rows[i][i] for v in rows[i]]
        rows = [row if r == i else [v - row[i] * w for v, w in zip(row, rows[i], strict=True)]
                for r, row in enumerate(rows)]  # fmt: skip
    return [row[size:] for row in rows]


def _times(left: Matrix, right: Matrix) -> Matrix:
    columns = _turned(right)
    return [[sum((a * b for a, b in zip(row, column, strict=True)), Fraction(0)) for column in columns] for row in left]


def _turned(matrix: Matrix) -> Matrix:
    return [list(column) for column in zip(*matrix, strict=True)]


def _unit(size: int) -> Matrix:
    return [[Fraction(i == j) for j in range(size)] for i in range(size)]
