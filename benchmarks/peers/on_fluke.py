"""fluke: its own FedAVG, clients as objects in one process."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path

import torch
from torch import library
from workload import CLASSES, Outcome, Workload, main, make_data, make_network

OPERATORS = ("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
             "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # fmt: skip


def declare_operators() -> library.Library | None:
    """fluke imports torchvision, whose wheel on PyPI is compiled for CUDA and cannot be loaded beside a CPU torch.

    Its Python part, all that fluke needs here, imports once the names of two operators are known.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return None
    try:
        torch.ops.load_library(str(Path(spec.origin).parent / "_C.so"))
    except OSError:
        declared = library.Library("torchvision", "FRAGMENT")
        for each in OPERATORS:
            declared.define(each)
        return declared
    return None


DECLARED = declare_operators()  # kept alive: the names go with it

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402
from fluke.utils import FederationObserver  # noqa: E402


class Clients:
    """Given in place of fluke's own splitter: the common clients, nothing to test on."""

    def __init__(self, work: Workload) -> None:
        self.x, self.y = make_data(work)

    def assign(self, n_clients: int, batch_size: int) -> tuple:
        loaders = [
            FastDataLoader(x, y, num_labels=CLASSES, batch_size=batch_size, shuffle=True)
            for x, y in zip(self.x, self.y, strict=True)
        ]
        return (loaders, [None] * n_clients), None


class Clock(FederationObserver):
    """Notes the limits of each round."""

    def __init__(self) -> None:
        self.begun: list[float] = []
        self.ended: list[float] = []

    def start_round(self, round: int, global_model: object) -> None:
        self.begun.append(time.time())

    def end_round(self, round: int) -> None:
        self.ended.append(time.time())


def simulate(work: Workload) -> Outcome:
    FlukeENV().set_seed(work.seed)
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    settings = DDict(
        client=DDict(
            batch_size=work.batch,
            local_epochs=1,
            loss="CrossEntropyLoss",
            optimizer=DDict(name="SGD", lr=work.lr),
            scheduler=DDict(name="StepLR", step_size=1, gamma=1),
        ),
        server=DDict(weighted=True),
        model=make_network(work),
    )
    federation, clock = FedAVG(work.clients, Clients(work), settings), Clock()
    federation.set_callbacks([clock])
    federation.run(n_rounds=work.rounds, eligible_perc=1.0)
    seconds = [after - before for before, after in zip(clock.begun, clock.ended, strict=True)]
    remark = "torchvision's operators declared, not loaded" if DECLARED else ""
    return Outcome(clock.begun[0], seconds, federation.server.model, remark)


if __name__ == "__main__":
    main("fluke", simulate, "fluke-fl", "torchvision")
