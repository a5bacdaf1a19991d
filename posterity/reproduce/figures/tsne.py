"""t-SNE, exact and small: points of many dimensions in a plane, neighbours beside neighbours (van der Maaten and Hinton
2008). All pairs are compared, so it is for some hundreds of points. The start is the first two principal components, so
nothing is drawn at random and the same points give the same picture.

    p_j|i ∝ exp(−‖x_i − x_j‖² β_i), β_i such that the row has the perplexity asked for;  p_ij = (p_j|i + p_i|j) / 2N
    q_ij  ∝ 1 / (1 + ‖y_i − y_j‖²);  minimise KL(p ‖ q)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MOST = 500  # points: every step looks at all pairs
HALVINGS = 100  # of the interval in which a row's β lies
EXAGGERATION, EARLY = (
    12.0,
    250,
)  # p is multiplied by the one for the first so many steps: clusters form before they part
START = 1e-4  # sd of the first coordinates


def squared_distances(x: Tensor) -> Tensor:
    """(N, N), exactly 0 on the diagonal."""
    found = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square()
    return found.fill_diagonal_(0.0)


def conditional(distances: Tensor, perplexity: float) -> Tensor:
    """p_j|i (N, N): every row has the perplexity exp(entropy) that is asked for, found by bisection of log β_i."""
    n, wanted = len(distances), math.log(perplexity)
    if not 1 <= perplexity < n:
        raise ValueError(f"a perplexity of {perplexity:g} was asked for {n} points: give one from 1 to below {n}")
    itself = torch.eye(n, dtype=torch.bool, device=distances.device)
    unit = distances.sum(1, keepdim=True) / max(n - 1, 1)  # β is measured in it, whatever the features' scale
    near = torch.where(unit > 0, distances / unit.clamp(min=torch.finfo(distances.dtype).tiny), 0.0)
    low, high = near.new_full((n, 1), -60.0), near.new_full((n, 1), 60.0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        p, entropy = _row(near, middle.exp(), itself)
        low, high = torch.where(entropy > wanted, middle, low), torch.where(entropy > wanted, high, middle)
    return p


def _row(near: Tensor, beta: Tensor, itself: Tensor) -> tuple[Tensor, Tensor]:
    logs = (-near * beta).masked_fill(itself, -math.inf).log_softmax(1)
    p = logs.exp()
    return p, -(p * logs.masked_fill(itself, 0.0)).sum(1, keepdim=True)


def joint(x: Tensor, perplexity: float) -> Tensor:
    """p_ij of points (N, d): symmetric, sums to one."""
    p = conditional(squared_distances(x), perplexity)
    return (p + p.T) / (2 * len(p))


def _kernel(y: Tensor) -> Tensor:
    """1 / (1 + ‖y_i − y_j‖²), and 0 for a point and itself."""
    return (1 / (1 + squared_distances(y))).fill_diagonal_(0.0)


def divergence(p: Tensor, y: Tensor) -> Tensor:
    """KL(p ‖ q) of an arrangement y (N, 2)."""
    kernel = _kernel(y)
    tiny = torch.finfo(p.dtype).tiny
    return (p * (p.clamp(min=tiny) / (kernel / kernel.sum()).clamp(min=tiny)).log()).sum()


def gradient(p: Tensor, y: Tensor) -> Tensor:
    """Of the divergence: 4 Σ_j (p_ij − q_ij) (y_i − y_j) / (1 + ‖y_i − y_j‖²)."""
    kernel = _kernel(y)
    pull = (p - kernel / kernel.sum()) * kernel
    return 4 * (pull.sum(1, keepdim=True) * y - pull @ y)


def first_components(x: Tensor) -> Tensor:
    """The first two principal components (N, 2), the first with sd `START`; signs as the largest entries have them."""
    centred = x - x.mean(0)
    u, s, _ = torch.linalg.svd(centred, full_matrices=False)
    found = torch.zeros(len(x), 2, dtype=x.dtype, device=x.device)
    found[:, : min(2, len(s))] = (u * s)[:, :2]
    largest = found.gather(0, found.abs().argmax(0, keepdim=True))
    found = found * torch.where(largest < 0, -1.0, 1.0)
    spread = found[:, 0].std()
    return found * (START / spread) if spread > 0 else found


def arrange(x: Tensor, perplexity: float = 30.0, steps: int = 750) -> tuple[Tensor, float]:
    """Coordinates (N, 2) of points (N, d), and the divergence that is left. A perplexity above a third of the points
    is lowered to that."""
    if len(x) > MOST:
        raise ValueError(
            f"{len(x)} points were given, and all pairs of at most {MOST} are compared: choose some of them"
        )
    x = x.to(torch.float64)
    p = joint(x, max(min(perplexity, (len(x) - 1) / 3), 1.0))
    y = first_components(x)
    speed, gain = torch.zeros_like(y), torch.ones_like(y)
    rate, early = max(len(x) / EXAGGERATION / 4, 50.0), min(EARLY, steps // 3)
    for step in range(steps):
        slope = gradient(p * EXAGGERATION if step < early else p, y)
        gain = torch.where(slope.sign() == speed.sign(), gain * 0.8, gain + 0.2).clamp(min=0.01)
        speed = (0.5 if step < early else 0.8) * speed - rate * gain * slope
        y = y + speed
    return y - y.mean(0), float(divergence(p, y))
