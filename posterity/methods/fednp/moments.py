"""Moments of a Gaussian times a sigmoid, N(z; m, s) σ(f z): (8) to (16), and (33), (37), (44), (45) of the appendix.

Everything is element-wise over the last axis. With C = f z, C ~ N(f m, f² s), and r_d = E σ(C)^d / E σ(C), Stein's
lemma gives the derivatives of log Z = log E σ(C) without a division by f,

    ∂ log Z / ∂m = f (1 − r₂),      −∂² log Z / ∂m² = f² κ,      κ = r₂ + r₂² − 2 r₃  in (0, ¼],

from which the tilted mean and variance and the Gaussian site follow. The ratios come from a closed form (`closed`) or
from a fixed number of points that lie where the tilted density does (`quadrature`).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity.core import Gaussian

KINDS = ("quadrature", "closed")
POINTS = 129  # of the quadrature: see `places` for what they give
DEPTH = 40.0  # the points end where the tilted density is e^−DEPTH of its largest value
ZETA2 = math.pi / 8  # σ(x) ≈ Φ(ζ x)                                                                     # (45)
SHARE = {"closed": 0.99, "quadrature": 1 - 1e-6}  # most of the cavity's variance that a factor may take away


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


def places(m: Tensor, s: Tensor, f: Tensor, points: int = POINTS) -> tuple[Tensor, Tensor]:
    """Points u (..., points) in cavity sd, on all of the tilted density and nowhere else, and logs of their spacings.

    Along t = ±u, the sign being that of f, with β = |f| √s and the sigmoid's corner at t = c, the logarithm of the
    density is −t²/2 + min(0, β (t − c)) up to log 2. This is the smaller of two parabolas, so the interval on which it
    is within DEPTH of its largest value, which it has at c or at the nearer of 0 and β, is where both are. A trapezium
    rule needs points as close as the sigmoid's poles c ± iπ/β are: t = c + π/β sinh v with equally spaced v.

    Measured for |m| ≤ 40, s from 1e-4 to 100, |f| ≤ 100 in float64: mean, variance and log Z to 1e-9 (relative).
    To the gradient the places are constants; what is summed over them is not.
    """
    m, s, f = m.detach(), s.detach(), f.detach()
    sign, sd = torch.where(f < 0, -1.0, 1.0).to(m), torch.sqrt(s)
    corner, steep = -sign * m / sd, f.abs() * sd
    peak = torch.minimum(corner.clamp(min=0), steep)
    reach = torch.sqrt(peak**2 + 2 * DEPTH + 2 * steep * (corner - peak).clamp(min=0))
    other = torch.sqrt((steep - peak) ** 2 + 2 * DEPTH + 2 * steep * (peak - corner).clamp(min=0))
    low, high = torch.maximum(-reach, steep - other), torch.minimum(reach, steep + other)
    scale = math.pi / steep.clamp(min=1e-3)  # below, σ is a straight line wherever there is density
    begin, length = (low - corner) / scale, (high - low) / scale
    part = torch.linspace(0, 1, points, dtype=m.dtype, device=m.device)
    full = _between(begin, length)[..., None]
    half = torch.exp(0.5 * part * full)  # exp and no sinh, whose last bit depends on the place in memory
    mean = torch.exp(torch.asinh(begin))[..., None] * half
    step = 0.5 * (mean + 1 / mean) * (half - 1 / half)  # sinh v − sinh v_low = 2 cosh(v_low + half) sinh(half)
    along = begin[..., None] + step
    log_gap = 0.5 * torch.log1p(along**2) + torch.log(scale[..., None] * full / (points - 1))
    return sign[..., None] * (low[..., None] + scale[..., None] * step), log_gap


def _between(begin: Tensor, length: Tensor) -> Tensor:
    """asinh(begin + length) − asinh(begin), also where both are large and close."""
    end = begin + length
    mixed = end * torch.sqrt(1 + begin**2) + begin * torch.sqrt(1 + end**2)
    alike = torch.asinh(length * (begin + end) / torch.where(begin * end > 0, mixed, 1.0))
    return torch.where(begin * end > 0, alike, torch.asinh(end) - torch.asinh(begin))


def tilted_grid(m: Tensor, s: Tensor, f: Tensor, points: int = POINTS) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Places u in cavity sd, log weights of σ(C) N(u; 0, 1), whose sum is Z, σ(C) and 1 − σ(C), all (..., points)."""
    u, log_gap = places(m, s, f, points)
    c = f[..., None] * (m[..., None] + torch.sqrt(s)[..., None] * u)
    log_sigma, prior = F.logsigmoid(c), -0.5 * u * u - 0.5 * math.log(2 * math.pi)
    return u, log_sigma + prior + log_gap, torch.exp(log_sigma), torch.exp(log_sigma - c)  # (8), times the cavity


