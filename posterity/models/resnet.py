"""Residual networks (He et al. 2016), with the stems and shortcuts that papers use for small images."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from posterity.settings.hyperparameters import unknown

Stem = Literal["cifar", "halved", "imagenet"]
Shortcut = Literal["A", "B"]


class Pad(nn.Module):
    """Shortcut A: every `stride`-th pixel, and zeros for the channels that are new."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.new, self.stride = after - before, stride

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) to (B, C + new, H / stride, W / stride)."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new))


class Block(nn.Module):
    """relu(shortcut(x) + norm(conv(relu(norm(conv(x)))))), 3×3 convolutions."""

    def __init__(self, before: int, after: int, stride: int, shortcut: Shortcut, eps: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after, eps=eps)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after, eps=eps)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.shortcut = Pad(before, after, stride) if shortcut == "A" else project(before, after, stride, eps)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, before, H, W) to (B, after, H / stride, W / stride)."""
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + self.shortcut(x))


def project(before: int, after: int, stride: int, eps: float) -> nn.Module:
    """Shortcut B: a 1×1 convolution with batch norm."""
    conv = nn.Conv2d(before, after, 1, stride, bias=False)
    return nn.Sequential(OrderedDict(conv=conv, norm=nn.BatchNorm2d(after, eps=eps)))


def residual(
    blocks: tuple[int, ...],
    width: int,
    stem: Stem,
    shortcut: Shortcut,
    eps: float,
    shape: tuple[int, ...],
    outputs: int,
) -> nn.Module:
    """Stem, stages of `blocks` blocks with `width`, 2·`width`, … channels, global mean, linear head."""
    if len(shape) != 3:
        raise ValueError(f"A residual network takes images (channels, height, width), not shape {shape}.")
    for what, given, known in (("stem", stem, get_args(Stem)), ("shortcut", shortcut, get_args(Shortcut))):
        if given not in known:
            raise ValueError(unknown(what, str(given), known))
    base, before = _stem(shape[0], width, stem, eps), width
    for stage, count in enumerate(blocks):
        after = width * 2**stage
        first = Block(before, after, 2 if stage else 1, shortcut, eps)
        others = [Block(after, after, 1, shortcut, eps) for _ in range(count - 1)]
        base[f"stage{stage + 1}"], before = nn.Sequential(first, *others), after
    base["pool"], base["flatten"] = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    full = nn.Sequential(OrderedDict(base=nn.Sequential(base), head=nn.Linear(before, outputs)))
    for layer in full.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return full


def _stem(channels: int, width: int, stem: Stem, eps: float) -> OrderedDict[str, nn.Module]:
    size, stride = (7, 2) if stem == "imagenet" else (3, 2 if stem == "halved" else 1)
    base: OrderedDict[str, nn.Module] = OrderedDict()
    base["conv"] = nn.Conv2d(channels, width, size, stride, padding=size // 2, bias=False)
    base["norm"], base["relu"] = nn.BatchNorm2d(width, eps=eps), nn.ReLU()
    if stem == "imagenet":
        base["pool0"] = nn.MaxPool2d(3, 2, padding=1)
    return base


def resnet18(
    shape: tuple[int, ...],
    outputs: int,
    *,
    stem: Stem = "cifar",  # for 64×64 also "halved" (3×3, stride 2); "imagenet" is 7×7, stride 2 and max-pool
    width: int = 64,  # channels of the first stage
    shortcut: Shortcut = "B",  # where the size changes: A pads with zeros, B projects
    eps: float = 1e-5,  # of batch norm
) -> nn.Module:
    """ResNet-18, by default with the stem for small images (3×3, no max-pool) of the FedNP paper's experiments.

    Four stages of two blocks; 11.17 M parameters and the head.
    """
    return residual((2, 2, 2, 2), width, stem, shortcut, eps, shape, outputs)


def _small(blocks: int, size: str) -> Callable[..., nn.Module]:
    """A network of the paper for CIFAR-10, of three stages with `blocks` blocks."""
    words = {3: "three", 5: "five", 7: "seven", 9: "nine"}[blocks]

    def network(
        shape: tuple[int, ...],
        outputs: int,
        *,
        width: int = 16,  # channels of the first stage
        shortcut: Shortcut = "A",  # where the size changes: A pads with zeros, as in the paper; B projects
        eps: float = 1e-5,  # of batch norm
    ) -> nn.Module:
        return residual((blocks,) * 3, width, "cifar", shortcut, eps, shape, outputs)

    network.__doc__ = (
        f"ResNet-{6 * blocks + 2} for small images: three stages of {words} blocks with 16, 32 and 64 channels "
        f"(He et al. 2016, §4.2).\n\n{size} M parameters for ten classes."
    )
    return network


resnet20, resnet32, resnet44, resnet56 = _small(3, "0.27"), _small(5, "0.46"), _small(7, "0.66"), _small(9, "0.85")
