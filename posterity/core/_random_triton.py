"""`random.threefry` in one kernel instead of a hundred operators: the same bits. Needs Triton and a GPU."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, library

BLOCK = 256  # numbers of one program


@library.custom_op("posterity::threefry", mutates_args=())
def threefry(first: Tensor, second: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Two 32-bit words (as int64) for each counter (low, high) under the key (first, second); all broadcast."""
    words = [t.contiguous() for t in torch.broadcast_tensors(first, second, low, high)]
    x0, x1 = torch.empty_like(words[0]), torch.empty_like(words[0])
    if x0.numel():
        with torch.cuda.device_of(x0):
            _mix[(-(-x0.numel() // BLOCK),)](*words, x0, x1, x0.numel(), BLOCK=BLOCK)
    return x0, x1


@threefry.register_fake
def _(first: Tensor, second: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    like = torch.broadcast_tensors(first, second, low, high)[0]
    return torch.empty_like(like), torch.empty_like(like)


def _stacked(info: Any, axes: tuple[Any, ...], *words: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    """Under `vmap`: the mapped axis in front, the others aligned from the right."""
    own = [w.dim() - (a is not None) for w, a in zip(words, axes, strict=True)]
    lifted = [w[None] if a is None else w.movedim(a, 0) for w, a in zip(words, axes, strict=True)]
    lifted = [w.reshape(len(w), *[1] * (max(own) - n), *w.shape[1:]) for w, n in zip(lifted, own, strict=True)]
    return threefry(*lifted), (0, 0)


threefry.register_vmap(_stacked)


@triton.jit(do_not_specialize=["N"])
def _mix(first, second, low, high, x0s, x1s, N, BLOCK: tl.constexpr):
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k0 = tl.load(first + e, mask=e < N, other=0).to(tl.uint32)
    k1 = tl.load(second + e, mask=e < N, other=0).to(tl.uint32)
    x0 = tl.load(low + e, mask=e < N, other=0).to(tl.uint32) + k0
    x1 = tl.load(high + e, mask=e < N, other=0).to(tl.uint32) + k1
    k2 = k0 ^ k1 ^ 0x1BD11BDA
    x0, x1 = _turn(x0, x1, 13, 15, 26, 6, k1, k2, 1)
    x0, x1 = _turn(x0, x1, 17, 29, 16, 24, k2, k0, 2)
    x0, x1 = _turn(x0, x1, 13, 15, 26, 6, k0, k1, 3)
    x0, x1 = _turn(x0, x1, 17, 29, 16, 24, k1, k2, 4)
    x0, x1 = _turn(x0, x1, 13, 15, 26, 6, k2, k0, 5)
    tl.store(x0s + e, x0.to(tl.int64), mask=e < N)
    tl.store(x1s + e, x1.to(tl.int64), mask=e < N)


@triton.jit
def _turn(x0, x1, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, D: tl.constexpr, one, two, NUMBER: tl.constexpr):
    """Four rounds with rotations A, B, C, D, then the key words `one` and `two`."""
    x0 = x0 + x1
    x1 = ((x1 << A) | (x1 >> (32 - A))) ^ x0
    x0 = x0 + x1
    x1 = ((x1 << B) | (x1 >> (32 - B))) ^ x0
    x0 = x0 + x1
    x1 = ((x1 << C) | (x1 >> (32 - C))) ^ x0
    x0 = x0 + x1
    x1 = ((x1 << D) | (x1 >> (32 - D))) ^ x0
    return x0 + one, x1 + two + NUMBER
