"""The programs behind `_convolution.py`.

Letters are those of a convolution: B images of C channels and H × W pixels, O outputs of HO × WO, windows R × Q, steps
SH and SW, padding PH and PW; pixels of the source lie DH and DW apart. TC, TY and TX lead to its next channel, row and
column. m runs over places (image, row, column), k over the entries of a window. WIDE: the images of one client have
more numbers than 32 bits can name.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["B"])
def correlate(source, packed, bias, out, B, C: tl.constexpr, O: tl.constexpr, H: tl.constexpr, W: tl.constexpr,
               HO: tl.constexpr, WO: tl.constexpr, R: tl.constexpr, Q: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
               PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, FLIP: tl.constexpr,
               TC: tl.constexpr, TY: tl.constexpr, TX: tl.constexpr, BIAS: tl.constexpr, S_STEP: tl.constexpr,
               W_STEP: tl.constexpr, B_STEP: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr,
               BO: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):  # fmt: skip
    """out[b, i, j, o] = bias[o] + Σ weight[o, c, p, q] source[b, c, (i SH - PH + p) / DH, (j SW - PW + q) / DW]."""
    begin, client = tl.program_id(0) // tl.cdiv(O, BO) * BM, tl.program_id(1).to(tl.int64)
    o, m = tl.program_id(0) % tl.cdiv(O, BO) * BO + tl.arange(0, BO), begin + tl.arange(0, BM)
    b, i, j = m // WO % B, m // (WO * B), m % WO  # rows of all images go together
    if WIDE:
        b = b.to(tl.int64)
    top, left, M = i * SH - PH, j * SW - PW, B * HO * WO
    source += client * S_STEP * B * C * H * W
    packed, out = packed + client * W_STEP * O * C * R * Q, out + client * B * O * HO * WO
    acc = tl.zeros((BM, BO), tl.float32)
    if BIAS:
        acc += tl.load(bias + client * B_STEP * O + o, mask=o < O, other=0.0).to(tl.float32)[None, :]
    inner: tl.constexpr = C * Q
    steps: tl.constexpr = (inner + BK - 1) // BK
    first, last = _meeting(begin // (B * WO), (tl.minimum(begin + BM, M) - 1) // (B * WO), H, R, SH, PH, DH)
    for t in range(first * steps, last * steps):
        p, k = t // steps, t % steps * BK + tl.arange(0, BK)
        q, c = k // C, k % C
        inside = (m < M)[:, None]
        if inner % BK != 0:
            inside = inside & (k < inner)[None, :]
        y, x = top + p, left[:, None] + q[None, :]
        if PH > 0 or PW > 0 or FLIP:
            inside = inside & ((y >= 0) & (y <= (H - 1) * DH))[:, None] & (x >= 0) & (x <= (W - 1) * DW)
        if DH > 1 or DW > 1:
            inside = inside & (y % DH == 0)[:, None] & (x % DW == 0)
            at = (b * (C * H * W) + y // DH * TY)[:, None] + x // DW * TX + (c * TC)[None, :]
        else:
            along = k if TX == C and TC == 1 else c * TC + q * TX
            at = (b * (C * H * W) + y * TY + left * TX)[:, None] + along[None, :]
        patch = tl.load(source + at, mask=inside, other=0.0)
        filters = tl.load(
            packed + _entries(p, q, c, o, C, O, R, Q, FLIP), mask=(k < inner)[:, None] & (o < O)[None, :], other=0.0
        )
        acc = tl.dot(patch, filters, acc, input_precision=PRECISION)
    at = (((b * HO + i) * WO + j) * O)[:, None] + o[None, :]
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=(m < M)[:, None] & (o < O)[None, :])


@triton.jit
def _meeting(top, bottom, H: tl.constexpr, R: tl.constexpr, SH: tl.constexpr, PH: tl.constexpr, DH: tl.constexpr):
    """Rows first … last-1 of the window that meet the source somewhere, in rows top … bottom of the output."""
    first, last = 0, R
    if PH > 0:
        first = tl.maximum(0, PH - bottom * SH)
        last = tl.minimum(R, (H - 1) * DH + PH - top * SH + 1)
    return first, last


@triton.jit
def _entries(p, q, c, o, C: tl.constexpr, O: tl.constexpr, R: tl.constexpr, Q: tl.constexpr, FLIP: tl.constexpr):
    """Where packed[p, q, c, o] lies; with FLIP, packed[·, ·, o, c] of the window turned round."""
    if FLIP:
        return (((R - 1 - p) * Q + Q - 1 - q) * (O * C) + c)[:, None] + (o * C)[None, :]
    return (((p * Q + q) * C + c) * O)[:, None] + o[None, :]


@triton.jit(do_not_specialize=["B", "length"])
def contract(source, grad, parts, B, length, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, TC: tl.constexpr,
              TY: tl.constexpr, TX: tl.constexpr, O: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, R: tl.constexpr,
              Q: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr,
              X_STEP: tl.constexpr, G_STEP: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr, BO: tl.constexpr,
              BK: tl.constexpr, BM: tl.constexpr):  # fmt: skip
    """parts[slice, client] = (Σ source[b, c, i SH - PH + p, j SW - PW + q] grad[b, i, j, o], Σ grad[b, i, j, o])."""
    K: tl.constexpr = C * R * Q
    client, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    o = tl.program_id(0) % tl.cdiv(O, BO) * BO + tl.arange(0, BO)
    k = tl.program_id(0) // tl.cdiv(O, BO) * BK + tl.arange(0, BK)
    p, q, c = k // (C * Q), k // C % Q, k % C
    source += client * X_STEP * B * C * H * W
    grad += client * G_STEP * B * O * HO * WO
    stop = tl.minimum(part * length + length, B * HO * WO)
    acc = tl.zeros((BK, BO), tl.float32)
    for start in range(part * length, stop, BM):
        m = start + tl.arange(0, BM)
        if WIDE:
            m = m.to(tl.int64)
        g = tl.load(grad + m[:, None] * O + o[None, :], mask=(m < stop)[:, None] & (o < O)[None, :], other=0.0)
        b, top, left = m // (WO * HO), m // WO % HO * SH - PH, m % WO * SW - PW
        inside = (m < stop)[:, None] & (k < K)[None, :]
        if PH > 0 or PW > 0:
            y, x = top[:, None] + p[None, :], left[:, None] + q[None, :]
            inside = inside & (y >= 0) & (y < H) & (x >= 0) & (x < W)
        at = (b * (C * H * W) + top * TY + left * TX)[:, None] + (c * TC + p * TY + q * TX)[None, :]
        patch = tl.load(source + at, mask=inside, other=0.0)
        patch = tl.where((k == K)[None, :], 1.0, patch).to(source.dtype.element_ty)  # an entry of ones sums the bias
        acc = tl.dot(tl.trans(patch), g, acc, input_precision=PRECISION)
    parts += (part * tl.num_programs(1) + client) * (O * (K + 1))
    tl.store(parts + k[:, None] * O + o[None, :], acc, mask=(k <= K)[:, None] & (o < O)[None, :])


@triton.jit
def pack(weight, packed, C: tl.constexpr, RQ: tl.constexpr, O: tl.constexpr, BLOCK: tl.constexpr):
    """packed[p, q, c, o] = weight[o, c, p, q]."""
    K: tl.constexpr = C * RQ
    client, o, k = _square(O, K, BLOCK)
    inside = (o < O)[:, None] & (k < K)[None, :]
    values = tl.load(weight + client + o[:, None] * K + k[None, :], mask=inside)
    to = packed + client + ((k % RQ * C + k // RQ) * O)[:, None] + o[None, :]
    tl.store(to, tl.trans(values), mask=(k < K)[:, None] & (o < O)[None, :])


@triton.jit
def add(parts, weight, bias, SLICES: tl.constexpr, C: tl.constexpr, RQ: tl.constexpr, O: tl.constexpr,
         BLOCK: tl.constexpr):  # fmt: skip
    """The slices, first to last, each [p, q, c, o] to its place in weight[o, c, p, q]; the last O to the bias."""
    K: tl.constexpr = C * RQ
    client, o, k = _square(O, K + 1, BLOCK)
    clients = tl.num_programs(1)
    row = tl.where(k < K, k % RQ * C + k // RQ, K)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for part in tl.static_range(SLICES):  # unrolled: the loads need not wait for each other
        at = parts + part * clients.to(tl.int64) * (K + 1) * O + client + (row * O)[:, None] + o[None, :]
        total += tl.load(at, mask=(k <= K)[:, None] & (o < O)[None, :], other=0.0)
    values = tl.trans(total).to(weight.dtype.element_ty)
    number = tl.program_id(1).to(tl.int64)
    tl.store(weight + number * K * O + o[:, None] * K + k[None, :], values, mask=(o < O)[:, None] & (k < K)[None, :])
    tl.store(bias + number * O + o[:, None] + 0 * k[None, :], values, mask=(o < O)[:, None] & (k == K)[None, :])


@triton.jit
def _square(O: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr):
    """Where this program's client begins in a stack of O × K matrices, and the rows and columns of its square."""
    wide: tl.constexpr = (K + BLOCK - 1) // BLOCK
    o, k = (
        tl.program_id(0) // wide * BLOCK + tl.arange(0, BLOCK),
        tl.program_id(0) % wide * BLOCK + tl.arange(0, BLOCK),
    )
    return tl.program_id(1).to(tl.int64) * O * K, o, k
