"""Gaussian factors in natural parameters: what pFedVMP and FedNP have in common, and baselines will.

A factor over a vector µ (..., d) is exp(-½ µᵀΛµ + ηᵀµ), held as its precision Λ and shift η = Λ·mean. Then

    product of factors   a + b         cavity (a factor taken out)   a - b
    tempering            a * t         a factor that says nothing    precision 0, shift 0

Λ may be a scaled identity (...,), a diagonal (..., d) or dense (..., d, d): the number of axes tells which. Factors of
different forms combine in the richer one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from posterity.core.tree import record

DEVICES = frozenset({"cuda"})  # that have products with few bits
FORMS = ("isotropic", "diagonal", "dense")


@record
class Gaussian:
    precision: Tensor  # (...,), (..., d) or (..., d, d)
    shift: Tensor  # (..., d)

    @staticmethod
    def of(mean: Tensor, precision: Tensor) -> Gaussian:
        """The factor with this mean (..., d) and precision."""
        return Gaussian(precision, matvec(precision, mean))

    @property
    def form(self) -> str:
        return FORMS[self.precision.dim() - self.shift.dim() + 1]

    def __add__(self, other: Gaussian) -> Gaussian:
        mine, theirs = _aligned(self, other)
        return Gaussian(mine + theirs, self.shift + other.shift)

    def __sub__(self, other: Gaussian) -> Gaussian:
        mine, theirs = _aligned(self, other)
        return Gaussian(mine - theirs, self.shift - other.shift)

    def __mul__(self, power: float | Tensor) -> Gaussian:
        """Tempering; `power` is one number or one per factor of a batch (...)."""
        wide = power.to(self.shift) if isinstance(power, Tensor) else self.shift.new_full((), power)
        return Gaussian(_under(wide, self.precision) * self.precision, _under(wide, self.shift) * self.shift)

    __rmul__ = __mul__

    def mean(self) -> Tensor:
        """Λ⁻¹η (..., d). An improper factor (no precision somewhere) has no mean, and gives NaN if it is dense."""
        if self.form == "dense":
            return torch.cholesky_solve(self.shift[..., None], cholesky(self.precision))[..., 0]
        return self.shift / _as_diagonal(self)

    def covariance(self) -> Tensor:
        """Λ⁻¹ in the form of Λ; NaN for a dense factor that is improper."""
        if self.form == "dense":
            return torch.cholesky_inverse(cholesky(self.precision))
        return 1 / self.precision


def matvec(precision: Tensor, vector: Tensor) -> Tensor:
    """Λ·vector for any form of Λ."""
    axes = precision.dim() - vector.dim()
    if axes == 1:
        return (precision @ vector[..., None])[..., 0]
    return precision * vector if axes == 0 else precision[..., None] * vector


def dense(precision: Tensor, size: int, axes: int) -> Tensor:
    """A precision as a full matrix (..., size, size); `axes` = its axes beyond the batch (0, 1 or 2)."""
    if axes == 2:
        return precision
    eye = torch.eye(size, dtype=precision.dtype, device=precision.device)
    return (precision[..., None] if axes == 0 else precision)[..., None] * eye


def kl(p: Gaussian, q: Gaussian) -> Tensor:
    """KL(p ‖ q) of two proper factors (...), neither of them dense: for baselines that fit a Gaussian."""
    gap, ratio = p.mean() - q.mean(), _as_diagonal(q) / _as_diagonal(p)
    quadratic = (gap * matvec(q.precision, gap)).sum(-1)
    return 0.5 * ((ratio - 1 - torch.log(ratio)).sum(-1) + quadratic)


def cholesky(precision: Tensor) -> Tensor:
    """The lower Cholesky factor; NaN where there is none: one factor must not end the round for all."""
    root, failed = torch.linalg.cholesky_ex(precision)
    return torch.where((failed == 0)[..., None, None], root, torch.nan)


# --- with how many bits a GPU multiplies: `--precision tf32` is for layers, not for the algebra of a method
@contextmanager
def with_tf32(on: bool) -> Iterator[None]:
    """Products of a GPU with few bits, or not, for a while."""
    switches: tuple[Any, Any] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = on
        yield
    finally:
        for switch, old in zip(switches, before, strict=True):
            switch.allow_tf32 = old


def exact_products(like: Tensor) -> AbstractContextManager[None]:
    """Products in full precision for a while, on the device of `like`.

    What is called or captured in that while is meant; a compiler (`--engine compiled`) does not see it. A host has no
    such switch, and there several clients may be at work side by side.
    """
    return with_tf32(False) if like.device.type in DEVICES else nullcontext()


def _under(power: Tensor, leaf: Tensor) -> Tensor:
    """`power` with axes appended, so that it runs along the batch of `leaf` and not along its features."""
    return power if power.dim() == 0 else power.reshape(power.shape + (1,) * (leaf.dim() - power.dim()))


def _as_diagonal(q: Gaussian) -> Tensor:
    return q.precision if q.form == "diagonal" else q.precision[..., None].expand(q.shift.shape)


def _aligned(a: Gaussian, b: Gaussian) -> tuple[Tensor, Tensor]:
    """Both precisions in the richer of the two forms."""
    if a.form == b.form:
        return a.precision, b.precision
    size = a.shift.shape[-1]
    if "dense" in (a.form, b.form):
        full = (dense(g.precision, size, FORMS.index(g.form)) for g in (a, b))
        return tuple(full)  # type: ignore[return-value]
    return _as_diagonal(a), _as_diagonal(b)
