"""Keys of plain tensors on the host, by numpy: the words of `random.threefry` at a third of the time.

A key is a hundred operators, and a round needs dozens of keys. On a few numbers an operator of PyTorch costs more than
one of numpy, and numpy has 32-bit words that wrap around. For tensors that nothing maps, differentiates or records;
inside a method's functions there is only `core.random`.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from posterity.core.random import PARITY, ROTATIONS, WORD

Words = NDArray[np.uint32]
TURNS = tuple(tuple((np.uint32(t), np.uint32(32 - t)) for t in row) for row in ROTATIONS)


def threefry(key: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """`random.threefry`."""
    x0, x1 = _words(key, low, high)
    return _tensor(x0), _tensor(x1)


def fold(key: Tensor, data: int | Tensor) -> Tensor:
    """`random.fold`."""
    number = torch.as_tensor(data)
    return _tensor(np.stack(_words(key, number & WORD, (number >> 32) & WORD), -1))


def _words(key: Tensor, low: Tensor, high: Tensor) -> tuple[Words, Words]:
    k0, k1, low_word, high_word = (_word(part) for part in (key[..., 0], key[..., 1], low, high))
    words = (k0, k1, k0 ^ k1 ^ np.uint32(PARITY))
    shape = np.broadcast_shapes(k0.shape, low_word.shape, high_word.shape)
    x0, x1, left = (np.empty(shape, np.uint32) for _ in range(3))
    np.add(low_word, k0, out=x0)
    np.add(high_word, k1, out=x1)
    for block in range(5):
        for turn, rest in TURNS[block % 2]:
            np.add(x0, x1, out=x0)
            np.left_shift(x1, turn, out=left)
            np.right_shift(x1, rest, out=x1)
            np.bitwise_or(x1, left, out=x1)
            np.bitwise_xor(x1, x0, out=x1)
        np.add(x0, words[(block + 1) % 3], out=x0)
        np.add(x1, words[(block + 2) % 3] + np.uint32(block + 1), out=x1)
    return x0, x1


def _word(tensor: Tensor) -> Words:
    found: Words = tensor.numpy().astype(np.uint32)
    return found


def _tensor(words: Any) -> Tensor:
    return torch.from_numpy(words.astype(np.int64))
