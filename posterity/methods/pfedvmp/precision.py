"""How precisely a client knows the mean feature of a class: Λ_{k,n} of (11), printed or as errata E2 and E3 say.

    shrinkage   Z ((Z Σ + ν₀ s² I) / (Z + ν₀))⁻¹    a matrix; Σ is the covariance of the class's features (E2, E3)
    printed     Σ† + α I                            a matrix (11)
    isotropic   Z / s²                              a number: s² is the variance of a feature within the class (E3)
    count       Z                                   a number: samples alone

A class is believed about its own variance as far as its samples go: it is at least what ν₀ more samples with a variance
v would leave of v. Without this, three equal rows would have a precision that outweighs everybody. v comes from the
client's other classes, and from ν₀ samples with the variance within classes at a typical client of the last round.

Inverses of the scatter Z Σ_{k,n} of every class of every client, for (11), from the rows that the class really has.

A client's features are a stack with rows of all classes and of padding; a matrix for each class made from all of them
is mostly zeros, and its decomposition mostly wasted. Here the rows of a class are taken out and turned into Z - 1
contrasts M, with MᵀM the scatter about the mean, which then holds no direction that is zero by construction. Two
operators work on a stack of clients; `vmap` calls them once for all:

    scatter_roots      F (K, r, d) with FᵀF = (MᵀM)†, the singular values below `cut` of the largest left out
    ridged_inverses    (MᵀM + λI)⁻¹ (K, d, d)

Roots come from a Cholesky factor of the smaller of MMᵀ and MᵀM, taken twice, so that their error grows as an SVD's does
with the condition of M and not with its square. Where that condition could make the cut matter, it is an SVD. On a GPU
classes of similar size go together; on a CPU each goes alone, so its bits depend on nobody else.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, library

from posterity.core import cholesky, record
from posterity.methods.pfedvmp.class_statistics import Classes, Found, Spread

STEP = 4 / 3  # from a size of groups to the next, on a GPU
SAFE = 0.5  # roots are trusted if a bound of M's condition stays below this share of 1 / cut: nothing is cut then


@dataclass(frozen=True)
class Group:
    """Classes of one size: the contrasts M (g, z, d) of each, its place (g,) in the stack, and its rows (g,)."""

    contrasts: Tensor
    place: Tensor
    rows: Tensor  # Z - 1, at most z; further rows are 0


@library.custom_op("posterity::scatter_roots", mutates_args=())
def _scatter_roots(features: Tensor, hot: Tensor, cut: float) -> Tensor:
    clients, count, d = features.shape
    roots = features.new_zeros(clients * hot.shape[-1], min(count, d), d)
    for group in _groups(features, hot):
        found = _pseudo_roots(group, cut)
        roots[group.place, : found.shape[1]] = found[:, : roots.shape[1]]
    return roots.reshape(clients, hot.shape[-1], *roots.shape[1:])


@library.custom_op("posterity::ridged_inverses", mutates_args=())
def _ridged_inverses(features: Tensor, hot: Tensor, ridge: Tensor) -> Tensor:
    clients, _, d = features.shape
    eye, ridge = torch.eye(d, dtype=features.dtype, device=features.device), ridge.flatten()
    inverses = eye / ridge[:, None, None]  # of classes without spread
    for group in _groups(features, hot):
        own, m = ridge[group.place][:, None, None], group.contrasts
        if m.shape[1] <= d:  # Woodbury: (I − Mᵀ (MMᵀ + λI)⁻¹ M) / λ
            half = _solve_lower(cholesky(m @ m.mT + own * eye.new_ones(m.shape[1]).diag()), m)
            inverses[group.place] = (eye - half.mT @ half) / own
        else:
            half = _solve_lower(cholesky(m.mT @ m + own * eye), eye.expand(len(m), d, d))
            inverses[group.place] = half.mT @ half
    return inverses.reshape(clients, -1, d, d)


def scatter_roots(features: Tensor, hot: Tensor, cut: float) -> Tensor:
    """F (K, r, d), r = min(n, d), of features (n, d) whose classes are `hot` (n, K); NaN if a feature is not finite."""
    return _scatter_roots(features[None], hot[None], cut)[0]


def ridged_inverses(features: Tensor, hot: Tensor, ridge: Tensor) -> Tensor:
    """(MᵀM + λI)⁻¹ (K, d, d) with a ridge λ > 0 for each class (K,)."""
    return _ridged_inverses(features[None], hot[None], ridge[None])[0]


# --- one group


def _pseudo_roots(group: Group, cut: float) -> Tensor:
    """F (g, min(z, d), d) of each class."""
    m = group.contrasts
    wide = m.shape[1] <= m.shape[2]
    roots, condition = _triangular_roots(m if wide else m.mT, group.rows, wide)
    for i in torch.nonzero(~(condition * cut < SAFE)).flatten().tolist():  # also where the condition is NaN
        roots[i] = _singular_roots(m[i, : int(group.rows[i])], cut, roots.shape[1])
    return roots


def _triangular_roots(m: Tensor, rows: Tensor, wide: bool) -> tuple[Tensor, Tensor]:
    """Roots from M = TQ with orthonormal rows Q, and a bound of the condition of M.

    `wide`: (MᵀM)† = QᵀT⁻¹T⁻ᵀQ, so F = T⁻ᵀQ. Else M is the transpose, MMᵀ = TTᵀ is what is inverted, and F = T⁻¹.
    """
    eye = torch.eye(m.shape[1], dtype=m.dtype, device=m.device)
    gram = m @ m.mT
    spare = (torch.arange(m.shape[1], device=m.device) >= rows[:, None]) if wide else rows[:, None].expand(-1, 0)
    if wide:  # rows that are 0 get a harmless diagonal
        scale = gram.diagonal(dim1=-2, dim2=-1).sum(-1) / rows.clamp(min=1)
        gram = gram + torch.diag_embed(spare * scale[:, None])
    first = cholesky(gram)
    q = _solve_lower(first, m)
    again = q @ q.mT
    second = cholesky(again + torch.diag_embed(spare.to(m)) if wide else again)
    inverse = _solve_lower(second, _solve_lower(first, eye.expand_as(gram)))  # T⁻¹
    lower = first @ second
    condition = lower.flatten(1).norm(dim=1) * inverse.flatten(1).norm(dim=1)
    if not wide:
        return inverse, condition
    return torch.where(spare[..., None], 0, inverse.mT @ _solve_lower(second, q)), condition


def _singular_roots(m: Tensor, cut: float, size: int) -> Tensor:
    """F from an SVD of M alone, on the host: this is for the few classes whose spread is nearly flat."""
    roots = m.new_zeros(size, m.shape[1])
    if not bool(m.isfinite().all()):
        return roots.fill_(torch.nan)
    _, s, vh = torch.linalg.svd(m.cpu(), full_matrices=False)
    kept = s > max(cut * float(s[0]), 0.0)
    roots[: int(kept.sum())] = (vh[kept] / s[kept, None]).to(m.device)
    return roots


def _solve_lower(lower: Tensor, right: Tensor) -> Tensor:
    return torch.linalg.solve_triangular(lower, right, upper=False)


# --- taking classes apart


def _groups(features: Tensor, hot: Tensor) -> Iterator[Group]:
    """Classes with two or more samples, by size."""
    if features.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("the sizes of classes are needed on the host: this cannot be captured in a CUDA graph")
    clients, count, d = features.shape
    classes = hot.shape[-1]
    label = torch.where(hot.any(-1), hot.argmax(-1), classes)  # padding comes last
    inside = torch.argsort(label, dim=1, stable=True)
    order = inside + count * torch.arange(clients, device=hot.device)[:, None]
    sizes = hot.sum(1).to(torch.int64)  # (clients, K)
    start = sizes.cumsum(1) - sizes + count * torch.arange(clients, device=hot.device)[:, None]
    flat, order, start = features.reshape(-1, d), order.flatten(), start.flatten()
    for places, most in _buckets(sizes.flatten().tolist(), features.is_cuda):
        place = torch.tensor(places, device=hot.device)
        rows, slot = sizes.flatten()[place], torch.arange(most, device=hot.device)
        index = order[(start[place][:, None] + slot).clamp(max=len(order) - 1)]
        taken = torch.where((slot < rows[:, None])[..., None], flat[index], 0)
        yield Group(_contrasts(taken, rows), place, rows - 1)


def _buckets(sizes: list[int], together: bool) -> list[tuple[list[int], int]]:
    """(places, largest size) of the groups; alone, a group is one class."""
    found = [(size, place) for place, size in enumerate(sizes) if size > 1]
    if not together:
        return [([place], size) for size, place in found]
    groups: list[tuple[list[int], int]] = []
    for size, place in sorted(found, reverse=True):
        if groups and size * STEP > groups[-1][1]:
            groups[-1][0].append(place)
        else:
            groups.append(([place], size))
    return groups


def _contrasts(rows: Tensor, count: Tensor) -> Tensor:
    """Rows (g, z, d) to z - 1 orthonormal contrasts: row i is (x₁ + … + xᵢ − i xᵢ₊₁) / √(i (i + 1)); 0 beyond."""
    number = torch.arange(1, rows.shape[1], dtype=rows.dtype, device=rows.device)  # i
    found = (rows.cumsum(1)[:, :-1] - number[:, None] * rows[:, 1:]) / (number * (number + 1)).sqrt()[:, None]
    return torch.where((number < count[:, None])[..., None], found, 0)


# --- stacks


def _stacked(operator: Any) -> None:
    """Under `vmap` the clients of all stacks are one stack."""

    def rule(info: Any, axes: tuple[Any, ...], *operands: Any) -> tuple[Tensor, int]:
        pairs = zip(operands, axes, strict=True)
        lifted = [
            v if not isinstance(v, Tensor) else v.expand(info.batch_size, *v.shape) if a is None else v.movedim(a, 0)
            for v, a in pairs
        ]
        flat = [v.flatten(0, 1) if isinstance(v, Tensor) else v for v in lifted]
        result: Tensor = operator(*flat)
        return result.reshape(info.batch_size, -1, *result.shape[1:]), 0

    operator.register_vmap(rule)


_stacked(_scatter_roots)
_stacked(_ridged_inverses)


MODES = ("shrinkage", "printed", "isotropic", "count")
MATRICES = MODES[:2]  # modes whose precision is a matrix
SCALED = ("shrinkage", "isotropic")  # modes whose precision has the variance within classes as its unit
NEGLIGIBLE = 1e-3  # a client whose variance is a smaller share of its features' mean square is not believed alone
CUT = 1e-5  # singular values below this share of the largest are rank noise
LEAST = 1e-12  # least variance of a direction, as a share of the features' mean square: float64 sums bear no less


def precisions(found: Found, mode: str, nu0: float, common: Tensor) -> tuple[Tensor | None, Tensor]:
    """Λ_{k,n} in two parts: a matrix (K, d, d) or number (K,) from the spread, and units (K,) that the server knows."""
    if mode == "count":
        return None, found.count
    if mode == "printed" and isinstance(found, Classes):
        return pseudo_inverses(found), (found.count > 0).double()  # (11); E4
    return scaled_precision(found, nu0, common)  # E2, E3


# --- as printed


def low_rank(found: Classes) -> tuple[Tensor, Tensor]:
    """V (K, r, d) and w (K, r) with Σ† = Vᵀ diag(w) V, r = min(n, d), unit rows; Σ is never formed to be inverted.

    Directions that the class does not have are 0, and the largest entry of the others is positive: V is then the same
    however many rows of other classes, or of padding, stand between. Variances that rounding explains are 0; less than
    `LEAST` is no variance of others, whose precisions would vanish beside its inverse.
    """
    roots = scatter_roots(found.away, found.hot, CUT) * found.count.clamp(min=1).sqrt()[:, None, None]
    length = roots.norm(dim=-1)
    top = roots.gather(-1, roots.abs().argmax(-1, keepdim=True)).sign()
    basis, weight = top * roots / torch.where(length > 0, length, 1)[..., None], length**2
    none = weight * found.least > 1
    weight = torch.minimum(weight, 1 / (LEAST * found.square))
    return torch.where(none[..., None], 0, basis), torch.where(none, 0, weight)


def pseudo_inverses(found: Classes) -> Tensor:
    """Σ† = Vᵀ diag(w) V of every class (K, d, d)."""
    basis, weight = low_rank(found)
    return basis.mT @ (weight[..., None] * basis)  # (11), to which the server adds α


# --- with the variance within classes as the unit


@record
class Scale:
    """What a client believes about the variance of a feature within its classes before it looks at one of them."""

    others: Tensor  # v (K,): from the other classes
    pooled: Tensor  # () from all classes
    known: Tensor  # () 1, or 0: nothing is known

    def least(self, freedom: Tensor, nu0: float) -> Tensor:
        """What ν₀ samples of variance v leave of v beside those of a class that has none (K,)."""
        return nu0 * self.others / (freedom + nu0)


def scale_of(found: Spread, nu0: float, common: Tensor) -> Scale:
    """`common` is the variance within classes at a typical client, 0 while nobody knows it.

    A client that is not told is believed alone, unless its classes are points for what one can see.
    """
    trace, freedom = found.trace / found.mean.shape[1], found.freedom()
    total, free = trace.sum(), freedom.sum()
    alone = total / free.clamp(min=1)
    known = (common > 0) | (alone > NEGLIGIBLE * found.square)
    guess = torch.where(common > 0, common, torch.where(known, alone, 1)).to(alone)
    others = ((total - trace).clamp(min=0) + nu0 * guess) / (free - freedom + nu0)
    return Scale(others, (total + nu0 * guess) / (free + nu0), known.to(alone))


def scaled_precision(found: Found, nu0: float, common: Tensor) -> tuple[Tensor, Tensor]:
    """The precision of each class's mean from its spread, and Z (K,) instead where the client knows nothing of it."""
    if isinstance(found, Classes):
        scale = scale_of(found.spread(), nu0, common)
        return shrunken_precision(found, scale, nu0), (1 - scale.known) * found.count
    scale = scale_of(found, nu0, common)
    return isotropic_precision(found, scale, nu0), (1 - scale.known) * found.count


def isotropic_precision(found: Spread, scale: Scale, nu0: float) -> Tensor:
    """Z / s² (K,), s² the unbiased variance of a feature in the class; that of all classes if it has one sample."""
    alone = found.trace / (found.mean.shape[1] * found.freedom().clamp(min=1))
    return scale.known * found.count / torch.maximum(alone, scale.least(found.freedom(), nu0))


def shrunken_precision(found: Classes, scale: Scale, nu0: float) -> Tensor:
    """Z ((Z Σ + ν₀ s² I) / (Z + ν₀))⁻¹ (K, d, d): ν₀ samples of an isotropic prior stand behind the covariance."""
    seen = found.spread()
    alone = seen.trace / (found.mean.shape[1] * found.count.clamp(min=1))
    spread = torch.where(found.count > 2, torch.maximum(alone, scale.least(seen.freedom(), nu0)), scale.pooled)
    inverse = ridged_inverses(found.away, found.hot, nu0 * spread)
    return (scale.known * found.count * (found.count + nu0))[:, None, None] * inverse
