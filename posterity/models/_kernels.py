# mypy: disable-error-code="import-not-found, import-untyped, no-untyped-def", allow-untyped-decorators
"""Convolutions whose filters differ from client to client, as matrix products that never lay out their patches.

Three maps, each linear in either of its two operands, and each other's derivatives:

    convolve   y = w * x + b     (O, m) = (O, k) (k, m)     k = C h w, m = B H' W'
    spread     what y says to x: a convolution of y, its pixels `stride` apart, with the filters turned round
    weigh      what y says to w and b: (O, k) = (O, m) (m, k), in slices of m that are added in a fixed order

Operands have any leading axes: (..., B, C, H, W), (..., O, C, h, w), (..., O). An axis of length 1 is shared by all
clients along it. Sums are formed in float32; float32 operands are rounded to TF32 where PyTorch's matrix products are.
Tiles are fixed by the sizes of one client: the bits of a client's result depend neither on timing nor on how many
clients are stacked. Needs Triton; import this file only where it is used.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from posterity.models._grid import Grid

SLICE, SLICES = 512, 32  # `weigh` adds up this many places at least in one slice, and makes at most that many slices
BLOCK = 256  # numbers that one program of `_add` adds up


@dataclass(frozen=True)
class Tile:
    """What one program computes: `rows` × `columns`, going along the sum `depth` at a time."""

    rows: int  # output channels
    columns: int  # places (pixels), or entries of a filter
    depth: int
    warps: int = 4
    stages: int = 3


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, grid: Grid, tile: Tile | None = None) -> Tensor:
    """Images (..., B, O, H', W') of x (..., B, C, H, W)."""
    lead = _lead(x, weight, bias, tail=(4, 4, 1))
    out = x.new_empty(*lead, grid.shape[0], weight.shape[-4], *grid.places)
    flow = {"H": grid.shape[2], "W": grid.shape[3], "R": grid.window[0], "Q": grid.window[1],
            "SH": grid.stride[0], "SW": grid.stride[1], "PH": grid.pad[0], "PW": grid.pad[1],
            "DH": 1, "DW": 1, "FLIP": False, "ROWS": False}  # fmt: skip
    _correlate_all(x, weight, bias, out, flow, tile)
    return out


def spread(weight: Tensor, grad: Tensor, grid: Grid, tile: Tile | None = None) -> Tensor:
    """The gradient (..., B, C, H, W) of the input, from that of the output (..., B, O, H', W')."""
    lead = _lead(weight, grad, None, tail=(4, 4, 1))
    out = grad.new_empty(*lead, *grid.shape)
    turned = [side - 1 - pad for side, pad in zip(grid.window, grid.pad, strict=True)]
    flow = {"H": grid.places[0], "W": grid.places[1], "R": grid.window[0], "Q": grid.window[1],
            "SH": 1, "SW": 1, "PH": turned[0], "PW": turned[1],
            "DH": grid.stride[0], "DW": grid.stride[1], "FLIP": True, "ROWS": True}  # fmt: skip
    _correlate_all(grad, weight, None, out, flow, tile)
    return out


def weigh(x: Tensor, grad: Tensor, grid: Grid, tile: Tile | None = None) -> tuple[Tensor, Tensor]:
    """The gradients of the filters (..., O, C, h, w) and of the bias (..., O)."""
    lead = _lead(x, grad, None, tail=(4, 4, 1))
    (x, x_step), (grad, grad_step) = _flat(x, lead, 4), _flat(grad, lead, 4)
    (batch, channels, height, width), outputs, window = grid.shape, grad.shape[-3], grid.window
    clients, inner, total = _count(lead), channels * window[0] * window[1], batch * grid.places[0] * grid.places[1]
    tile = tile or contract_tile(outputs, inner)
    length = max(SLICE, _up(-(-total // SLICES), 128))
    slices = -(-total // length)
    parts = x.new_empty(slices, clients, outputs * (inner + 1), dtype=torch.float32)
    weight, bias = x.new_empty(*lead, outputs, channels, *window), x.new_empty(*lead, outputs)
    tiles = -(-outputs // tile.rows) * -(-inner // tile.columns)
    with _device(x):
        _contract[(tiles, clients, slices)](
            x, grad, parts, batch, length, C=channels, H=height, W=width, O=outputs, HO=grid.places[0],
            WO=grid.places[1], R=window[0], Q=window[1], SH=grid.stride[0], SW=grid.stride[1], PH=grid.pad[0],
            PW=grid.pad[1], X_STEP=x_step, G_STEP=grad_step, PRECISION=_precision(x), BO=tile.rows, BK=tile.columns,
            BM=tile.depth, num_warps=tile.warps, num_stages=tile.stages)  # fmt: skip
        row = outputs * (inner + 1)
        _add[(-(-row // BLOCK), clients)](parts, weight, bias, SLICES=slices, INNER=inner, O=outputs, BLOCK=BLOCK)
    return weight, bias


def correlate_tile(outputs: int, rows: bool) -> Tile:
    """Tiles of `convolve` and, with `rows`, of `spread`: measured on an H200 (`benchmarks/convolution.py --sweep`)."""
    return Tile(16 if outputs <= 16 else 32, 64 if rows else 128, 16)


def contract_tile(outputs: int, inner: int) -> Tile:
    """Tiles of `weigh`: wide ones win although some of them compute padding."""
    high = 16 if outputs <= 16 else 32 if outputs <= 32 else 64
    return Tile(high, 128 if inner > 32 else 32, 16, 8 if high == 64 else 4)


# --- operands ----------------------------------------------------------------------------------------------------


def _correlate_all(
    source: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, flow: dict[str, Any], tile: Tile | None
) -> None:
    lead = out.shape[:-4]
    (source, source_step), (weight, weight_step) = _flat(source, lead, 4), _flat(weight, lead, 4)
    held, bias_step = (source, 0) if bias is None else _flat(bias, lead, 1)
    batch, outputs, high, wide = out.shape[-4:]
    channels, precision = source.shape[-3], _precision(source)
    tile = tile or correlate_tile(outputs, flow["ROWS"])
    tiles = -(-outputs // tile.rows) * -(-batch * high * wide // tile.columns)
    with _device(out):
        _correlate[(tiles, _count(lead))](
            source, weight, held, out, batch, C=channels, O=outputs, HO=high, WO=wide, **flow, BIAS=bias is not None,
            S_STEP=source_step, W_STEP=weight_step, B_STEP=bias_step, PRECISION=precision, BO=tile.rows,
            BM=tile.columns, BK=tile.depth, num_warps=tile.warps, num_stages=tile.stages)  # fmt: skip


def _lead(first: Tensor, second: Tensor, third: Tensor | None, tail: tuple[int, int, int]) -> torch.Size:
    """Leading axes of the result."""
    some = [t.shape[: t.dim() - n] for t, n in zip((first, second, third), tail, strict=True) if t is not None]
    return torch.broadcast_shapes(*some)  # type: ignore[no-untyped-call]


def _flat(tensor: Tensor, lead: torch.Size, tail: int) -> tuple[Tensor, int]:
    """`tensor` in one piece, and 1 if every client has its own entry of it, 0 if all share one."""
    own, kept = tensor.shape[: tensor.dim() - tail], tensor.shape[tensor.dim() - tail :]
    shared = own != lead and _count(own) == 1
    if own != lead and not shared:  # shared along some axes only
        tensor = tensor.expand(*lead, *kept)
    return tensor.contiguous(), int(not shared)


def _device(tensor: Tensor) -> AbstractContextManager[None]:
    """Kernels are launched on the current device, which need not be the tensors'."""
    return torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]


