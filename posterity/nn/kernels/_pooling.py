"""Largest of every 2 × 2 pixels, of images that lie channel last, and its transposes. Needs Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # numbers of one program
LARGEST = 2**31 - 1  # place that 32 bits can name; the division that finds a pixel is slower with 64


def pool(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest (..., C, H/2, W/2) of images (..., C, H, W), and which of the four it was."""
    held, out = _last(x), _halved(x, x.dtype)
    place = torch.empty_like(out, dtype=torch.int8)
    with torch.cuda.device_of(x):
        _pool[_programs(out)](held, out, place, out.numel(), **_sizes(held))
    return out.movedim(-1, -3), place.movedim(-1, -3)


def take(x: Tensor, place: Tensor) -> Tensor:
    """The pixels of x that `place` names."""
    held, out = _last(x), _halved(x, x.dtype)
    with torch.cuda.device_of(x):
        _take[_programs(out)](held, _last(place), out, out.numel(), **_sizes(held))
    return out.movedim(-1, -3)


def put(y: Tensor, place: Tensor, size: list[int]) -> Tensor:
    """Images of height and width `size` that hold y at `place`, else 0."""
    out = y.new_empty(*y.shape[:-3], *size, y.shape[-3])
    with torch.cuda.device_of(y):
        _put[_programs(out)](_last(y), _last(place), out, out.numel(), **_sizes(out))
    return out.movedim(-1, -3)


def _last(image: Tensor) -> Tensor:
    return image.movedim(-3, -1).contiguous()


def _halved(x: Tensor, kind: torch.dtype) -> Tensor:
    return x.new_empty(*x.shape[:-3], x.shape[-2] // 2, x.shape[-1] // 2, x.shape[-3], dtype=kind)


def _sizes(large: Tensor) -> dict[str, int]:
    shape = {"H": large.shape[-3], "W": large.shape[-2], "C": large.shape[-1], "BLOCK": BLOCK}
    return shape | {"WIDE": large.numel() + BLOCK > LARGEST}


def _programs(out: Tensor) -> tuple[int]:
    return (-(-out.numel() // BLOCK),)


@triton.jit
def _numbers(BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """The entries of this program."""
    first = tl.program_id(0)
    if WIDE:
        first = first.to(tl.int64)
    return first * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def _corner(e, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr):
    """Where the first of the four pixels of entry e of the small image lies."""
    c, j, i = e % C, e // C % (W // 2), e // (C * (W // 2)) % (H // 2)
    return ((e // (C * (W // 2) * (H // 2)) * H + 2 * i) * W + 2 * j) * C + c


@triton.jit(do_not_specialize=["N"])
def _pool(x, y, place, N, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
          WIDE: tl.constexpr):  # fmt: skip
    e = _numbers(BLOCK, WIDE)
    at = _corner(e, H, W, C)
    best = tl.load(x + at, mask=e < N)
    which = e * 0
    for number in tl.static_range(1, 4):
        value = tl.load(x + at + (number // 2 * W + number % 2) * C, mask=e < N)
        better = (value > best) | (value != value)  # the first of equals, and NaN wins: as PyTorch has it
        best, which = tl.where(better, value, best), tl.where(better, number, which)
    tl.store(y + e, best, mask=e < N)
    tl.store(place + e, which.to(tl.int8), mask=e < N)


@triton.jit(do_not_specialize=["N"])
def _take(x, place, y, N, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
          WIDE: tl.constexpr):  # fmt: skip
    e = _numbers(BLOCK, WIDE)
    which = tl.load(place + e, mask=e < N, other=0).to(tl.int32)
    value = tl.load(x + _corner(e, H, W, C) + (which // 2 * W + which % 2) * C, mask=e < N)
    tl.store(y + e, value, mask=e < N)


@triton.jit(do_not_specialize=["N"])
def _put(y, place, x, N, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
          WIDE: tl.constexpr):  # fmt: skip
    e = _numbers(BLOCK, WIDE)
    c, j, i = e % C, e // C % W, e // (C * W) % H
    inside = (e < N) & (i < H // 2 * 2) & (j < W // 2 * 2)
    at = ((e // (C * W * H) * (H // 2) + i // 2) * (W // 2) + j // 2) * C + c
    which = tl.load(place + at, mask=inside, other=-1).to(tl.int32)
    value = tl.load(y + at, mask=inside & (which == i % 2 * 2 + j % 2), other=0.0)
    tl.store(x + e, value, mask=e < N)
