"""Calibration: one temperature per client (regression: one factor of the variance), fitted on its validation part.

Log-probabilities l(x) become log softmax(β l(x)). The inverse temperature β minimises, on the client's validation part,

    Σ_i −log softmax(β l(x_i))[y_i] + (β − 1)² / (2 s²)

which is strictly convex in β: its derivative is bisected. The prior keeps β at 1 where a client has little to say
about it (with one validation sample that is classified correctly, the likelihood alone would send β to infinity).
Without validation samples β is 1: so it is for a test set that belongs to no client.

For regression the variances v(x) become v(x) / β, and what predicts with the variance 1, as most methods do, learns how
far it is from the truth. With n validation samples, residuals r_i, the mean ȳ of their targets, and ν = 1/s²,

    β = (n + ν) / (Σ_i r_i²/v_i + ν/n Σ_i (y_i − ȳ)²/v_i)                                                      # (a)

the most likely β, had ν more samples been seen that are as far off as a constant would be: with little to say, a client
trusts its model no more than that, whatever unit the target has. With fewer than two validation samples, β is 1.

Reference: Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", ICML 2017, section 4.2.

Differs from the paper: fitted per client; a prior on β; bisection instead of a gradient method; regression. Accuracy
cannot change: the order of the classes is kept, and so are means. The test part is never read; what is held out of the
fit is the test part alone, also where both halves are shown for other methods (selection rule `paper`). The letter is
ours.
"""

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


def fit_precision(mean: Tensor, variance: Tensor, y: Tensor, mask: Tensor, width: float) -> Tensor:
    """The factor β of precisions."""
    n, more = mask.sum(), 1 / width**2
    centre = (y * mask).sum() / n.clamp(min=1)
    off, spread = (mask * (y - mean) ** 2 / variance).sum(), (mask * (y - centre) ** 2 / variance).sum()
    all_off = off + more * spread / n.clamp(min=1)
    return torch.where((n > 1) & (all_off > 0), (n + more) / torch.where(all_off > 0, all_off, 1), 1)  # (a)


@dataclass(frozen=True)
class Calibrated(Wrapper):
    width: float = hyper(1.0, "s: how far the inverse temperature may stray from 1 without evidence", "ours", gt=0)

    @property
    def label(self) -> str:
        return f"{self.inner.label} (calibrated)"

    @property
    def outside(self) -> str:
        return f"{self.inner.outside}, without a temperature (β = 1)"

    def prepare(self) -> tuple[Pass, ...]:
        fit = Pass(self.fit, batch=None, shuffle=False, learns=False, on="validation")
        return (*self.inner.prepare(), fit)

    def fit(self, carry: Carry, batch: Batch, here: Here) -> Carry:
        output = self.inner.predict(carry, batch.x, here)
        if here.model.task == "regression":
            beta = fit_precision(output[..., 0], output[..., 1], batch.y, batch.mask, self.width)
        else:
            beta = fit_inverse_temperature(output, batch.y, batch.mask, self.width)
        return replace(carry, kept={**carry.kept, "inverse_temperature": beta})

    def predict(self, carry: Carry, x: Tensor, here: Here) -> Tensor:
        output, beta = self.inner.predict(carry, x, here), carry.kept["inverse_temperature"]
        if here.model.task == "regression":
            mean, variance = output.unbind(-1)
            return torch.stack((mean, variance / beta), -1)
        return torch.log_softmax(beta * output, -1)
