"""FedBN's and FedMAP's network for Office images: AlexNet with batch norm after every layer but the head."""

from collections import OrderedDict

from torch import nn

CONVOLUTIONS = ((1, 11, 2), (3, 5, 2), (6, 3, 1), (4, 3, 1), (4, 3, 1))  # channels in widths, kernel, padding
POOLED = (1, 2, 5)  # convolutions followed by 3×3 max-pooling of stride 2
HIDDEN = 64  # widths of a fully connected layer
GRID = 6  # at most 6×6 pixels reach the fully connected layers
LARGE = 128  # images from here on keep the paper's stride of 4


def office_cnn(
    shape: tuple[int, ...],
    outputs: int,
    *,
    width: int = 64,  # channels of the first convolution; all other layers are in proportion
    stride: int | None = None,  # of the first convolution; None: 4, but 2 for images smaller than 128 pixels
    eps: float = 1e-5,  # of batch norm
) -> nn.Module:
    """FedBN's and FedMAP's network for Office images: AlexNet with batch norm after every layer but the head.

    Five convolutions (64, 192, 384, 256, 256) and two fully connected layers (4096) with batch norm and ReLU.
    """
    if len(shape) != 3:
        raise ValueError(f"office_cnn takes images (channels, height, width), not shape {shape}.")
    first = stride or (4 if min(shape[1:]) >= LARGE else 2)
    height, across = (_side(side, first) for side in shape[1:])
    if min(height, across) < 1:
        given = f"Images of {shape[1]}×{shape[2]} are too small for office_cnn with stride {first}"
        raise ValueError(f"{given}: its three poolings need at least {14 * first + 7} pixels.")
    grid = (min(height, GRID), min(across, GRID))
    base = _convolutions(shape[0], width, first, eps)
    if grid != (height, across):
        base["mean"] = nn.AdaptiveAvgPool2d(grid)
    base["flatten"] = nn.Flatten()
    before, after = CONVOLUTIONS[-1][0] * width * grid[0] * grid[1], HIDDEN * width
    for i in (1, 2):
        base[f"fc{i}"] = nn.Linear(before, after)
        base[f"norm{i + 5}"], base[f"relu{i + 5}"] = nn.BatchNorm1d(after, eps=eps), nn.ReLU()
        before = after
    return nn.Sequential(OrderedDict(base=nn.Sequential(base), head=nn.Linear(before, outputs)))


def _convolutions(channels: int, width: int, stride: int, eps: float) -> OrderedDict[str, nn.Module]:
    base: OrderedDict[str, nn.Module] = OrderedDict()
    before = channels
    for i, (widths, kernel, padding) in enumerate(CONVOLUTIONS, 1):
        after = widths * width
        base[f"conv{i}"] = nn.Conv2d(before, after, kernel, stride if i == 1 else 1, padding)
        base[f"norm{i}"], base[f"relu{i}"] = nn.BatchNorm2d(after, eps=eps), nn.ReLU()
        if i in POOLED:
            base[f"pool{i}"] = nn.MaxPool2d(3, 2)
        before = after
    return base


def _side(side: int, stride: int) -> int:
    """Pixels that are left of a side after the first convolution and the three poolings; below 1 if it is too small."""
    left = (side - 7) // stride + 1
    for _ in POOLED:
        left = (left - 3) // 2 + 1
    return left
