"""Calibration: one temperature per client, fitted on its validation part.

Log-probabilities l(x) become log softmax(β l(x)). The inverse temperature β minimises, on the client's validation part,

    Σ_i −log softmax(β l(x_i))[y_i] + (β − 1)² / (2 s²)

which is strictly convex in β: its derivative is bisected. The prior keeps β at 1 where a client has little to say
about it (with one validation sample that is classified correctly, the likelihood alone would send β to infinity).
Without validation samples β is 1: so it is for a test set that belongs to no client.

Reference: Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", ICML 2017, section 4.2.

Differs from the paper: fitted per client; a prior on β; bisection instead of a gradient method. Accuracy cannot change:
the order of the classes is kept. The test part is never read; what is held out of the fit is the test part alone,
also where both halves are shown for other methods (selection rule `paper`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posterity.core import Batch, Carry, Here, Pass, Wrapper, hyper

LOW, HIGH, HALVINGS = 0.01, 100.0, 60  # β lies between; 60 halvings of its logarithm leave 1e-17


def slope(beta: Tensor, log_prob: Tensor, y: Tensor, mask: Tensor, width: float) -> Tensor:
    """Derivative of the penalised negative log-likelihood with respect to β."""
    centred = log_prob - log_prob.gather(-1, y[:, None])  # (B, C): 0 for the right class
    floor = torch.finfo(centred.dtype).min / 1e6
    centred = centred.clamp(min=floor, max=-floor)  # a probability of exactly 0 must not make 0 x infinity
    expected = (torch.softmax(beta * centred, -1) * centred).sum(-1)
    return (expected * mask).sum() + (beta - 1) / width**2


def fit_inverse_temperature(log_prob: Tensor, y: Tensor, mask: Tensor, width: float) -> Tensor:
    """The minimising β by bisection of its logarithm."""
    low = mask.new_full((), LOW).log() + 0 * mask.sum()
    high = mask.new_full((), HIGH).log() + 0 * mask.sum()
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        rising = slope(middle.exp(), log_prob, y, mask, width) > 0
        low, high = torch.where(rising, low, middle), torch.where(rising, middle, high)
    return ((low + high) / 2).exp()


@dataclass(frozen=True)
class Calibrated(Wrapper):
    width: float = hyper(1.0, "s: how far the inverse temperature may stray from 1 without evidence", "ours")

    def __post_init__(self) -> None:
        if not self.width > 0:
            raise ValueError(f"width must be positive; {self.width} was given")

    @property
    def label(self) -> str:
        return f"{self.inner.label} (calibrated)"

    def outside(self) -> str:
        return f"{self.inner.outside()}, without a temperature (β = 1)"

    def prepare(self) -> tuple[Pass, ...]:
        fit = Pass(self.fit, batch=None, shuffle=False, learns=False, on="validation")
        return (*self.inner.prepare(), fit)

    def fit(self, carry: Carry, batch: Batch, here: Here) -> Carry:
        if here.model.task == "regression":
            raise ValueError("+calibrated fits the temperature of class probabilities; this task is regression")
        log_prob = self.inner.predict(carry, batch.x, here)
        beta = fit_inverse_temperature(log_prob, batch.y, batch.mask, self.width)
        return replace(carry, kept={**carry.kept, "inverse_temperature": beta})

    def predict(self, carry: Carry, x: Tensor, here: Here) -> Tensor:
        return torch.log_softmax(carry.kept["inverse_temperature"] * self.inner.predict(carry, x, here), -1)
