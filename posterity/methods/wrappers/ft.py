"""Fine-tuning: score the method after some epochs on the client's own training data, then forget them.

Training is untouched; at the evaluation point `adapted` each client copies what it received, trains the copy on its own
training part, is scored, and discards it (pFedVMP's "-FT" baselines; MetaVD's FedAvg+FT).

Differs from the paper: pFedVMP does not state the number of epochs; ours is 1 with the training optimiser.
"""

from __future__ import annotations

from dataclasses import dataclass

from posterity.core import Wrapper, hyper, within


@dataclass(frozen=True)
class FineTuned(Wrapper):
    epochs: int = hyper(1, "epochs of fine-tuning", "unspecified in pFedVMP: 1")

    def __post_init__(self) -> None:
        within(self, epochs=(0, None))

    @property
    def label(self) -> str:
        return f"{self.inner.label}-FT"

    @property
    def scored(self) -> str:
        return "adapted"

    @property
    def adaptation(self) -> int:
        return self.epochs
