"""How clients' factors about the centroids of classes travel and add up, and the centroids (13) that their sum gives.

A factor is a Gaussian over the centroid µ_k of class k: a client's mean feature in the class, less a centre that all
have in common, and a precision. This has two parts that add up apart: what the spread of the client's features says, a
matrix Λ or a number, and `plain`, a multiple of a unit that the server knows. If Λ is a matrix, it is sent as it is
(`dense`: d² numbers) or as its upper triangle (`symmetric`: d (d + 1) / 2). Large and small precisions stand in the
same entries, so these travel in float64 whatever the clients compute in: float32 would round the small ones away.
Where Λ comes from: `precision.py`.

Also what the centroids are good for besides the pull of (9): the head of a newcomer.
"""

import torch
from torch import Tensor

from posterity.core import Gaussian, Sum, cholesky, matvec, tree_cast

FORMS = ("dense", "symmetric")
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


def pack(own: Gaussian | None, plain: Gaussian, count: Tensor, form: str = "dense") -> Sum:
    """Both parts of the factors (K) and class counts (K,) as they are sent; of some modes `plain` is all there is."""
    rest = {"plain": plain, "count": count}
    if own is None or own.form != "dense":
        return Sum(rest if own is None else {"factor": own, **rest})
    if form == "dense":
        return Sum({"matrix": own, **rest})
    rows, columns = _upper(own.shift)
    return Sum({"matrix": {"upper": own.precision[..., rows, columns], "shift": own.shift}, **rest})


def on_the_wire(message: Sum, dtype: torch.dtype) -> Sum:
    """In the clients' precision, but for matrices: these stay in float64."""
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
