"""pFedGP's binary tree over a client's classes, by 2-means of their mean embeddings; its leaves' probabilities (f).

A tree of C classes is a table (C − 1, C) of sides: +1 where a class goes left at a node, −1 where it goes right, 0
where it does not pass. Classes that are not there pass nowhere, and nodes that are not needed have no sides.
"""

from __future__ import annotations

import torch
from torch import Tensor

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


__all__ = ["grow_tree", "leaf_log_probabilities", "two_means"]
