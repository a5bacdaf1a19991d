"""Convolutions with pooling, then fully connected layers: LeNet and the networks that papers made of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch import nn

from posterity.core.network import Task
from posterity.nn.adopt import assemble
from posterity.nn.model import Model

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


def cnn(
    shape: tuple[int, ...],
    classes: int,
    task: Task = "classification",
    *,
    feature_dim: int = 512,  # the paper studies 128 to 640
    padding: Padding = None,  # None: 0 as in the paper, but 2 for images smaller than 16 pixels
) -> Model:
    """The pFedVMP paper's network (Table 4): two 5×5 convolutions (32, 64), one fully connected layer (512), a head.

    LeakyReLU(0.1) throughout; the features are the fully connected layer after its activation.
    """
    pads, outputs = padded(shape, padding), 1 if task == "regression" else classes

    def make() -> nn.Module:
        return stack(shape, (32, 64), (feature_dim,), outputs, pads, lambda: nn.LeakyReLU(0.1))

    return assemble(make, "head", shape, classes, task, "cnn")


def lenet5(
    shape: tuple[int, ...],
    classes: int,
    task: Task = "classification",
    *,
    padding: Padding = None,  # None: 0, but 2 for images smaller than 16 pixels; (2, 0) on 28×28 is the original
) -> Model:
    """LeNet-5 with ReLU and max pooling: two 5×5 convolutions (6, 16), fully connected 120 and 84, a head.

    44,426 parameters on 1×28×28 with ten classes, 61,706 with padding=(2, 0).
    """
    pads, outputs = padded(shape, padding), 1 if task == "regression" else classes

    def make() -> nn.Module:
        return stack(shape, (6, 16), (120, 84), outputs, pads)

    return assemble(make, "head", shape, classes, task, "lenet5")


def lenet_wide(
    shape: tuple[int, ...],
    classes: int,
    task: Task = "classification",
    *,
    width: int = 64,  # channels of both convolutions; FedBPS does not print its own
    padding: Padding = None,  # None: 0, but 2 for images smaller than 16 pixels
) -> Model:
    """A wider LeNet for colour images: two 5×5 convolutions (64, 64), fully connected 384 and 192, a head.

    ReLU and max pooling; the features are the 192 units after their activation.
    """
    pads, outputs = padded(shape, padding), 1 if task == "regression" else classes

    def make() -> nn.Module:
        return stack(shape, (width, width), (384, 192), outputs, pads)

    return assemble(make, "head", shape, classes, task, "lenet_wide")


BIAS = 1e-3  # standard deviation of the first biases


def metavd_cnn(
    shape: tuple[int, ...],
    classes: int,
    task: Task = "classification",
    *,
    width: int = 64,  # channels; MetaVD's release uses 256 for MetaVD alone (its erratum M7)
    hidden: tuple[int, ...] = (256, 128),  # the text says 256, 128, 64; the release has two
) -> Model:
    """The MetaVD paper's network: three 3×3 convolutions (64), fully connected 256 and 128, a head.

    372,234 parameters on 3×32×32 with ten classes; the last hidden layer is the one that MetaVD makes Bayesian.
    """
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise ValueError(f"metavd_cnn takes images (channels, height, width) of at least 8×8, not shape {shape}.")
    outputs = 1 if task == "regression" else classes

    def make() -> nn.Module:
        base: OrderedDict[str, nn.Module] = OrderedDict()
        before = shape[0]
        for i in (1, 2, 3):
            base[f"conv{i}"] = nn.Conv2d(before, width, 3, padding=1)
            base[f"pool{i}"] = nn.MaxPool2d(2)  # before the activation: the same result, a quarter to compute
            base[f"act{i}"] = nn.ReLU()
            before = width
        base["flatten"] = nn.Flatten()
        before *= (shape[1] // 8) * (shape[2] // 8)
        for i, after in enumerate(hidden, 1):
            base[f"fc{i}"] = nn.Linear(before, after)
            base[f"act{i + 3}"] = nn.LeakyReLU(0.1)
            before = after
        net = nn.Sequential(OrderedDict(base=nn.Sequential(base), head=nn.Linear(before, outputs)))
        for layer in net.modules():
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                nn.init.xavier_normal_(layer.weight)
                nn.init.normal_(layer.bias, std=BIAS)  # type: ignore[arg-type]
        return net

    return assemble(make, "head", shape, classes, task, "metavd_cnn")
