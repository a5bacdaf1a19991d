"""The common work: FedAvg on synthetic images of ten classes, the two networks, and the line that a script prints.

Everybody starts from the same weights and has the same clients; only the order of samples differs. Needs torch alone,
because it is imported in every peer's own environment.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache

import torch
from torch import Tensor, nn

CLASSES, SHAPE = 10, (1, 28, 28)
THREADS = 2


@dataclass(frozen=True)
class Workload:
    network: str = "mlp"
    clients: int = 50
    images: int = 40  # of each client
    rounds: int = 5
    batch: int = 10
    lr: float = 0.01
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """What a simulator did: when its first round began, how long each took, and the network it ended with."""

    begun: float  # time.time()
    rounds: list[float]  # seconds
    module: nn.Module
    remark: str = ""


@dataclass(frozen=True)
class Report:
    """The line of JSON that a script prints."""

    name: str
    network: str
    startup: float  # seconds from the start of the process to the first round
    rounds: list[float]
    first_loss: float  # of the common first weights on everybody's images
    last_loss: float
    parameters: int
    remark: str = ""
    versions: dict[str, str] = field(default_factory=dict)


@cache
def make_data(work: Workload) -> tuple[Tensor, Tensor]:
    """Images (clients, images, 1, 28, 28), a coarse centre for each class plus noise, and labels (clients, images)."""
    generator = torch.Generator().manual_seed(work.seed)
    y = torch.randint(0, CLASSES, (work.clients, work.images), generator=generator)
    coarse = torch.randn(CLASSES, 1, 7, 7, generator=generator)
    centres = nn.functional.interpolate(coarse, scale_factor=4)  # (classes, 1, 28, 28)
    return centres[y] + torch.randn(*y.shape, *SHAPE, generator=generator), y


def make_network(work: Workload) -> nn.Module:
    """`mlp` is 784-64-10, `cnn` the network of that name in posterity; plain torch, the same first weights always."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(work.seed)
        if work.network == "mlp":
            base = nn.Sequential(OrderedDict(flatten=nn.Flatten(), fc1=nn.Linear(784, 64), relu1=nn.ReLU()))
            return nn.Sequential(OrderedDict(base=base, head=nn.Linear(64, CLASSES)))
        if work.network == "cnn":
            base = nn.Sequential(OrderedDict(
                conv1=nn.Conv2d(1, 32, 5), act1=nn.LeakyReLU(0.1), pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(32, 64, 5), act2=nn.LeakyReLU(0.1), pool2=nn.MaxPool2d(2),
                flatten=nn.Flatten(), fc1=nn.Linear(1024, 512), act3=nn.LeakyReLU(0.1),
            ))  # fmt: skip
            return nn.Sequential(OrderedDict(base=base, head=nn.Linear(512, CLASSES)))
    raise ValueError(f"network {work.network!r} is unknown; possible: mlp, cnn")


def train_client(module: nn.Module, x: Tensor, y: Tensor, work: Workload) -> None:
    """One epoch in a new order with a new optimiser, as one would write it."""
    optimiser = torch.optim.SGD(module.parameters(), lr=work.lr)
    for rows in torch.split(torch.randperm(len(x)), work.batch):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(x[rows]), y[rows]).backward()
        optimiser.step()


@torch.no_grad()
def mean_loss(module: nn.Module, work: Workload) -> float:
    """Cross-entropy on everybody's training images."""
    x, y = make_data(work)
    return float(nn.functional.cross_entropy(module(x.flatten(0, 1)), y.flatten()))


def make_report(name: str, work: Workload, outcome: Outcome, launched: float, packages: tuple[str, ...]) -> Report:
    versions = {each: importlib.metadata.version(each) for each in ("torch", *packages)}
    return Report(
        name,
        work.network,
        outcome.begun - launched,
        outcome.rounds,
        mean_loss(make_network(work), work),
        mean_loss(outcome.module, work),
        sum(p.numel() for p in outcome.module.parameters()),
        outcome.remark,
        {"python": platform.python_version(), **versions},
    )


def main(name: str, simulate: Callable[[Workload], Outcome], *packages: str) -> None:
    """Called by each script with the arguments WORKLOAD (JSON) and LAUNCHED (time.time() of the caller)."""
    work = Workload(**json.loads(sys.argv[1])) if len(sys.argv) > 1 else Workload()
    launched = float(sys.argv[2]) if len(sys.argv) > 2 else time.time()
    torch.set_num_threads(THREADS)
    torch.manual_seed(work.seed)  # of the orders in which samples come
    report = make_report(name, work, simulate(work), launched, packages)
    if not report.last_loss < report.first_loss:
        raise SystemExit(f"{name} did not train: its loss was {report.first_loss} and is {report.last_loss}")
    print(json.dumps(asdict(report)), flush=True)
