"""Gaussians through sigmoids: moments of N(z; m, s) σ(f z), and the natural-parameter network (NPN) that uses them.

Everything is element-wise over the last axis. With C = f z, C ~ N(f m, f² s), and r_d = E σ(C)^d / E σ(C), Stein's
lemma gives the derivatives of log Z = log E σ(C) without a division by f,

    ∂ log Z / ∂m = f (1 − r₂),      −∂² log Z / ∂m² = f² κ,      κ = r₂ + r₂² − 2 r₃  in (0, ¼],

from which the tilted mean and variance and the Gaussian site follow. The ratios come from a closed form (`closed`) or
from equally spaced points (`quadrature`). Numbers are those of the FedNP paper.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.core.gaussian import Gaussian

KINDS = ("quadrature", "closed")
POINTS = 129  # equally spaced on ±SPAN sd: E σ^d is right to 1e-6 for f² s ≤ 100
SPAN = 8.0
ZETA2 = math.pi / 8  # σ(x) ≈ Φ(ζ x)                                                                     # (45)
SHARE = {"closed": 0.99, "quadrature": 1 - 1e-6}  # most of the cavity's variance that a factor may take away
FLOOR = 1e-6  # least variance after a sigmoid


def constants(power: int) -> tuple[float, float]:
    """a and b of σ(x)^d ≈ Φ(ζ a (x + b))."""
    return 2 * power * (1 - 2 ** (-1 / power)), math.log(2 ** (1 / power) - 1)  # (44)


def log_power(mean: Tensor, variance: Tensor, a: float, b: float) -> Tensor:
    """log E σ(C)^d for C ~ N(mean, variance), approximately."""
    return F.logsigmoid(a * (mean + b) / torch.sqrt(1 + ZETA2 * a * a * variance))  # (16)


def closed_ratios(m: Tensor, s: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log E σ, r₂ and r₃ by the closed form, with 0 ≤ r₃ ≤ r₂ ≤ 1."""
    one, two, three = (log_power(f * m, f * f * s, *constants(d)) for d in (1, 2, 3))  # (15)
    r2 = torch.exp(two - one).clamp(max=1)
    return one, r2, torch.minimum(torch.exp(three - one), r2)


def tilted_grid(m: Tensor, s: Tensor, f: Tensor, points: int = POINTS) -> tuple[Tensor, Tensor, Tensor]:
    """Places u (points,) in cavity sd, log weights (..., points) of σ(C) N(u; 0, 1), and σ(C) (..., points)."""
    u = torch.linspace(-SPAN, SPAN, points, dtype=m.dtype, device=m.device)
    c = f[..., None] * (m[..., None] + torch.sqrt(s)[..., None] * u)
    prior = torch.log_softmax(-0.5 * u * u, 0)
    return u, F.logsigmoid(c) + prior, torch.sigmoid(c)  # (8), times the cavity


def quadrature_ratios(m: Tensor, s: Tensor, f: Tensor, points: int = POINTS) -> tuple[Tensor, Tensor, Tensor]:
    """log E σ, r₂ and r₃ on the grid: under the tilted weights, r₂ is the mean of σ and r₃ that of σ²."""
    _, log_weight, sigma = tilted_grid(m, s, f, points)
    weight = torch.softmax(log_weight, -1)
    return torch.logsumexp(log_weight, -1), (weight * sigma).sum(-1), (weight * sigma**2).sum(-1)  # (13): log S_0


def curvature(r2: Tensor, r3: Tensor) -> Tensor:
    """κ, never negative."""
    return (r2 + r2 * r2 - 2 * r3).clamp(min=0)


def slopes(m: Tensor, s: Tensor, f: Tensor, kind: str, points: int = POINTS) -> tuple[Tensor, Tensor]:
    """∂ log Z and −∂² log Z by the cavity's mean."""
    if kind == "closed":
        _, r2, r3 = closed_ratios(m, s, f)
        return f * (1 - r2), f * f * curvature(r2, r3)  # (33), (37) with (39)
    u, log_weight, sigma = tilted_grid(m, s, f, points)
    weight = torch.softmax(log_weight, -1)
    r2, r3 = (weight * sigma).sum(-1), (weight * sigma**2).sum(-1)
    mean = (weight * u).sum(-1)
    spread = (weight * (u - mean[..., None]) ** 2).sum(-1)
    steep = f * f * s > 1  # equal by Stein's lemma (21); f² κ loses its digits there, 1 − spread below
    first = torch.where(steep, mean / torch.sqrt(s), f * (1 - r2))
    return first, torch.where(steep, (1 - spread).clamp(min=0) / s, f * f * curvature(r2, r3))


def match(m: Tensor, s: Tensor, f: Tensor, kind: str, points: int = POINTS) -> tuple[Tensor, Tensor, Gaussian]:
    """Mean and variance of the cavity N(m, s) times σ(f z), and the site: what the factor adds to the cavity.

    `m` and `s` have one shape; `f` has it too, or is one number.
    """
    f = f.expand(m.shape)
    first, second = slopes(m, s, f, kind, points)
    second = torch.minimum(second, SHARE[kind] / s)
    left = 1 - s * second
    site = Gaussian(second / left, (first + m * second) / left)  # Algorithm 1, line 8
    return m + s * first, s * left, site  # (9), (10)


def npn_linear(
    mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor | None = None, spread: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mean and variance of xW + b for x ~ N(mean, variance) and W ~ N(weight, spread), (in, out); None means 0."""
    out, var = mean @ weight, variance @ (weight * weight)
    if spread is not None:
        var = var + variance @ spread + (mean * mean) @ spread
    return (out if bias is None else out + bias), var


def npn_sigmoid(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of σ(o) for o ~ N(mean, variance)."""
    out = torch.exp(log_power(mean, variance, *constants(1)))  # (27)
    square = torch.exp(log_power(mean, variance, *constants(2)))  # (28)
    return out, (square - out * out).clamp(min=FLOOR)


def kl_each(mean: Tensor, variance: Tensor, prior_mean: Tensor, prior_variance: float | Tensor) -> Tensor:
    """KL(N(mean, variance) ‖ N(prior_mean, prior_variance)) of every element."""
    ratio = variance / prior_variance
    return 0.5 * (ratio - 1 - torch.log(ratio) + (mean - prior_mean) ** 2 / prior_variance)
