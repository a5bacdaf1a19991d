"""How clients' factors about the centroids of classes travel and add up.

A factor is a Gaussian over the centroid µ_k of class k: a client's mean feature in the class, less a centre that all
have in common, and a precision. This has two parts that add up apart: what the spread of the client's features says, a
matrix Λ or a number, and `plain`, a multiple of a unit that the server knows. If Λ is a matrix, it may be sent in three
ways (d features, Z samples of the class):

    dense       the matrix                              d²            numbers, in float64
    symmetric   its upper triangle                      d (d + 1) / 2 numbers, in float64
    low_rank    V and w of Λ = Vᵀ diag(w) V             r (d + 1)     numbers of the clients' kind, r = min(d, Z − 1)

Dense and symmetric messages are sums. Large and small precisions stand in the same entries, so these travel in float64
whatever the clients compute in: float32 would round the small ones away. Directions have no such entries, but do not
add up: `LowRank` holds one client's, and its fold multiplies them out client by client in float64, so that every total
is a `Sum` of dense factors. Where Λ comes from: `precision.py`; what the server makes of the sum: `read_centroids`.

What the server makes of the sum of the clients' factors: the centroids (13), with the prior of (4) if asked for.

Also what the centroids are good for besides the pull of (9): the head of a newcomer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import add
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.core import Gaussian, Sum, cholesky, matvec, record, tree_cast, tree_map, tree_rows
from posterity.methods.pfedvmp.class_statistics import Classes
from posterity.methods.pfedvmp.precision import low_rank, multiplied_out

TRUSTED = 1e-6  # bound of what rounding may do to a mean, relative to it; the real effect is smaller


def read_centroids(total: Sum, unit: float | Tensor, centre: Tensor, prior: bool) -> Tensor:
    """µ_k = c + Λ_k⁻¹ η_k where somebody reported the class, else the centre c; `prior` adds N(0, I) once."""
    own, plain, count = unpack(total)
    centre, plain = centre.to(plain.shift), plain * unit
    if prior:
        plain = plain + Gaussian.of(-centre, torch.ones_like(count))  # (4)
    seen = count > 0
    safe = Gaussian(torch.where(seen, plain.precision, 1), plain.shift)  # classes without a report: harmless
    if own is not None and own.form == "dense":
        moved = joint_mean(own, safe)
    else:
        moved = (safe if own is None else safe + own).mean()
    return centre + torch.where(seen[:, None], moved.nan_to_num(0, 0, 0), 0)  # (13)


def joint_mean(matrix: Gaussian, plain: Gaussian) -> Tensor:
    """The mean (K, d) of the product of dense and of isotropic factors (K); never an error, whatever their scales.

    The entries of a sum of matrices are rounded by about ε‖Λ‖, which says as much as a small precision does. Where that
    could move the mean, the eigenvalues of `matrix` that do not stand out from it count as 0, and `plain` alone, which
    was added up apart, decides in their directions. A direction about which neither says anything gets 0.
    """
    full, size = matrix + plain, matrix.shift.shape[-1]
    noise = 2 * size * torch.finfo(matrix.shift.dtype).eps * matrix.precision.flatten(1).norm(dim=1)
    inverse = torch.linalg.solve_triangular(
        cholesky(full.precision), torch.eye(size).to(matrix.shift).expand_as(full.precision), upper=False
    )
    mean = matvec(inverse.mT, matvec(inverse, full.shift))
    weak = ~(noise * inverse.flatten(1).square().sum(1) < TRUSTED)  # noise · tr Λ⁻¹; also where there is no root
    for k in torch.nonzero(weak).flatten().tolist():
        mean[k] = _spectral_mean(matrix.precision[k], matrix.shift[k], plain.precision[k], plain.shift[k], noise[k])
    return mean


def _spectral_mean(matrix: Tensor, shift: Tensor, plain: Tensor, lean: Tensor, noise: Tensor) -> Tensor:
    """The mean (d,) where only eigenvalues of `matrix` above `noise` count, from an eigendecomposition on the host."""
    if not bool(matrix.isfinite().all()):
        return torch.full_like(shift, torch.nan)
    values, vectors = (found.to(shift) for found in torch.linalg.eigh(matrix.cpu()))
    told = values > noise
    precision = torch.where(told, values, 0) + plain
    along = torch.where(told, vectors.mT @ shift, 0) + vectors.mT @ lean
    return vectors @ torch.where(precision > 0, along / torch.where(precision > 0, precision, 1), 0)


def nearest_centroid(first: dict[str, Tensor], centroids: Tensor, known: Tensor, newcomer: Tensor) -> dict[str, Tensor]:
    """The head w_k = 2µ_k, b_k = −‖µ_k‖² for a newcomer; `first` for a member, or if the head is not one layer.

    A class whose centroid nobody knows gets the mean of the others' logits less a margin, and so is never the nearest.
    """
    weight, bias = 2 * centroids, -(centroids**2).sum(-1)
    if sorted(tuple(p.shape) for p in first.values()) != [tuple(bias.shape), tuple(weight.shape)]:
        return first
    some, share = known > 0, (known > 0) / (known > 0).sum().clamp(min=1)
    below = share.to(bias) @ bias + torch.where(some, bias, 0).amin() - 1
    weight = torch.where(some[:, None], weight, share.to(weight) @ weight)
    use = (newcomer > 0) & some.any()
    return {
        n: torch.where(use, weight if p.dim() == 2 else torch.where(some, bias, below), p) for n, p in first.items()
    }


FORMS = ("dense", "symmetric", "low_rank")
Take = Callable[..., Tensor]  # the next array of a message: of its name, shape and type


@record
class LowRank:
    """One client's factors with precisions Vᵀ diag(w) V and 1 unit; in memory all have d directions, most of them 0."""

    basis: Tensor  # V (K, d, d)
    weight: Tensor  # w (K, d)
    mean: Tensor  # (K, d), less the centre
    count: Tensor  # Z (K,)
    secure_sum: ClassVar[bool] = False  # the server sees every client's directions

    @staticmethod
    def of(found: Classes, mean: Tensor) -> LowRank:
        """The factors whose precision is the pseudo-inverse of the covariance, and a unit."""
        basis, weight = low_rank(found)
        spare = found.mean.shape[1] - weight.shape[1]
        return LowRank(F.pad(basis, (0, 0, 0, spare)), F.pad(weight, (0, spare)), mean, found.count)

    def expanded(self) -> Sum:
        """The same with dense precisions."""
        some = (self.count > 0).to(self.mean)
        own = Gaussian.of(self.mean, multiplied_out(self.basis, self.weight))
        return pack(own, Gaussian.of(self.mean, some), self.count)

    @staticmethod
    def fold(stack: LowRank) -> Sum:
        """The sum of the dense factors; one client at a time, so that a stack of matrices need not be held."""
        total: Sum = reduce(add, (tree_rows(stack, i).expanded() for i in range(len(stack.count))))
        return total

    def wire_bytes(self) -> int:
        """Without the padding: Z, and for a class with samples its mean and r = min(d, Z − 1) directions with weights.

        The receiver knows r from Z; a direction that the rank cut removed is sent as zeros.
        """
        d, count = self.mean.shape[-1], self.count.double().nan_to_num()
        rank = (count - 1).clamp(0, d)
        numbers = 1 + (count > 0) * (d + rank * (d + 1))
        return int(numbers.sum()) * self.mean.element_size()

    def to_arrays(self) -> dict[str, Tensor]:
        """What `wire_bytes` counts; of one client."""
        some, used = self._used()
        return {"count": self.count, "mean": self.mean[some], "basis": self.basis[used], "weight": self.weight[used]}

    def from_arrays(self, take: Take) -> LowRank:
        """The same with what another client sent, which has the shapes of this one."""
        zero = replace(tree_map(torch.zeros_like, self), count=take("count", self.count.shape, self.count.dtype))
        some, used = zero._used()
        sizes, d = {"mean": some, "basis": used, "weight": used}, self.mean.shape[-1]
        for name, where in sizes.items():
            shape = (int(where.sum()), d)[: 1 if name == "weight" else 2]
            getattr(zero, name)[where] = take(name, shape, self.mean.dtype)
        return zero

    def _used(self) -> tuple[Tensor, Tensor]:
        """Which classes have samples (K,), and which of their directions travel (K, d)."""
        directions = torch.arange(self.mean.shape[-1], device=self.count.device)
        return self.count > 0, directions < (self.count - 1)[:, None]


