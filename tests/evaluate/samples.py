"""Small federations of predictions, shared by the tests of this folder."""

from __future__ import annotations

import torch
from torch import Tensor


def predictions(counts: list[int], classes: int, seed: int = 0, scale: float = 1.5) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities (N, C), labels drawn from a cooler version of them (N,), offsets (clients + 1,)."""
    draw = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(sum(counts), classes, generator=draw, dtype=torch.float64)
    labels = torch.multinomial((0.6 * logits).softmax(1), 1, generator=draw)[:, 0] if len(logits) else torch.zeros(0)
    return logits.log_softmax(1), labels.long(), torch.tensor([0, *counts]).cumsum(0)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
