"""Random draws that are functions of a key: no generator, no hidden state, equal under any stacking.

The generator is Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
1, 2, 3", SC 2011), written in tensor operations so that it runs under `vmap` and on any device. A key is an int64
tensor of shape (2,) holding two 32-bit words. Number i of a draw depends on the key and on i alone, so a draw of shape
(rows, ...) is *prefix-stable*: asking for more rows does not change the first ones. Put the batch axis first.
"""

import math
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def threefry(key: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Two 32-bit words (as int64) for each counter (low, high) under `key` (..., 2)."""
    k0, k1 = key[..., 0], key[..., 1]
    if key.is_cuda and _has_triton():
        from posterity.core._random_triton import threefry as in_one_kernel  # the same bits

        pair: tuple[Tensor, Tensor] = in_one_kernel(k0, k1, low, high)
        return pair
    words = (k0, k1, k0 ^ k1 ^ PARITY)
    x0, x1 = low + k0, (high + k1) & WORD
    for block in range(5):
        for turn in ROTATIONS[block % 2]:
            x0 = x0 + x1  # of its 64 bits the lower 32 count; the sums of 20 rounds and 5 keys do not overflow
            x1 = (((x1 << turn) | (x1 >> (32 - turn))) ^ x0) & WORD
        x0 = x0 + words[(block + 1) % 3]
        x1 = (x1 + words[(block + 2) % 3] + block + 1) & WORD
    return x0 & WORD, x1


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def make_key(seed: int, device: torch.device | str = "cpu") -> Tensor:
    """The root key of a seed (2,)."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"a seed is a whole number from 0 to 2^63 - 1; {seed} was given")
    return torch.tensor([seed & WORD, seed >> 32], dtype=torch.int64, device=device)


def fold(key: Tensor, data: int | Tensor) -> Tensor:
    """A new key from `key` (..., 2) and a number; other numbers give independent keys. Broadcasts over `data`."""
    if isinstance(data, int):  # made on the device: a copy from the host would make it wait
        data = torch.full((), data, dtype=torch.int64, device=key.device)
    number = data.to(torch.int64)
    return torch.stack(threefry(key, number & WORD, (number >> 32) & WORD), -1)


def bits(key: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Two independent 32-bit words for each of `count` positions."""
    position = torch.arange(count, device=key.device)
    return threefry(key, position, torch.zeros_like(position))


def uniform(key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Uniform on [0, 1), never 1 in any precision."""
    x0, x1 = bits(key, math.prod(shape))
    if dtype == torch.float64:
        return (((x0 << 21) | (x1 >> 11)).to(dtype) * 2.0**-53).reshape(tuple(shape))
    digits = 1 - int(math.log2(torch.finfo(dtype).eps))  # as many bits as the type holds: rounding never reaches 1
    return ((x0 >> (32 - digits)).to(torch.float32) * 2.0**-digits).reshape(tuple(shape)).to(dtype)


def normal(key: Tensor, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal by Box-Muller; both halves of a pair are used."""
    count = math.prod(shape)
    x0, x1 = bits(key, (count + 1) // 2)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    radius = torch.sqrt(-2 * torch.log((x0.to(wide) + 1) * 2.0**-32))  # 2^-32 ... 1: the logarithm is finite
    angle = x1.to(wide) * (2 * math.pi * 2.0**-32)
    pair = torch.stack((radius * torch.cos(angle), radius * torch.sin(angle)), -1)
    return pair.reshape(-1)[:count].reshape(tuple(shape)).to(dtype)


def permutation(key: Tensor, size: int, count: int | Tensor | None = None) -> Tensor:
    """A random order of 0 … count-1 followed by count … size-1; `count` may differ per client under `vmap`."""
    x0, _ = bits(key, size)
    position = torch.arange(size, device=key.device)
    behind = torch.zeros_like(position) if count is None else (position >= count).to(torch.int64)
    return torch.argsort(x0 * (1 - behind) + behind * (WORD + 1 + position), stable=True)


def categorical(key: Tensor, logits: Tensor) -> Tensor:
    """One index along the last axis, drawn with probabilities softmax(logits) (the Gumbel maximum)."""
    u = uniform(key, logits.shape, logits.dtype)
    tiny = torch.finfo(logits.dtype).tiny
    return torch.argmax(logits - torch.log(-torch.log(u.clamp(min=tiny))), -1)