def pack(own: Gaussian | None, plain: Gaussian, count: Tensor, form: str = "dense") -> Sum:
    """Both parts of the factors (K) and class counts (K,) as they are sent; of some modes `plain` is all there is."""
    rest = {"plain": plain, "count": count}
    if own is None or own.form != "dense":
        return Sum(rest if own is None else {"factor": own, **rest})
    if form == "dense":
        return Sum({"matrix": own, **rest})
    rows, columns = _upper(own.shift)
    return Sum({"matrix": {"upper": own.precision[..., rows, columns], "shift": own.shift}, **rest})


def on_the_wire(message: Sum | LowRank, dtype: torch.dtype) -> Sum | LowRank:
    """In the clients' precision, but for matrices that are to be summed: these stay in float64."""
    if isinstance(message, LowRank):
        cast: LowRank = tree_cast(message, dtype)
        return cast
    return Sum({n: v if n == "matrix" else tree_cast(v, dtype) for n, v in message.value.items()})


def unpack(total: Sum) -> tuple[Gaussian | None, Gaussian, Tensor]:
    """Both parts of the factors and class counts from a total of any form."""
    own, value = total.value.get("matrix", total.value.get("factor")), total.value
    if not isinstance(own, dict):
        return own, value["plain"], value["count"]
    rows, columns = _upper(own["shift"])
    full = own["upper"].new_zeros(*own["shift"].shape, own["shift"].shape[-1])
    full[..., rows, columns] = own["upper"]
    full[..., columns, rows] = own["upper"]
    return Gaussian(full, own["shift"]), value["plain"], value["count"]


def _upper(like: Tensor) -> Tensor:
    """Rows and columns of the upper triangle (2, d (d + 1) / 2)."""
    return torch.triu_indices(like.shape[-1], like.shape[-1], device=like.device)
