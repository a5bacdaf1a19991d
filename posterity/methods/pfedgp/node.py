"""pFedGP's Gaussian-process classifier at one node of the tree: kernel (a), posterior (b), (c), prediction (d), (e).

Every function speaks about one chain of one node and is mapped over both. Rows that are not at the node have weight
√ω = 0: the posterior does not see them, and neither do draws, for the axis of the samples comes first in each.

pFedGP's binary tree over a client's classes, by 2-means of their mean embeddings; its leaves' probabilities (f).

A tree of C classes is a table (C − 1, C) of sides: +1 where a class goes left at a node, −1 where it goes right, 0
where it does not pass. Classes that are not there pass nowhere, and nodes that are not needed have no sides.
"""

import numpy as np
import torch
from torch import Tensor

from posterity.core import fold, normal
from posterity.methods.pfedgp.polya_gamma import TERMS, exponential, from_exponentials, mean_of

LLOYD = 8  # iterations of 2-means, far more than ten class means need
UNSEEN = -30.0  # log-probability of a class without samples, up to normalisation


def grow_tree(means: Tensor, count: Tensor) -> Tensor:
    """Sides (C − 1, C) from class means (C, d) and how many samples each class has (C,)."""
    number = torch.arange(len(count), device=means.device)
    present, group, sides = count > 0, torch.zeros_like(number), []
    apart = ((means[:, None] - means) ** 2).sum(-1)  # (C, C)
    for node in range(len(count) - 1):
        members = (group[:, None] == number) & present[:, None]  # (C classes, C groups)
        several = members.sum(0) > 1
        first = number == torch.argmax(several.to(torch.int64))
        inside = (members & several & first).any(1)  # of the first group of several classes
        left = two_means(means, inside, apart)
        sides.append(torch.where(left, 1, -1).to(means) * inside.to(means))
        group = torch.where(inside & ~left, node + 1, group)
    return torch.stack(sides)


def two_means(means: Tensor, inside: Tensor, apart: Tensor) -> Tensor:
    """Which of the classes `inside` go left (C,), from the two that are farthest apart; at least one on each side."""
    number = torch.arange(len(inside), device=means.device)
    pair = torch.argmax(torch.where(inside[:, None] & inside, apart, -1).flatten())
    first = number == pair // len(inside)
    a, b = first.to(means) @ means, (number == pair % len(inside)).to(means) @ means
    for _ in range(LLOYD):
        left = ((means - a) ** 2).sum(-1) <= ((means - b) ** 2).sum(-1)
        here, there = ((inside & side).to(means) for side in (left, ~left))
        a, b = here @ means / here.sum().clamp(min=1), there @ means / there.sum().clamp(min=1)
    alike = ~(inside & ~left).any()  # all means are equal: one class by itself
    return torch.where(alike, first, left)


def leaf_log_probabilities(branches: Tensor, sides: Tensor, count: Tensor) -> Tensor:
    """log p(y | x) (B, C) from the log-probabilities (2, nodes, B) of going left and right at every node."""
    left, right = (branches[i].T @ side.to(branches) for i, side in enumerate((sides > 0, sides < 0)))
    unseen = torch.where(count > 0, 0.0, UNSEEN).to(branches)
    return torch.log_softmax(left + right + unseen, -1)  # (f)


LADDER = (1.0, 10.0, 100.0)  # multiples of the jitter that are tried
LEAST = 1e-8  # smallest variance of a prediction
GRID, SHARE = np.polynomial.hermite_e.hermegauss(32)  # E g(x) of a standard normal is Σ share · g(grid)


def unit(z: Tensor) -> Tensor:
    """Rows of length 1; a row of zeros stays."""
    return z / (z**2).sum(-1, keepdim=True).clamp(min=torch.finfo(z.dtype).tiny).sqrt()


def kernel(u: Tensor, v: Tensor, scale: float, length: float) -> Tensor:
    """k(u, v) (n, m) of the rows of u and v."""
    square = (u**2).sum(-1)[:, None] + (v**2).sum(-1) - 2 * u @ v.T
    return scale * torch.exp(-square.clamp(min=0) / (2 * length**2))  # (a)


def alone(k: Tensor, mask: Tensor) -> Tensor:
    """K in which rows with mask 0 are independent of all others."""
    return k * mask[:, None] * mask + torch.diag(1 - mask)


