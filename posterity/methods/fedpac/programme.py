"""FedPAC's quadratic programme (c): for every participant, how much of whose head it takes.

The least αᵀAα on the simplex, for A positive definite, is at α = β / Σβ with β the least ½βᵀAβ − Σβ over β ≥ 0: at the
former's solution Aα ≥ λ with equality where α > 0 and λ = αᵀAα > 0, so that β = α/λ has Aβ ≥ 1 with equality where
β > 0, which is all that the latter asks for. So the sum of α needs no multiplier, and the programme is solved by
exchanging who is 0 and who is not until no sign is wrong (block principal pivoting: Júdice and Pires, Computers and
Operations Research 21, 1994), for many participants at once. That is exact: the tolerance is for rounding alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

RIDGE = 1e-8  # added to the diagonal, so that equal participants share equally
ROUNDING = 1e-12  # the same, of the largest diagonal entry, so that rounding leaves A positive definite
TOLERANCE = 1e-8  # of Aβ ≥ 1
CUT = 1e-3  # weights below are dropped
PATIENCE = 3  # exchanges of everything that is wrong without having less of it, before only one is exchanged at a time
CHUNK = 2**22  # numbers in the matrices that are solved at once


def collaborate(variance: Tensor, rows: Tensor) -> Tensor:
    """α (m, m): row i are participant i's weights, from V (m,) and H (m, C, D); the identity where there are none.

    A participant whose V and H are 0 has said nothing (its classes are too small to be told): it keeps its own
    head, and nobody takes of it.
    """
    told = rows.flatten(1).any(1) | (variance != 0)
    if not bool(told.all()):
        kept, who = torch.eye(len(rows)).to(rows), told.nonzero()[:, 0]
        if len(who):
            kept[who[:, None], who] = collaborate(variance[who], rows[who])
        return kept
    flat = (rows - rows.mean(0)).flatten(1)  # G does not know where 0 is; near it fewer digits cancel
    inner = flat @ flat.T
    inner = (inner + inner.T) / 2
    some = torch.split(torch.arange(len(inner), device=inner.device), max(1, CHUNK // len(inner) ** 2))
    alpha = torch.cat([least_on_simplex(bias(inner, i) + torch.diag(variance)) for i in some])  # (c)
    alpha = torch.where(alpha < CUT, 0, alpha)
    alpha = alpha / alpha.sum(1, keepdim=True)
    return torch.where(alpha.isfinite().all(1, keepdim=True), alpha, torch.eye(len(alpha)).to(alpha))


def bias(inner: Tensor, some: Tensor) -> Tensor:
    """G_i (n, m, m) of the participants `some` (n,), from the inner products of all H (m, m)."""
    mine = inner[some]  # ⟨H_i, H_j⟩ (n, m)
    away = inner.diagonal()[some][:, None] - mine  # ⟨H_i, H_i − H_j⟩
    gram = away[:, :, None] - (mine[:, None, :] - inner)
    return (gram + gram.transpose(1, 2)) / 2


def least_on_simplex(quadratic: Tensor) -> Tensor:
    """α (n, m): row i minimises αᵀA_iα on the simplex, A (n, m, m) positive semidefinite; NaN where that fails."""
    size = quadratic.shape[1]
    top = quadratic.diagonal(dim1=1, dim2=2).amax(1)
    quadratic = quadratic + torch.diag_embed((RIDGE + ROUNDING * top)[:, None].expand(-1, size))
    free = torch.ones_like(quadratic[..., 0], dtype=torch.bool)  # (n, m): whose weight is not 0
    fewest, tries = torch.full_like(top, size + 1), torch.full_like(top, PATIENCE)
    for _ in range(10 * size + 50):
        beta, slack = stationary(quadratic, free)
        wrong = torch.where(free, beta < 0, slack < -TOLERANCE)
        count = wrong.sum(1)
        if not bool(count.any()):
            break
        fewer = count < fewest
        tries, fewest = torch.where(fewer, PATIENCE, tries - 1), torch.where(fewer, count, fewest)
        last = wrong & (wrong.flip(1).cumsum(1).flip(1) == 1)
        free = free ^ torch.where((tries >= 0)[:, None], wrong, last)
    beta = torch.where(wrong.any(1, keepdim=True), torch.nan, beta.clamp(min=0))
    return beta / beta.sum(1, keepdim=True)


def stationary(quadratic: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """β (n, m) with Aβ = 1 where `free` and β = 0 elsewhere, and Aβ − 1."""
    some = free.to(quadratic)
    both = some[:, :, None] * some[:, None, :]
    factor, failed = torch.linalg.cholesky_ex(quadratic * both + torch.diag_embed(1 - some))
    beta = torch.cholesky_solve(some[:, :, None], factor)
    beta = torch.where(failed[:, None, None] > 0, torch.nan, beta)
    return beta[..., 0], (quadratic @ beta)[..., 0] - 1
