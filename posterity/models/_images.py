"""What the convolutional networks share: two 5×5 convolutions with pooling, then fully connected layers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch import nn

SMALL = 16  # the least side that two unpadded 5×5 convolutions with 2×2 pooling leave a pixel of
LEAST = 4  # the same with padding 2

Padding = int | tuple[int, int] | None


def padded(shape: tuple[int, ...], padding: Padding) -> tuple[int, int]:
    """Padding of the two convolutions: as given, else none, or 2 for images smaller than 16 pixels."""
    if len(shape) != 3:
        raise ValueError(f"A convolutional network takes images (channels, height, width), not shape {shape}.")
    small = min(shape[1:]) < SMALL
    first, second = (padding, padding) if isinstance(padding, int) else padding or ((2, 2) if small else (0, 0))
    if min(_sides(shape, (first, second))) < 1:
        raise ValueError(
            f"Images of {shape[1]}×{shape[2]} are too small for two 5×5 convolutions with padding {(first, second)}: "
            f"at least {SMALL} pixels without padding, {LEAST} with padding=2 (the default for small images)."
        )
    return first, second


def stack(
    shape: tuple[int, ...],
    channels: tuple[int, int],
    widths: tuple[int, ...],
    outputs: int,
    padding: tuple[int, int],
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Module:
    """`base`: conv–pool–activation twice, then fully connected layers with activation; `head`: one linear layer."""
    base: OrderedDict[str, nn.Module] = OrderedDict()
    before = shape[0]
    for i, (after, pad) in enumerate(zip(channels, padding, strict=True), 1):
        base[f"conv{i}"] = nn.Conv2d(before, after, 5, padding=pad)
        base[f"pool{i}"] = nn.MaxPool2d(2)  # before the activation: it is monotone, so the result is the same
        base[f"act{i}"] = activation()  # and there is a quarter to compute
        before = after
    height, width = _sides(shape, padding)
    base["flatten"] = nn.Flatten()
    before *= height * width
    for i, after in enumerate(widths, 1):
        base[f"fc{i}"] = nn.Linear(before, after)
        base[f"act{i + 2}"] = activation()
        before = after
    return nn.Sequential(OrderedDict(base=nn.Sequential(base), head=nn.Linear(before, outputs)))


def _sides(shape: tuple[int, ...], padding: tuple[int, int]) -> tuple[int, int]:
    """Height and width after both convolutions and poolings."""
    height, width = shape[1:]
    for pad in padding:
        height, width = (max(height + 2 * pad - 4, 0) // 2, max(width + 2 * pad - 4, 0) // 2)
    return height, width
