"""Fine-tuning: score the method after some epochs on the client's own training data, then forget them.

Training is untouched; at the evaluation point `adapted` each client copies what it received, trains the copy on its own
training part, is scored, and discards it (pFedVMP's "-FT" baselines; MetaVD's FedAvg+FT).

Differs from the paper: pFedVMP does not state the number of epochs; ours is 1 with the training optimiser. MetaVD takes
one step (its Appendix E; its Appendix D says a few): `adapt_steps = 1`.
"""

from dataclasses import dataclass, replace

from posterity.core import Pass, Wrapper, hyper


@dataclass(frozen=True)
class FineTuned(Wrapper):
    epochs: int = hyper(1, "epochs of fine-tuning", "unspecified in pFedVMP: 1", ge=0)
    adapt_steps: int | None = hyper(None, "steps of a learning pass per epoch of `adapt`; none: as the method has it",
                                    "pFedVMP; MetaVD: 1", ge=1)  # fmt: skip

    @property
    def label(self) -> str:
        return f"{self.inner.label}-FT"

    @property
    def scored(self) -> str:
        return "adapted"

    @property
    def adaptation(self) -> int:
        return self.epochs

    def adapt(self, epochs: int) -> tuple[Pass, ...]:
        passes = self.inner.adapt(epochs)
        if self.adapt_steps is None:
            return passes
        count = epochs * self.adapt_steps  # a client has a batch in every epoch, so these epochs have as many steps
        return tuple(replace(each, epochs=count, max_steps=count) if each.learns else each for each in passes)
