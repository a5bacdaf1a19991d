"""Convolutions whose filters differ from client to client, as matrix products that never lay out their patches.

Three maps, each linear in either of its two operands, and each other's derivatives:

    convolve   y = w * x + b     (m, O) = (m, k) (k, O)     k = h w C, m = B H' W'
    spread     what y says to x: a convolution of y, its pixels `stride` apart, with the filters turned round
    weigh      what y says to w and b: (k, O) = (k, m) (m, O), in slices of m that are added in a fixed order

Operands have any leading axes: (..., B, C, H, W), (..., O, C, h, w), (..., O). An axis of length 1 is shared by all
clients along it. Results lie in memory with the channel last: the columns and channels under one row of a window are
then neighbours, so the sum over them needs no index arithmetic and loads whole lines. Images that come channel first
are read as they are if they have few channels. Filters are packed to (h, w, C, O) first; they are small.

Sums are formed in float32. Products of float32 numbers are those of TF32 parts (three of them, which is as exact as
float32), or of numbers rounded to TF32 where PyTorch's matrix products are. Tiles are fixed by the sizes of one client:
the bits of a client's result depend neither on timing nor on how many clients are stacked. Needs Triton; import this
file only where it is used.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posterity.nn.kernels._programs import add, contract, correlate, pack
from posterity.nn.kernels.grid import WindowGrid

SLICE, SLICES = 256, 32  # `weigh` adds up this many places at least in one slice, and makes at most that many slices
BLOCK = 32  # side of the square that one program of `pack` turns
ADDED = 16  # the same of `add`, which holds a square of every slice at once
LARGEST = 2**31 - 2**16  # numbers of a client's images that 32 bits can name, with those behind the last one
FEW = 16  # channels below which an image is read channel first


@dataclass(frozen=True)
class Tile:
    """What one program computes: `rows` × `columns`, going along the sum `depth` at a time."""

    rows: int  # output channels
    columns: int  # places (pixels), or entries of a filter
    depth: int
    warps: int = 4
    stages: int = 3


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, grid: WindowGrid, tile: Tile | None = None) -> Tensor:
    """Images (..., B, O, H', W') of x (..., B, C, H, W)."""
    lead = _lead(x, weight, bias)
    flow = {"R": grid.window[0], "Q": grid.window[1], "SH": grid.stride[0], "SW": grid.stride[1],
            "PH": grid.pad[0], "PW": grid.pad[1], "DH": 1, "DW": 1, "FLIP": False}  # fmt: skip
    return _correlate_all(x, weight, bias, lead, (grid.shape[0], *grid.places, weight.shape[-4]), flow, tile)


def spread(weight: Tensor, grad: Tensor, grid: WindowGrid, tile: Tile | None = None) -> Tensor:
    """The gradient (..., B, C, H, W) of the input, from that of the output (..., B, O, H', W')."""
    lead = _lead(weight, grad)
    turned = [side - 1 - pad for side, pad in zip(grid.window, grid.pad, strict=True)]
    flow = {"R": grid.window[0], "Q": grid.window[1], "SH": 1, "SW": 1, "PH": turned[0], "PW": turned[1],
            "DH": grid.stride[0], "DW": grid.stride[1], "FLIP": True}  # fmt: skip
    batch, channels, height, width = grid.shape
    return _correlate_all(grad, weight, None, lead, (batch, height, width, channels), flow, tile)


def weigh(x: Tensor, grad: Tensor, grid: WindowGrid, tile: Tile | None = None) -> tuple[Tensor, Tensor]:
    """The gradients of the filters (..., O, C, h, w) and of the bias (..., O)."""
    lead = _lead(x, grad)
    (x, x_step, steps), (grad, grad_step, _) = _image(x, lead), _image(grad, lead, few=0)
    (batch, channels, height, width), outputs, window = grid.shape, grad.shape[-1], grid.window
    clients, inner, total = lead.numel(), channels * window[0] * window[1], batch * grid.places[0] * grid.places[1]
    tile = tile or contract_tile(outputs, inner)
    length = max(SLICE, -(-total // SLICES // 64) * 64)
    slices = -(-total // length)
    parts = x.new_empty(slices, clients, (inner + 1) * outputs, dtype=torch.float32)
    weight, bias = x.new_empty(*lead, outputs, channels, *window), x.new_empty(*lead, outputs)
    tiles = -(-outputs // tile.rows) * -(-(inner + 1) // tile.columns)
    with _device(x):
        contract[(tiles, clients, slices)](
            x, grad, parts, batch, length, C=channels, H=height, W=width, **steps, O=outputs, HO=grid.places[0],
            WO=grid.places[1], R=window[0], Q=window[1], SH=grid.stride[0], SW=grid.stride[1], PH=grid.pad[0],
            PW=grid.pad[1], X_STEP=x_step, G_STEP=grad_step, PRECISION=_precision(x),
            WIDE=_wide(batch * channels * height * width, total * outputs), BO=tile.rows, BK=tile.columns,
            BM=tile.depth, num_warps=tile.warps, num_stages=tile.stages)  # fmt: skip
        size = {"SLICES": slices, "C": channels, "RQ": window[0] * window[1], "O": outputs, "BLOCK": ADDED}
        add[(_squares(outputs, inner + 1, ADDED), clients)](parts, weight, bias, **size)
    return weight, bias


def correlate_tile(outputs: int, inner: int, flip: bool = False) -> Tile:
    """Tiles of `convolve`, and with `flip` of `spread`, whose sums have `inner` entries under a row of the window.

    Measured on an H200. Where lines are short, loads that are not laid out ahead are faster. Filters that are turned
    round are read along the other axis: wide tiles read them less often.
    """
    high = 16 if outputs <= 16 else 32 if outputs <= 32 else 64
    if inner <= 16:
        return Tile(high, 128, 16, stages=1)
    if high == 64:
        return Tile(high, 128 if flip else 32, 32)
    return Tile(high, 64, 32)


def contract_tile(outputs: int, inner: int) -> Tile:
    """Tiles of `weigh`."""
    high = 16 if outputs <= 16 else 32 if outputs <= 32 else 64
    if inner > 128:
        return Tile(high, 32, 64, stages=2)
    return Tile(high, 32, 64, stages=1) if high == 64 else Tile(high, 64, 32, stages=1)


# --- operands


def _correlate_all(
    source: Tensor, weight: Tensor, bias: Tensor | None, lead: torch.Size, shape: tuple[int, ...],
    flow: dict[str, Any], tile: Tile | None,
) -> Tensor:  # fmt: skip
    """Images of shape (..., B, outputs, high, wide), made channel last."""
    (batch, high, wide, outputs), (channels, height, width) = shape, source.shape[-3:]
    out = source.new_empty(*lead, *shape)
    (source, source_step, steps), (packed, weight_step) = _image(source, lead), _packed(weight, lead)
    held, bias_step = (source, 0) if bias is None else _flat(bias, lead, 1)
    tile = tile or correlate_tile(outputs, channels * flow["Q"], flow["FLIP"])
    tiles = -(-outputs // tile.rows) * -(-batch * high * wide // tile.columns)
    with _device(out):
        correlate[(tiles, lead.numel())](
            source, packed, held, out, batch, C=channels, O=outputs, H=height, W=width, HO=high, WO=wide, **flow,
            **steps, BIAS=bias is not None, S_STEP=source_step, W_STEP=weight_step, B_STEP=bias_step,
            PRECISION=_precision(source), WIDE=_wide(batch * channels * height * width, batch * high * wide * outputs),
            BO=tile.rows, BM=tile.columns, BK=tile.depth, num_warps=tile.warps, num_stages=tile.stages)  # fmt: skip
    return out.movedim(-1, -3)


def _packed(weight: Tensor, lead: torch.Size) -> tuple[Tensor, int]:
    """Filters (..., O, C, h, w) as (..., h, w, C, O), and 1 if every client has its own."""
    outputs, channels, high, wide = weight.shape[-4:]
    held, step = _flat(weight, lead, 4)
    packed = torch.empty_like(held)
    size = outputs * channels * high * wide
    with _device(held):
        pack[(_squares(outputs, size // outputs), held.numel() // size)](
            held, packed, C=channels, RQ=high * wide, O=outputs, BLOCK=BLOCK)  # fmt: skip
    return packed, step


def _image(image: Tensor, lead: torch.Size, few: int = FEW) -> tuple[Tensor, int, dict[str, int]]:
    """`image` in one piece; 1 if every client has its own; steps to the next channel, row and column."""
    channels, height, width = image.shape[-3:]
    if channels < few and image.is_contiguous():
        held, step = _flat(image, lead, 4)
        return held, step, {"TC": height * width, "TY": width, "TX": 1}
    held, step = _flat(image.movedim(-3, -1), lead, 4)
    return held, step, {"TC": 1, "TY": width * channels, "TX": channels}


def _lead(first: Tensor, second: Tensor, bias: Tensor | None = None) -> torch.Size:
    """Leading axes of the result."""
    last = () if bias is None else bias.shape[:-1]
    return torch.broadcast_shapes(first.shape[:-4], second.shape[:-4], last)


def _flat(tensor: Tensor, lead: torch.Size, tail: int) -> tuple[Tensor, int]:
    """`tensor` in one piece, and 1 if every client has its own entry of it, 0 if all share one."""
    own, kept = tensor.shape[: tensor.dim() - tail], tensor.shape[tensor.dim() - tail :]
    shared = own != lead and own.numel() == 1
    if own != lead and not shared:  # shared along some axes only
        tensor = tensor.expand(*lead, *kept)
    return tensor.contiguous(), int(not shared)


def _device(tensor: Tensor) -> AbstractContextManager[None]:
    """Kernels are launched on the current device, which need not be the tensors'."""
    return torch.cuda.device_of(tensor)


def _precision(tensor: Tensor) -> str:
    lowered = tensor.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
    return "tf32" if lowered or tensor.dtype != torch.float32 else "tf32x3"


def _wide(*numbers: int) -> bool:
    """Whether one client's images have more numbers than 32 bits can name."""
    return max(numbers) > LARGEST


def _squares(high: int, wide: int, side: int = BLOCK) -> int:
    return -(-high // side) * -(-wide // side)