def steadied(k: Tensor, jitter: float) -> tuple[Tensor, Tensor]:
    """δ and the lower factor of K + δI, for the first δ that has one; NaN if none has."""
    eye = torch.eye(len(k), dtype=k.dtype, device=k.device)
    steps = torch.stack([k.new_full((), step * jitter) for step in LADDER])
    found = torch.linalg.cholesky_ex(k + steps[:, None, None] * eye)
    delta, root = steps[-1], torch.full_like(k, torch.nan)
    for step, info, low in reversed(list(zip(steps, found.info, found.L, strict=True))):
        delta = torch.where(info == 0, step, delta)
        root = torch.where(info == 0, low, root)
    return delta, root


def factor(k: Tensor, weight: Tensor) -> Tensor:
    """The lower factor of S = I + √Ω K √Ω, whose eigenvalues are at least 1."""
    eye = torch.eye(len(k), dtype=k.dtype, device=k.device)
    return torch.linalg.cholesky_ex(weight[:, None] * k * weight + eye).L


def solve(low: Tensor, right: Tensor) -> Tensor:
    half = torch.linalg.solve_triangular(low, right[:, None], upper=False)
    return torch.linalg.solve_triangular(low.mT, half, upper=True)[:, 0]  # cholesky_solve cannot be captured on a GPU


def gibbs(k: Tensor, root: Tensor, kappa: Tensor, key: Tensor, steps: int) -> Tensor:
    """The last ω (n,) of a chain of `steps` steps; κ (n,) is 0 for rows that are not at the node."""
    inside, start = (kappa != 0).to(k), k @ kappa
    noise = normal(fold(key, 0), (len(k), steps, 2), k.dtype)
    lots = exponential(fold(key, 1), (len(k), steps + 1, TERMS), k.dtype)
    omega = from_exponentials(lots[:, 0], torch.zeros_like(kappa))
    for step in range(steps):
        weight = inside * omega.sqrt()
        prior = root @ noise[:, step, 0]
        pull = solve(factor(k, weight), weight * (start + prior) + noise[:, step, 1])
        f = prior + k @ (kappa - weight * pull)  # (b) by Matheron's rule: a draw of the prior, corrected
        omega = from_exponentials(lots[:, step + 1], f)  # (c)
    return omega


def mean_field(k: Tensor, kappa: Tensor, steps: int) -> Tensor:
    """ω (n,) after `steps` rounds of q(f) = N(Σ̃κ, Σ̃) and ω = E PG(1, √E f²)."""
    inside, omega = (kappa != 0).to(k), torch.full_like(kappa, 0.25)
    for _ in range(steps):
        mean, variance = predictive(k, k, k.diagonal(), kappa, inside * omega)
        omega = mean_of(torch.sqrt(mean**2 + variance))  # (c)
    return omega


def predictive(k: Tensor, cross: Tensor, prior: Tensor, kappa: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance (m,) of f* from K (n, n), k* (n, m), k** () or (m,), κ and ω (n,), which is 0 off the node."""
    weight = omega.sqrt()
    right = weight[:, None] * torch.cat((cross, (k @ kappa)[:, None]), 1)
    half = torch.linalg.solve_triangular(factor(k, weight), right, upper=False)  # L⁻¹√Ω k*, L⁻¹√Ω Kκ of S = LLᵀ
    half, pull = half[:, :-1], half[:, -1]
    return cross.T @ kappa - half.T @ pull, (prior - (half**2).sum(0)).clamp(min=LEAST)  # (d)


def log_sigmoid(f: Tensor) -> Tensor:
    """PyTorch's own fails inside two `vmap`s on a GPU (2.11); beyond the threshold softplus is the identity."""
    return -torch.nn.functional.softplus(-f, threshold=50)


def branch_log_probabilities(mean: Tensor, variance: Tensor) -> Tensor:
    """log p(left) and log p(right) (2, m) of means and variances (chains, m)."""
    # filled on the device: what is copied to it cannot be captured
    grid, share = (torch.stack([mean.new_full((), a) for a in some.tolist()]) for some in (GRID, SHARE / SHARE.sum()))
    f = mean[..., None] + variance.sqrt()[..., None] * grid  # (chains, m, grid)
    both = torch.log(share) + log_sigmoid(torch.stack((f, -f)))
    return torch.logsumexp(torch.logsumexp(both, -1), 1) - np.log(len(mean))  # (e)
