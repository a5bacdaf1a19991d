"""Products of a few rows with a matrix of each client's own: as fast as the matrix can be read. Needs Triton.

A fully connected layer multiplies the ten rows of a batch with each client's weights. Libraries cut such products into
tiles made for many rows. Here a program takes all rows and a strip of columns, and walks along the sum.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, library


@library.custom_op("posterity::strips", mutates_args=())
def strips(a: Tensor, b: Tensor) -> Tensor:
    """a (n, M, K) times b (n, K, N), for M up to 32; sums are formed in float32."""
    clients, rows, inner, columns = *a.shape, b.shape[2]
    out = a.new_empty(clients, rows, columns)
    down = b.stride(1) < b.stride(2)  # the sum runs along memory
    wide, deep, warps = (32, 64, 2) if down else (64, 32, 4)
    lowered = a.dtype != torch.float32 or torch.backends.cuda.matmul.allow_tf32
    with torch.cuda.device_of(a):
        _strip[(triton.cdiv(columns, wide), clients)](
            a, b, out, *a.stride(), *b.stride(), M=rows, K=inner, N=columns, BM=16 if rows <= 16 else 32, BN=wide,
            BK=deep, PRECISION="tf32" if lowered else "tf32x3", num_warps=warps, num_stages=3)  # fmt: skip
    return out


@strips.register_fake
def _(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(a.shape[0], a.shape[1], b.shape[2])


@triton.jit
def _strip(a, b, out, a_n, a_m, a_k, b_n, b_k, b_c, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
           BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    m, c, k = tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    left, right = a + client * a_n + (m * a_m)[:, None], b + client * b_n + (c * b_c)[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        at = start + k
        x = tl.load(left + (at * a_k)[None, :], mask=(m < M)[:, None] & (at < K)[None, :], other=0.0)
        w = tl.load(right + (at * b_k)[:, None], mask=(at < K)[:, None] & (c < N)[None, :], other=0.0)
        acc = tl.dot(x, w, acc, input_precision=PRECISION)
    to = out + client * M * N + (m * N)[:, None] + c[None, :]
    tl.store(to, acc.to(out.dtype.element_ty), mask=(m < M)[:, None] & (c < N)[None, :])
