"""Residual networks (He et al. 2016), with the stems and shortcuts that papers use for small images."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from posterity.core.network import Task
from posterity.nn.adopt import assemble
from posterity.nn.model import Model
from posterity.settings.hyperparameters import unknown

Stem = Literal["cifar", "halved", "imagenet"]
Shortcut = Literal["A", "B"]
STEMS = ("cifar", "halved", "imagenet")
SHORTCUTS = ("A", "B")


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
    name: str,
    blocks: tuple[int, ...],
    width: int,
    stem: Stem,
    shortcut: Shortcut,
    eps: float,
    shape: tuple[int, ...],
    classes: int,
    task: Task,
) -> Model:
    """Stem, stages of `blocks` blocks with `width`, 2·`width`, … channels, global mean, linear head."""
    if len(shape) != 3:
        raise ValueError(f"{name} takes images (channels, height, width), not shape {shape}.")
    if stem not in STEMS:
        raise ValueError(unknown("stem", str(stem), STEMS))
    if shortcut not in SHORTCUTS:
        raise ValueError(unknown("shortcut", str(shortcut), SHORTCUTS))
    outputs = 1 if task == "regression" else classes

    def make() -> nn.Module:
        base, before = _stem(shape[0], width, stem, eps), width
        for stage, count in enumerate(blocks):
            after = width * 2**stage
            row = [Block(before if i == 0 else after, after, 2 if stage and i == 0 else 1, shortcut, eps)
                   for i in range(count)]  # fmt: skip
            base[f"stage{stage + 1}"], before = nn.Sequential(*row), after
        base["pool"], base["flatten"] = nn.AdaptiveAvgPool2d(1), nn.Flatten()
        full = nn.Sequential(OrderedDict(base=nn.Sequential(base), head=nn.Linear(before, outputs)))
        for layer in full.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        return full

    return assemble(make, "head", shape, classes, task, name)


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
    classes: int,
    task: Task = "classification",
    *,
    stem: Stem = "cifar",  # for 64×64 also "halved" (3×3, stride 2); "imagenet" is 7×7, stride 2 and max-pool
    width: int = 64,  # channels of the first stage
    shortcut: Shortcut = "B",  # where the size changes: A pads with zeros, B projects
    eps: float = 1e-5,  # of batch norm
) -> Model:
    """ResNet-18, by default with the stem for small images (3×3, no max-pool) of the FedNP paper's experiments.

    Four stages of two blocks; 11.17 M parameters and the head.
    """
    return residual("resnet18", (2, 2, 2, 2), width, stem, shortcut, eps, shape, classes, task)


def resnet20(
    shape: tuple[int, ...],
    classes: int,
    task: Task = "classification",
    *,
    width: int = 16,  # channels of the first stage
    shortcut: Shortcut = "A",  # where the size changes: A pads with zeros, as in the paper; B projects
    eps: float = 1e-5,  # of batch norm
) -> Model:
    """ResNet-20 for small images: three stages of three blocks with 16, 32 and 64 channels (He et al. 2016, §4.2).

    0.27 M parameters for ten classes.
    """
    return residual("resnet20", (3, 3, 3), width, "cifar", shortcut, eps, shape, classes, task)


def resnet32(
    shape: tuple[int, ...],
    classes: int,
    task: Task = "classification",
    *,
    width: int = 16,  # channels of the first stage
    shortcut: Shortcut = "A",  # where the size changes: A pads with zeros, as in the paper; B projects
    eps: float = 1e-5,  # of batch norm
) -> Model:
    """ResNet-32 for small images: three stages of five blocks with 16, 32 and 64 channels (He et al. 2016, §4.2).

    0.46 M parameters for ten classes.
    """
    return residual("resnet32", (5, 5, 5), width, "cifar", shortcut, eps, shape, classes, task)


def resnet44(
    shape: tuple[int, ...],
    classes: int,
    task: Task = "classification",
    *,
    width: int = 16,  # channels of the first stage
    shortcut: Shortcut = "A",  # where the size changes: A pads with zeros, as in the paper; B projects
    eps: float = 1e-5,  # of batch norm
) -> Model:
    """ResNet-44 for small images: three stages of seven blocks with 16, 32 and 64 channels (He et al. 2016, §4.2).

    0.66 M parameters for ten classes.
    """
    return residual("resnet44", (7, 7, 7), width, "cifar", shortcut, eps, shape, classes, task)


def resnet56(
    shape: tuple[int, ...],
    classes: int,
    task: Task = "classification",
    *,
    width: int = 16,  # channels of the first stage
    shortcut: Shortcut = "A",  # where the size changes: A pads with zeros, as in the paper; B projects
    eps: float = 1e-5,  # of batch norm
) -> Model:
    """ResNet-56 for small images: three stages of nine blocks with 16, 32 and 64 channels (He et al. 2016, §4.2).

    0.85 M parameters for ten classes.
    """
    return residual("resnet56", (9, 9, 9), width, "cifar", shortcut, eps, shape, classes, task)