def _precision(tensor: Tensor) -> str:
    lowered = tensor.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    return "tf32" if lowered or tensor.dtype != torch.float32 else "ieee"


def _count(lead: torch.Size) -> int:
    return int(lead.numel())


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


# --- kernels: letters as in `convolve`; m and k run over what one program sees ----------------------------------------


@triton.jit(do_not_specialize=["B"])
def _correlate(source, weight, bias, out, B, C: tl.constexpr, O: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr,
               H: tl.constexpr, W: tl.constexpr, R: tl.constexpr, Q: tl.constexpr, SH: tl.constexpr, SW: tl.constexpr,
               PH: tl.constexpr, PW: tl.constexpr, DH: tl.constexpr, DW: tl.constexpr, FLIP: tl.constexpr,
               ROWS: tl.constexpr, BIAS: tl.constexpr, S_STEP: tl.constexpr, W_STEP: tl.constexpr,
               B_STEP: tl.constexpr, PRECISION: tl.constexpr, BO: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
               ):  # fmt: skip
    """out[b, o, i, j] = bias[o] + Σ weight[o, c, p, q] source[b, c, (i SH - PH + p) / DH, (j SW - PW + q) / DW]."""
    begin, client = tl.program_id(0) // tl.cdiv(O, BO) * BM, tl.program_id(1).to(tl.int64)
    o, m = tl.program_id(0) % tl.cdiv(O, BO) * BO + tl.arange(0, BO), begin + tl.arange(0, BM)
    b, i, j = _places(m, B, HO, WO, ROWS)
    top, left, M = i * SH - PH, j * SW - PW, B * HO * WO
    source += client * S_STEP * B * C * H * W
    weight, out = weight + client * W_STEP * O * C * R * Q, out + client * B * O * HO * WO
    acc = tl.zeros((BO, BM), tl.float32)
    if BIAS:
        acc += tl.load(bias + client * B_STEP * O + o, mask=o < O, other=0.0).to(tl.float32)[:, None]
    inner: tl.constexpr = C * Q if ROWS else C * R * Q
    steps: tl.constexpr = (inner + BK - 1) // BK
    first, last = 0, 1
    if ROWS:  # rows of the filter that meet the source somewhere in this tile
        first = tl.maximum(0, PH - (tl.minimum(begin + BM, M) - 1) // (B * WO) * SH)
        last = tl.minimum(R, (H - 1) * DH + PH - begin // (B * WO) * SH + 1)
    for t in range(first * steps, last * steps):
        k = t % steps * BK + tl.arange(0, BK)
        c, q = (k // Q if ROWS else k // (Q * R)), k % Q
        p = t // steps + k * 0 if ROWS else k // Q % R
        inside = (k < inner)[:, None] & (m < M)[None, :]
        y, x = p[:, None] + top[None, :], q[:, None] + left[None, :]
        if PH > 0 or PW > 0 or FLIP:
            inside = inside & (y >= 0) & (y <= (H - 1) * DH) & (x >= 0) & (x <= (W - 1) * DW)
        if DH > 1 or DW > 1:
            inside = inside & (y % DH == 0) & (x % DW == 0)
            at = (b * (C * H * W))[None, :] + (c * (H * W))[:, None] + y // DH * W + x // DW
        else:
            at = (b * (C * H * W) + top * W + left)[None, :] + (c * (H * W) + p * W + q)[:, None]
        patch = tl.load(source + at, mask=inside, other=0.0)
        where = _entries(o, c, p, q, C, O, R, Q, FLIP)
        filters = tl.load(weight + where, mask=(o < O)[:, None] & (k < inner)[None, :], other=0.0)
        acc = tl.dot(filters, patch, acc, input_precision=PRECISION)
    at = ((b * O * HO + i) * WO + j)[None, :] + (o * (HO * WO))[:, None]
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=(o < O)[:, None] & (m < M)[None, :])


@triton.jit
def _entries(o, c, p, q, C: tl.constexpr, O: tl.constexpr, R: tl.constexpr, Q: tl.constexpr, FLIP: tl.constexpr):
    """Where weight[o, c, p, q] lies; with FLIP, weight[c, o] turned round."""
    if FLIP:
        return (o * (R * Q))[:, None] + (c * (O * R * Q) + (R - 1 - p) * Q + Q - 1 - q)[None, :]
    return (o * (C * R * Q))[:, None] + ((c * R + p) * Q + q)[None, :]


@triton.jit
def _places(m, B, HO: tl.constexpr, WO: tl.constexpr, ROWS: tl.constexpr):
    """Image, row and column of the m-th place; with ROWS, rows of all images go together."""
    if ROWS:
        b, i = m // WO % B, m // (WO * B)
    else:
        b, i = m // (WO * HO), m // WO % HO
    return b, i, m % WO


@triton.jit(do_not_specialize=["B", "length"])
def _contract(source, grad, parts, B, length, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, O: tl.constexpr,
              HO: tl.constexpr, WO: tl.constexpr, R: tl.constexpr, Q: tl.constexpr, SH: tl.constexpr,
              SW: tl.constexpr, PH: tl.constexpr, PW: tl.constexpr, X_STEP: tl.constexpr, G_STEP: tl.constexpr,
              PRECISION: tl.constexpr, BO: tl.constexpr, BK: tl.constexpr, BM: tl.constexpr,
              ):  # fmt: skip
    """parts[slice, client] = (Σ grad[b, o, i, j] source[b, c, i SH - PH + p, j SW - PW + q], Σ grad[b, o, i, j])."""
    K: tl.constexpr = C * R * Q
    client, part = tl.program_id(1).to(tl.int64), tl.program_id(2)
    o = tl.program_id(0) % tl.cdiv(O, BO) * BO + tl.arange(0, BO)
    k = tl.program_id(0) // tl.cdiv(O, BO) * BK + tl.arange(0, BK)
    c, p, q = k // (Q * R), k // Q % R, k % Q
    source += client * X_STEP * B * C * H * W
    grad += client * G_STEP * B * O * HO * WO
    stop = tl.minimum(part * length + length, B * HO * WO)
    acc = tl.zeros((BO, BK), tl.float32)
    for start in range(part * length, stop, BM):
        m = start + tl.arange(0, BM)
        b, i, j = _places(m, B, HO, WO, False)
        at = (b * (O * HO * WO) + m % (HO * WO))[None, :] + (o * (HO * WO))[:, None]
        g = tl.load(grad + at, mask=(o < O)[:, None] & (m < stop)[None, :], other=0.0)
        top, left = i * SH - PH, j * SW - PW
        inside = (k < K)[:, None] & (m < stop)[None, :]
        if PH > 0 or PW > 0:
            y, x = p[:, None] + top[None, :], q[:, None] + left[None, :]
            inside = inside & (y >= 0) & (y < H) & (x >= 0) & (x < W)
        at = (b * (C * H * W) + top * W + left)[None, :] + (c * (H * W) + p * W + q)[:, None]
        patch = tl.load(source + at, mask=inside, other=0.0)
        acc = tl.dot(g, tl.trans(patch), acc, input_precision=PRECISION)
    parts += (part * tl.num_programs(1) + client) * (O * (K + 1))
    tl.store(parts + o[:, None] * K + k[None, :], acc, mask=(o < O)[:, None] & (k < K)[None, :])
    if tl.program_id(0) < tl.cdiv(O, BO):  # one column of tiles adds up the bias too, after its products
        total = tl.zeros((BO, BM), tl.float32)
        for start in range(part * length, stop, BM):
            m = start + tl.arange(0, BM)
            at = (m // (HO * WO) * (O * HO * WO) + m % (HO * WO))[None, :] + (o * (HO * WO))[:, None]
            total += tl.load(grad + at, mask=(o < O)[:, None] & (m < stop)[None, :], other=0.0).to(tl.float32)
        tl.store(parts + O * K + o, tl.sum(total, 1), mask=o < O)


@triton.jit
def _add(parts, weight, bias, SLICES: tl.constexpr, INNER: tl.constexpr, O: tl.constexpr, BLOCK: tl.constexpr):
    """The slices, first to last."""
    ROW: tl.constexpr = O * (INNER + 1)
    client, clients = tl.program_id(1).to(tl.int64), tl.num_programs(1)
    e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(SLICES):  # unrolled: the loads need not wait for each other
        total += tl.load(parts + (part * clients + client) * ROW + e, mask=e < ROW, other=0.0)
    kind = weight.dtype.element_ty
    tl.store(weight + client * (O * INNER) + e, total.to(kind), mask=e < O * INNER)
    tl.store(bias + client * O + e - O * INNER, total.to(kind), mask=(e >= O * INNER) & (e < ROW))


__all__ = ["Tile", "contract_tile", "convolve", "correlate_tile", "spread", "weigh"]
