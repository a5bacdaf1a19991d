"""pFedBayes, Gaussians over the weights as leaves: their divergence, draws, and proximal steps on the divergence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.core import Params, fold, normal

RHO = "rho/"
DRAW = 2**21  # folded into the key for draws of weights


def joined(params: Params, rho: Params) -> Params:
    """A Gaussian as leaves: means under the network's names, ρ under names of their own."""
    return {**params, **{RHO + n: r for n, r in rho.items()}}


def divergence(q: Params, p: Params) -> Tensor:
    """KL(q ‖ p) of two Gaussians as `joined` has them."""
    parts = []
    for n in (n for n in q if n.startswith(RHO)):
        sq, sp, gap = F.softplus(q[n]), F.softplus(p[n]), q[n.removeprefix(RHO)] - p[n.removeprefix(RHO)]
        parts.append((torch.log(sp / sq) + (sq**2 + gap**2) / (2 * sp**2) - 0.5).sum())  # (d)
    return torch.stack(parts).sum()


def nearer(mean: Tensor, other: Tensor, rate: Tensor) -> Tensor:
    """A mean after its proximal step to another one; `rate` is a/σ_p²."""
    return mean + rate / (1 + rate) * (other - mean)  # (e)


def rho_step(rho: Tensor, ratio: Tensor, rate: Tensor | float) -> Tensor:
    """How far ρ goes where the slope of the divergence in log σ is r − 1."""
    slope = torch.sigmoid(rho) / F.softplus(rho)
    return rate * slope * (ratio - 1) / (1 + 2 * rate * slope**2 * ratio.clamp(min=1))  # (f)


def personal_step(q: Params, copy: Params, rate: Tensor) -> Params:
    """q after a proximal step of `rate` on KL(q ‖ copy)."""
    found = dict(q)
    for n in (n for n in q if RHO + n in q):
        mine, theirs = F.softplus(q[RHO + n]) ** 2, F.softplus(copy[RHO + n]) ** 2
        found[n] = nearer(q[n], copy[n], rate / theirs)  # (e)
        found[RHO + n] = q[RHO + n] - rho_step(q[RHO + n], mine / theirs, rate)  # (f)
    return found


def copy_step(copy: Params, q: Params, rate: float) -> Params:
    """The copy after a proximal step of `rate` on KL(q ‖ copy)."""
    found = dict(copy)
    for n in (n for n in q if RHO + n in q):
        theirs, mine = F.softplus(copy[RHO + n]) ** 2, F.softplus(q[RHO + n]) ** 2
        found[n] = nearer(copy[n], q[n], rate / theirs)  # (e)
        ratio = (mine + (q[n] - copy[n]) ** 2) / theirs
        found[RHO + n] = copy[RHO + n] + rho_step(copy[RHO + n], ratio, rate)  # (f)
    return found


def drawn(q: Params, key: Tensor, spread: float) -> Params:
    """Weights of the network from a Gaussian, by one draw for all leaves; running statistics as they are."""
    found = {n: p for n, p in q.items() if not n.startswith(RHO)}
    moving = [n for n in found if RHO + n in q]
    sizes = [q[n].numel() for n in moving]
    noise = torch.split(normal(fold(key, DRAW), (sum(sizes),), q[moving[0]].dtype), sizes)
    for n, part in zip(moving, noise, strict=True):
        found[n] = q[n] + F.softplus(q[RHO + n]) * spread * part.reshape(q[n].shape)  # (a)
    return found
