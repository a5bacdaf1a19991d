"""The MetaVD paper's network: three 3×3 convolutions (64), fully connected 256 and 128, a head."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from posterity.core.network import Task
from posterity.nn.assembly import assemble
from posterity.nn.functional import Model

BIAS = 1e-3  # standard deviation of the first biases


def build(
    shape: tuple[int, ...],
    classes: int,
    task: Task = "classification",
    *,
    width: int = 64,  # channels; MetaVD's release uses 256 for MetaVD alone (its erratum M7)
    hidden: tuple[int, ...] = (256, 128),  # the text says 256, 128, 64; the release has two
) -> Model:
    """372,234 parameters on 3×32×32 with ten classes; the last hidden layer is the one that MetaVD makes Bayesian."""
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
