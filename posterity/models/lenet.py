"""Convolutions with pooling, then fully connected layers: LeNet and the networks that papers made of it."""

from collections import OrderedDict
from collections.abc import Callable

from torch import nn

SMALL = 16  # the least side that two unpadded 5×5 convolutions with 2×2 pooling leave a pixel of
LEAST = 4  # the same with padding 2
BIAS = 1e-3  # standard deviation of the first biases of MetaVD's network

Padding = int | tuple[int, int] | None
Make = Callable[[], nn.Module]


def _stack(
    shape: tuple[int, ...],
    channels: tuple[int, ...],
    widths: tuple[int, ...],
    outputs: int,
    padding: tuple[int, ...],
    kernel: int = 5,
    activations: tuple[Make, Make] = (nn.ReLU, nn.ReLU),  # of convolutions, and of fully connected layers
) -> nn.Module:
    """`base`: conv–pool–activation, then fully connected layers with activation; `head`: one linear layer."""
    base: OrderedDict[str, nn.Module] = OrderedDict()
    before = shape[0]
    for i, (after, pad) in enumerate(zip(channels, padding, strict=True), 1):
        base[f"conv{i}"] = nn.Conv2d(before, after, kernel, padding=pad)
        base[f"pool{i}"] = nn.MaxPool2d(2)  # before the activation: it is monotone, so the result is the same
        base[f"act{i}"] = activations[0]()  # and there is a quarter to compute
        before = after
    height, width = _sides(shape, padding, kernel)
    base["flatten"] = nn.Flatten()
    before *= height * width
    for i, after in enumerate(widths, 1):
        base[f"fc{i}"] = nn.Linear(before, after)
        base[f"act{i + len(channels)}"] = activations[1]()
        before = after
    return nn.Sequential(OrderedDict(base=nn.Sequential(base), head=nn.Linear(before, outputs)))


def _sides(shape: tuple[int, ...], padding: tuple[int, ...], kernel: int = 5) -> tuple[int, int]:
    """Height and width after all convolutions and poolings."""
    height, width = shape[1:]
    for pad in padding:
        height, width = (max(side + 2 * pad - kernel + 1, 0) // 2 for side in (height, width))
    return height, width


def _lenet(
    shape: tuple[int, ...],
    outputs: int,
    channels: tuple[int, int],
    widths: tuple[int, ...],
    padding: Padding,
    activation: Make = nn.ReLU,
) -> nn.Module:
    """Two 5×5 convolutions, padded as given, else not, or by 2 for images smaller than 16 pixels."""
    if len(shape) != 3:
        raise ValueError(f"A convolutional network takes images (channels, height, width), not shape {shape}.")
    default = (2, 2) if min(shape[1:]) < SMALL else (0, 0)
    pads = (padding, padding) if isinstance(padding, int) else padding or default
    if min(_sides(shape, pads)) < 1:
        raise ValueError(
            f"Images of {shape[1]}×{shape[2]} are too small for two 5×5 convolutions with padding {pads}: "
            f"at least {SMALL} pixels without padding, {LEAST} with padding=2 (the default for small images)."
        )
    return _stack(shape, channels, widths, outputs, pads, activations=(activation, activation))


def cnn(
    shape: tuple[int, ...],
    outputs: int,
    *,
    feature_dim: int = 512,  # the paper studies 128 to 640
    padding: Padding = None,  # None: 0 as in the paper, but 2 for images smaller than 16 pixels
) -> nn.Module:
    """The pFedVMP paper's network (Table 4): two 5×5 convolutions (32, 64), one fully connected layer (512), a head.

    LeakyReLU(0.1) throughout; the features are the fully connected layer after its activation.
    """
    return _lenet(shape, outputs, (32, 64), (feature_dim,), padding, lambda: nn.LeakyReLU(0.1))


def lenet5(
    shape: tuple[int, ...],
    outputs: int,
    *,
    padding: Padding = None,  # None: 0, but 2 for images smaller than 16 pixels; (2, 0) on 28×28 is the original
) -> nn.Module:
    """LeNet-5 with ReLU and max pooling: two 5×5 convolutions (6, 16), fully connected 120 and 84, a head.

    44,426 parameters on 1×28×28 with ten classes, 61,706 with padding=(2, 0).
    """
    return _lenet(shape, outputs, (6, 16), (120, 84), padding)


def lenet_wide(
    shape: tuple[int, ...],
    outputs: int,
    *,
    width: int = 64,  # channels of both convolutions; FedBPS does not print its own
    padding: Padding = None,  # None: 0, but 2 for images smaller than 16 pixels
) -> nn.Module:
    """A wider LeNet for colour images: two 5×5 convolutions (64, 64), fully connected 384 and 192, a head.

    ReLU and max pooling; the features are the 192 units after their activation.
    """
    return _lenet(shape, outputs, (width, width), (384, 192), padding)


def metavd_cnn(
    shape: tuple[int, ...],
    outputs: int,
    *,
    width: int = 64,  # channels; MetaVD's release uses 256 for MetaVD alone (its erratum M7)
    hidden: tuple[int, ...] = (256, 128),  # the text says 256, 128, 64; the release has two
) -> nn.Module:
    """The MetaVD paper's network: three 3×3 convolutions (64), fully connected 256 and 128, a head.

    372,234 parameters on 3×32×32 with ten classes; the last hidden layer is the one that MetaVD makes Bayesian.
    """
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise ValueError(f"metavd_cnn takes images (channels, height, width) of at least 8×8, not shape {shape}.")
    net = _stack(shape, (width,) * 3, hidden, outputs, (1,) * 3, 3, (nn.ReLU, lambda: nn.LeakyReLU(0.1)))
    for layer in net.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            nn.init.xavier_normal_(layer.weight)
            nn.init.normal_(layer.bias, std=BIAS)  # type: ignore[arg-type]
    return net
