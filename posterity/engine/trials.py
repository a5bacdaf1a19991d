"""What a step of a network costs: gradients of some clients in several ways, timed and compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from posterity.core.method import Params
from posterity.core.tree import tree_leaves, tree_map

TRIES = 3  # of which the fastest counts
STRICT, LOOSE = 0.02, 0.3  # of a gradient's length: with few bits other pixels may win where they are pooled


@dataclass(frozen=True)
class Trial:
    """The samples and the leaves that every way is tried with."""

    x: Tensor  # (rows, ...) a client's batch
    params: Params
    clients: int  # at once

    @staticmethod
    def of(x: Tensor, params: Params, rows: int, clients: int) -> Trial:
        """A batch of `rows` samples, repeated from `x` where there are fewer."""
        return Trial(x[torch.arange(rows, device=x.device) % len(x)], params, clients)

    def seconds(self, model: Any, alone: bool) -> float:
        """Of a step of all clients: one after another, or at once."""
        step = self._alone(model) if alone else self._together(model, self.clients)
        return _fastest(step, self.x.device) * (self.clients if alone else 1)

    def check(self, other: Any, model: Any) -> None:
        """Refuse `other` if its gradients are not those of `model`: a kernel that a compiler got wrong must be seen."""
        if other is model:
            return
        rough = getattr(model, "compute", None) is not None or torch.backends.cuda.matmul.allow_tf32
        limit = LOOSE if rough else STRICT
        for mine, theirs in zip(*(tree_leaves(self._together(m, 2)()) for m in (other, model)), strict=True):
            if not float((mine - theirs).norm()) <= limit * float(theirs.norm()):
                raise ValueError(f"convolutions computed by {other.way!r} are wrong on this machine (gradients differ "
                                 f"from PyTorch's own by more than {limit:.0%}): use --convolution native")  # fmt: skip

    def _together(self, model: Any, clients: int) -> Callable[[], Any]:
        """Gradients of so many clients, all of which have the same parameters and samples."""
        many = tree_map(lambda leaf: leaf.expand(clients, *leaf.shape).clone(), self.params)
        inputs = self.x.expand(clients, *self.x.shape).clone()
        return lambda: vmap(lambda p, x: grad(lambda q: self._loss(model, q, x))(p))(many, inputs)

    def _alone(self, model: Any) -> Callable[[], Any]:
        """The gradient of one client, by autograd: as fast as the recording that a loop replays."""
        leaves = {n: p.detach().clone().requires_grad_(n in model.trainable) for n, p in self.params.items()}
        moving = [p for p in leaves.values() if p.requires_grad]
        return lambda: torch.autograd.grad(self._loss(model, leaves, self.x), moving, allow_unused=True)

    def _loss(self, model: Any, params: Params, x: Tensor) -> Tensor:
        mask, key = x.new_ones(len(x)), torch.zeros(2, dtype=torch.int64, device=x.device)
        loss: Tensor = (model(params, x, mask=mask, train=True, key=key)[0] ** 2).sum()
        return loss


def _fastest(step: Callable[[], Any], device: torch.device) -> float:
    best = float("inf")
    for attempt in range(TRIES + 1):  # the first warms up
        begun = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - begun) if attempt else best
    return best


def use_onednn(on: bool) -> None:
    """Whether PyTorch may compute by oneDNN on a CPU. The switch is one for the whole process."""
    torch.backends.mkldnn.enabled = on  # type: ignore[assignment]


@contextmanager
def with_onednn(on: bool) -> Iterator[None]:
    """The switch of oneDNN for a while."""
    before = bool(torch.backends.mkldnn.enabled)
    use_onednn(on)
    try:
        yield
    finally:
        use_onednn(before)


@contextmanager
def with_threads(count: int) -> Iterator[None]:
    """So many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


__all__ = ["Trial", "use_onednn", "with_onednn", "with_threads"]
