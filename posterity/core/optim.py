"""Optimisers as functions: `open` makes the state, `update` returns new parameters and a new state.

They follow `torch.optim` to rounding (tested), but hold no tensors and write to none.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from posterity.core.tree import Tree, tree_leaves, tree_map


class Optimiser(Protocol):
    def open(self, params: Tree) -> Tree: ...

    def update(self, gradient: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]: ...


def norm(tree: Tree) -> Tensor:
    """Euclidean norm of all leaves together; its gradient at 0 is 0 and not NaN."""
    square = torch.stack([(leaf**2).sum() for leaf in tree_leaves(tree)]).sum()
    some = square > 0
    return torch.where(some, torch.sqrt(torch.where(some, square, 1)), 0)


def clipped(gradient: Tree, limit: float | None) -> Tree:
    """`gradient`, shortened to the norm `limit` if it is longer."""
    if limit is None:
        return gradient
    scale = (limit / (norm(gradient) + 1e-6)).clamp(max=1)
    return tree_map(lambda g: g * scale, gradient)


def _decayed(gradient: Tree, params: Tree, decay: float) -> Tree:
    return tree_map(lambda g, p: g + decay * p, gradient, params) if decay else gradient


@dataclass(frozen=True)
class SGD:
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None

    def open(self, params: Tree) -> Tree:
        return tree_map(torch.zeros_like, params) if self.momentum else ()

    def update(self, gradient: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        gradient = _decayed(clipped(gradient, self.clip), params, self.weight_decay)
        if self.momentum:
            gradient = state = tree_map(lambda v, g: self.momentum * v + g, state, gradient)
        return tree_map(lambda p, g: torch.sub(p, g, alpha=self.lr), params, gradient), state


@dataclass(frozen=True)
class Adam:
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float | None = None

    def open(self, params: Tree) -> Tree:
        zeros = tree_map(torch.zeros_like, params)
        count = torch.zeros_like(tree_leaves(params)[0].sum())
        return {"count": count, "mean": zeros, "square": zeros}

    def update(self, gradient: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        gradient = _decayed(clipped(gradient, self.clip), params, self.weight_decay)
        count = state["count"] + 1
        mean = tree_map(lambda m, g: self.beta1 * m + (1 - self.beta1) * g, state["mean"], gradient)
        square = tree_map(lambda s, g: self.beta2 * s + (1 - self.beta2) * g * g, state["square"], gradient)
        rate = self.lr / (1 - self.beta1**count)
        root = torch.sqrt(1 - self.beta2**count)
        moved = tree_map(lambda p, m, s: p - rate * m / (torch.sqrt(s) / root + self.eps), params, mean, square)
        return moved, {"count": count, "mean": mean, "square": square}


@dataclass(frozen=True)
class RMSprop:
    lr: float = 0.01
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float | None = None

    def open(self, params: Tree) -> Tree:
        return tree_map(torch.zeros_like, params)

    def update(self, gradient: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        gradient = _decayed(clipped(gradient, self.clip), params, self.weight_decay)
        square = tree_map(lambda s, g: self.alpha * s + (1 - self.alpha) * g * g, state, gradient)
        moved = tree_map(lambda p, g, s: p - self.lr * g / (torch.sqrt(s) + self.eps), params, gradient, square)
        return moved, square


@dataclass(frozen=True)
class Groups:
    """An optimiser for each group of leaves, as PyTorch's parameter groups; a clip sees the gradient of its group."""

    group: Callable[[str], int]  # from a leaf's name to the place of its optimiser
    optimisers: tuple[Optimiser, ...]

    def _parted(self, tree: Tree) -> dict[int, Tree]:
        places = sorted({self.group(n) for n in tree})
        return {i: {n: leaf for n, leaf in tree.items() if self.group(n) == i} for i in places}

    def open(self, params: Tree) -> Tree:
        return {str(i): self.optimisers[i].open(some) for i, some in self._parted(params).items()}

    def update(self, gradient: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        parts, slopes = self._parted(params), self._parted(gradient)
        done = {i: self.optimisers[i].update(slopes[i], state[str(i)], some) for i, some in parts.items()}
        moved = {n: leaf for some, _ in done.values() for n, leaf in some.items()}
        return {n: moved[n] for n in params}, {str(i): after for i, (_, after) in done.items()}
