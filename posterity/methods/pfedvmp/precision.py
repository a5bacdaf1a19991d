"""How precisely a client knows the mean feature of a class: Λ_{k,n} of (11), printed or as errata E2 and E3 say.

    shrinkage   Z ((Z Σ + ν₀ s² I) / (Z + ν₀))⁻¹    a matrix; Σ is the covariance of the class's features (E2, E3)
    printed     Σ† + α I                            a matrix (11)
    isotropic   Z / s²                              a number: s² is the variance of a feature within the class (E3)
    count       Z                                   a number: samples alone

A class is believed about its own variance as far as its samples go: it is at least what ν₀ more samples with a variance
v would leave of v. Without this, three equal rows would have a precision that outweighs everybody. v comes from the
client's other classes, and from ν₀ samples with the variance within classes at a typical client of the last round.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posterity.core import record
from posterity.methods.pfedvmp.class_statistics import Classes, Found, Spread
from posterity.methods.pfedvmp.scatter import ridged_inverses, scatter_roots

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


# --- as printed -------------------------------------------------------------------------------------------------------


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


def multiplied_out(basis: Tensor, weight: Tensor) -> Tensor:
    """Vᵀ diag(w) V as full matrices (..., d, d)."""
    return basis.transpose(-1, -2) @ (weight[..., None] * basis)  # (11), to which the server adds α


def pseudo_inverses(found: Classes) -> Tensor:
    """Σ† of every class (K, d, d)."""
    return multiplied_out(*low_rank(found))


# --- with the variance within classes as the unit ---------------------------------------------------------------------


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


__all__ = ["MATRICES", "MODES", "SCALED", "Scale", "isotropic_precision", "low_rank", "multiplied_out", "precisions",
           "pseudo_inverses", "scale_of", "scaled_precision", "shrunken_precision"]  # fmt: skip
