"""How a client trains: optimiser, step size, epochs, batch. One record, shared by every method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from posterity.core.hyperparameters import check_fields, hyper, within
from posterity.core.losses import fit
from posterity.core.optim import SGD, Adam, Optimiser, RMSprop
from posterity.core.passes import Loss, Partition, descend, everything
from posterity.core.protocol import Pass

OPTIMISERS = ("sgd", "adam", "rmsprop")
PFEDVMP = "pFedVMP §5.1"


@dataclass(frozen=True)
class Training:
    lr: float = hyper(0.01, "η: step size of the clients", PFEDVMP, search=(1e-3, 0.5, "log"))
    epochs: int = hyper(1, "E: epochs over the client's data in a round", PFEDVMP)
    steps: int | None = hyper(None, "exactly so many steps in a round, instead of epochs", "ours")
    batch: int = hyper(10, "B: batch size; the last, smaller batch is kept", PFEDVMP)
    optimiser: str = hyper("sgd", "optimiser of the clients, started anew each round", PFEDVMP, OPTIMISERS)
    momentum: float = hyper(0.0, "momentum (sgd only)", "unspecified in pFedVMP: none")
    weight_decay: float = hyper(0.0, "weight decay added to the gradient", "unspecified in pFedVMP: none")
    clip: float | None = hyper(None, "longest gradient norm", "MetaVD's code uses 5; off by default")

    def __post_init__(self) -> None:
        check_fields(self)
        within(self, lr=(0, None), epochs=(1, None), batch=(1, None), steps=(1, None), momentum=(0, 1))
        within(self, weight_decay=(0, None), clip=(0, None))

    def make_optimiser(self) -> Optimiser:
        if self.optimiser == "sgd":
            return SGD(self.lr, self.momentum, self.weight_decay, self.clip)
        maker: Callable[..., Optimiser] = Adam if self.optimiser == "adam" else RMSprop
        return maker(lr=self.lr, weight_decay=self.weight_decay, clip=self.clip)

    def schedule(self) -> dict[str, Any]:
        """Epochs, batch and cap as a `Pass` wants them; `steps` epochs always hold at least `steps` steps."""
        if self.steps is None:
            return {"epochs": self.epochs, "batch": self.batch}
        return {"epochs": self.steps, "batch": self.batch, "most": self.steps}

    def descend(self, loss: Loss = fit, trains: Partition = everything) -> Pass:
        return descend(loss, self.make_optimiser(), trains, **self.schedule())