def quadrature_ratios(m: Tensor, s: Tensor, f: Tensor, points: int = POINTS) -> tuple[Tensor, Tensor, Tensor]:
    """log E σ, r₂ and r₃ on the grid: under the tilted weights, r₂ is the mean of σ and r₃ that of σ².

    What the closed form is compared with; a client's site comes from `slopes`, which loses fewer digits.
    """
    _, log_weight, sigma, _ = tilted_grid(m, s, f, points)
    _, other, _, _ = tilted_grid(m, s, -f, points)  # E σ(C) = 1 − E σ(−C): keeps the digits of log E σ near 0
    rest = torch.exp(torch.logsumexp(other, -1)).clamp(max=0.5)
    log_one = torch.where(f * m > 0, torch.log1p(-rest), torch.logsumexp(log_weight, -1))  # (13): log S_0
    weight = torch.softmax(log_weight, -1)
    return log_one, (weight * sigma).sum(-1), (weight * sigma**2).sum(-1)


def curvature(r2: Tensor, r3: Tensor) -> Tensor:
    """κ, never negative."""
    return (r2 + r2 * r2 - 2 * r3).clamp(min=0)


def slopes(m: Tensor, s: Tensor, f: Tensor, kind: str, points: int = POINTS) -> tuple[Tensor, Tensor]:
    """∂ log Z and −∂² log Z by the cavity's mean."""
    if kind == "closed":
        _, r2, r3 = closed_ratios(m, s, f)
        return f * (1 - r2), f * f * curvature(r2, r3)  # (33), (37) with (39)
    u, log_weight, sigma, rest = tilted_grid(m, s, f, points)
    weight = torch.softmax(log_weight, -1)
    first, mixed = (weight * rest).sum(-1), (weight * rest * sigma).sum(-1)  # 1 − r₂ and r₂ − r₃
    kappa = mixed - (weight * (rest - first[..., None]) ** 2).sum(-1)
    mean = (weight * u).sum(-1)
    spread = (weight * (u - mean[..., None]) ** 2).sum(-1)
    steep = f * f * s * mixed > 1  # equal by Stein's lemma (21); f² κ loses its digits there, 1 − spread below
    return f * first, torch.where(steep, (1 - spread) / s, f * f * kappa).clamp(min=0)


def match(m: Tensor, s: Tensor, f: Tensor, kind: str, points: int = POINTS) -> tuple[Tensor, Tensor, Gaussian]:
    """Mean and variance of the cavity N(m, s) times σ(f z), and the site: what the factor adds to the cavity.

    `m` and `s` have one shape; `f` has it too, or is one number. Sums over points are formed in float64.
    """
    dtype, f = m.dtype, f.expand(m.shape)
    if kind == "quadrature":
        m, s, f = m.double(), s.double(), f.double()
    first, second = slopes(m, s, f, kind, points)
    second = torch.minimum(second, SHARE[kind] / s)
    left = 1 - s * second
    site = Gaussian((second / left).to(dtype), ((first + m * second) / left).to(dtype))  # Algorithm 1, line 8
    return (m + s * first).to(dtype), (s * left).to(dtype), site  # (9), (10)
