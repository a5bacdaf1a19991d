"""QLSD: all clients together take one Langevin step a round, and send their gradients quantised.

The target is the posterior p(θ) ∝ exp(−Σ_k U_k(θ) − ½τ‖θ‖²), where U_k is the *summed* negative log-likelihood of the
n_k samples of client k. A client sends a stochastic gradient at θ; the server scales what m of K sent, and moves:

    client   H_k = n_k ∇(mean loss of one batch), sent as Q(H_k)                                         # (a)
    server   g = (K/m) Σ_{k∈S} Q(H_k) + τθ                                                               # (b)
             θ ← θ − γ g + √(2γT) ξ,   ξ ~ N(0, I) drawn once, by the server                             # (c)

Each tensor v is quantised by itself to s levels of its norm (QSGD), without bias, with a keyed Bernoulli draw:

    Q(v)_i = ‖v‖ sign(v_i) (l + Bernoulli(r − l)) / s,   r = s |v_i| / ‖v‖,   l = ⌊r⌋                    # (d)

γ = η/N unless it is given, with η the clients' step size and N all samples: the drift is then that of SGD with η on the
mean loss. T = 1 samples from the posterior, T = 0 only descends. There are no local steps: a round costs a client one
batch. Predictions are those of the last sample, or with `average` = M > 1 the mean of the predictions of the last M
kept samples (every `thin` rounds after `burn`), which are then broadcast too. A newcomer gets the same; fine-tuning
starts at the last sample.

Reference: Vono, Plassier, Durmus, Dieuleveut and Moulines, "QLSD: Quantised Langevin stochastic dynamics for Bayesian
federated learning", AISTATS 2022. The quantiser: Alistarh, Grubic, Li, Tomioka and Vojnovic, "QSGD", NeurIPS 2017.

The letters (a) to (d) are ours: the paper's own numbers were not at hand.

Differs from the paper: this is QLSD# (minibatches); reference points (QLSD*), variance reduction and memory terms
(QLSD++) are not here. The prior's gradient is added by the server, exactly: shares of it would be quantised with the
rest, and have the same mean. Bytes are counted with levels in Elias' gamma code (2⌊log₂(l + 1)⌋ + 1 bits, and one for
the sign where l > 0) and one norm a tensor; a tensor that is below the rounding of the others is sent as zeros. The
released code quantises twice, mixes up two weight decays and starts memories at the parameters; none of that is here.
Running statistics of batch norm are averaged by samples, and are not part of the target.

First come the lengths of all levels in unary (as many zeros as a code has further digits, and a one), then all further
digits and signs: as many bits as one code after the other, but arrays can be read at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posterity import core

RELEASED = "released code"
ROUNDING = 4  # times the precision of the numbers: what is smaller beside the rest is no gradient


@core.record
class State:
    params: core.Params  # θ, the last sample
    past: core.Params  # trainable leaves (M, ...) of kept samples; {} if predictions are the last one's
    samples: int = field(metadata={core.STATIC: True})  # N
    clients: int = field(metadata={core.STATIC: True})  # K


@core.record
class Levels(core.Sparse):
    """A mean whose leaves are Q(v): a norm for every leaf and the levels of its entries are what travels."""

    norms: core.Params = field(default_factory=dict)  # ‖v‖ of each leaf, ()
    levels: int = field(default=1, metadata={core.STATIC: True})  # s

    def to_arrays(self) -> dict[str, Tensor]:
        """The weight, norms and codes; a leaf that is no multiple of norm / s (`+clip` shortened it) goes as it is."""
        sent = {"weight": self.part.weight}
        for name, value in self.part.value.items():
            scale = self.norms[name]
            level = (value / torch.where(scale > 0, scale, 1) * self.levels).round()
            if torch.equal(scale * level / self.levels, value):
                sent |= {f"norm/{name}": scale, f"code/{name}": coded(level.long().flatten())}
            else:
                sent[f"value/{name}"] = value
        return sent

    def from_arrays(self, take: Callable[..., Tensor]) -> Levels:
        """The same with what another client sent, which has the shapes of this one."""
        weight, values, norms = take("weight", self.part.weight.shape, self.part.weight.dtype), {}, {}
        for name, like in self.part.value.items():
            norms[name] = self.norms[name]
            if take.has(f"value/{name}"):  # type: ignore[attr-defined]
                values[name] = take(f"value/{name}", like.shape, like.dtype)
                continue
            norms[name], code = take(f"norm/{name}", (), like.dtype), take(f"code/{name}", None, torch.uint8)
            level = decoded(code, like.numel(), self.levels).reshape(like.shape).to(like)
            values[name] = norms[name] * level / self.levels  # (d)
        return replace(self, part=core.Mean(weight, values), norms=norms)


@dataclass(frozen=True)
class QLSD(core.Method):
    label = "QLSD"
    reference = "Vono et al., AISTATS 2022"
    absent = "cohort only"
    differences = ("slope",)

    local: core.Training = core.hyper(
        core.Training(), "lr and batch are those of a round; fine-tuning uses all of it", paper=core.Training(batch=64)
    )
    step: float | None = core.hyper(None, "γ: step size on summed losses; none: local.lr/N", "ours", paper=1e-5, ge=0)
    full: bool = core.hyper(False, "gradients of all data instead of one batch", "QLSD#")
    levels: int = core.hyper(256, "s: levels of the quantiser; 0: gradients go as they are", RELEASED, ge=0, le=2**20)
    prior: float = core.hyper(
        1.0, "τ: precision of the Gaussian prior", "ours: unit weights", paper=200.0, search=(0.1, 10.0, "log"), ge=0
    )
    temperature: float = core.hyper(1.0, "T: 1 samples from the posterior, 0 descends without noise", "the paper", ge=0)
    average: int = core.hyper(1, "M: kept samples whose predictions are averaged; 1: the last alone", "ours", ge=1)
    burn: int = core.hyper(0, "rounds before the first sample is kept (average > 1)", "ours", ge=0)
    thin: int = core.hyper(1, "rounds from one kept sample to the next (average > 1)", "ours", ge=1)
    loss: core.Loss = core.fit  # a wrapper may replace it

    # --- server
    adapt = core.adapt_plainly

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        names = core.trainable(params, model) if self.average > 1 else []
        past = {n: params[n].expand(self.average, *params[n].shape).clone() for n in names}
        return State(params, past, facts.samples, facts.clients)

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        slope = total["slope"].mean()
        gamma = self.local.lr / max(state.samples, 1) if self.step is None else self.step
        new = dict(total["rest"].mean()) if "rest" in total else {}
        for number, (name, mean) in enumerate(slope.items()):
            theta = state.params[name].to(mean)
            drift = state.clients * mean + self.prior * theta  # (b)
            noise = core.normal(core.fold(now.key, number), mean.shape, mean.dtype).to(mean)
            new[name] = theta - gamma * drift + math.sqrt(2 * gamma * self.temperature) * noise  # (c)
        past = {n: self.remembered(slots, new[n].to(slots), now.round) for n, slots in state.past.items()}
        return State({n: new[n] for n in state.params}, past, state.samples, state.clients)

    def remembered(self, slots: Tensor, new: Tensor, round: int) -> Tensor:
        """The kept samples (M, ...) after a round; the newest stands in for those that are still to come."""
        taken, rest = divmod(max(round - self.burn, 0), self.thin)
        place = (taken - 1) % self.average if rest == 0 else -1
        return torch.stack([new if i >= taken or i == place else slots[i] for i in range(self.average)])

    # --- one client
    def seen(
        self, slope: core.Params, params: core.Params, batch: core.Batch, here: core.Here
    ) -> tuple[core.Params, Tensor]:
        """The gradient summed over a batch, and how many samples it has."""
        count = batch.mask.sum()
        return core.tree_map(lambda g: g * count, slope), count

    def passes(self) -> core.Passes:
        """One batch, or all, with steps of length 0: gradients and running statistics, θ stays."""
        max_steps = None if self.full else 1
        found = core.watched(
            "slope", self.seen, self.loss, core.SGD(0.0), core.trainable, batch=self.local.batch, max_steps=max_steps
        )
        return core.holding((found,), copies=8)  # what the quantiser draws and makes

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        summed, count = carry.kept["slope"]
        slope = core.tree_map(lambda g: here.n * g / count.clamp(min=1), summed)  # (a)
        rest = {n: p for n, p in carry.params.items() if n not in slope}
        sent: core.Message = {"slope": self.compressed(slope, here)}
        return sent | ({"rest": core.Mean(here.n, rest)} if rest else {}), ()

    def compressed(self, slope: core.Params, here: core.Here) -> core.Mean | Levels:
        """The gradient as it travels: every client counts as one, for it is a sum over the client's samples."""
        one = torch.ones_like(here.n)
        if not self.levels:
            return core.Mean(one, slope)
        slope = without_rounding(slope)
        found = {n: quantised(g, self.levels, core.fold(here.key, i)) for i, (n, g) in enumerate(slope.items())}
        unsent = [(q.numel() - 1) * q.element_size() - code_bytes(level, self.levels) for q, level in found.values()]
        mean, norms = core.Mean(one, {n: q for n, (q, _) in found.items()}), {n: core.norm(g) for n, g in slope.items()}
        return Levels(mean, torch.stack(unsent).sum(), norms=norms, levels=self.levels)

    def predict(self, carry: core.Carry, x: Tensor, here: core.Here) -> Tensor:
        if not here.shared.past or "loss" in carry.kept:  # a model that was trained here is one
            return core.log_predictive(carry.params, x, here)
        kept = [{**carry.params, **core.tree_rows(here.shared.past, i)} for i in range(self.average)]
        return core.mixture(torch.stack([core.log_predictive(params, x, here) for params in kept]), here.model.task)


# --- the quantiser
def quantised(v: Tensor, levels: int, key: Tensor) -> tuple[Tensor, Tensor]:
    """Q(v) and the levels 0 … s that its entries have; a tensor of zeros stays one."""
    length = core.norm(v)
    r = (levels * (v.abs() / torch.where(length > 0, length, 1))).clamp(max=levels)
    low = r.floor()
    level = low + (core.uniform(key, v.shape, v.dtype) < r - low).to(v.dtype)  # (d)
    return length * torch.sign(v) * level / levels, level  # (d)


def without_rounding(slope: core.Params) -> core.Params:
    """`slope`, with tensors that are only the rounding of the others (a bias before batch norm) as the zeros they are.

    Quantised by their own norm they would travel as noise, another one for every order of summation.
    """
    least = ROUNDING * torch.finfo(next(iter(slope.values())).dtype).eps * core.norm(slope)
    return core.tree_map(lambda v: torch.where(core.norm(v) > least, v, 0), slope)


# --- levels as bytes: Elias' gamma code
def coded(levels: Tensor) -> Tensor:
    """Signed levels (n,) int64 as bytes."""
    signed = levels.numpy()
    number = np.abs(signed) + 1  # gamma codes begin at 1
    digits = np.frexp(number.astype(np.float64))[1] - 1  # floor(log2) of whole numbers to 2^52, exactly
    unary = np.zeros(int(digits.sum()) + len(number), dtype=np.uint8)
    unary[np.cumsum(digits + 1) - 1] = 1
    further = (number[:, None] >> np.arange(digits.max(initial=0))) & 1
    rest = np.column_stack((further, signed < 0))[_places(digits)]
    return torch.from_numpy(np.packbits(np.concatenate((unary, rest.astype(np.uint8)))))


def decoded(data: Tensor, count: int, most: int) -> Tensor:
    """The `count` signed levels of `coded`, none above `most`; anything else is a ValueError."""
    bits = np.unpackbits(data.numpy())
    ends = np.flatnonzero(bits)[:count]
    if len(ends) < count:
        raise ValueError(f"a code of {count} levels has only {len(ends)}")
    digits = np.diff(ends, prepend=-1) - 1
    if digits.max(initial=0) > np.log2(most + 1):
        raise ValueError(f"a level is above {most}")
    rest = bits[int(ends[-1]) + 1 if count else 0 :]
    places = _places(digits)
    length = int(places.sum())
    if not (len(rest) - 8 < length <= len(rest)) or rest[length:].any():
        raise ValueError(f"a code of {count} levels has {len(data)} bytes, which is not what they take")
    further = np.zeros(places.shape, dtype=np.int64)
    further[places] = rest[:length]
    level = (further[:, :-1] << np.arange(places.shape[1] - 1)).sum(1) + (1 << digits) - 1
    if level.max(initial=0) > most:
        raise ValueError(f"a level is {level.max()}, above {most}")
    return torch.from_numpy(level * (1 - 2 * further[:, -1]))


def code_bytes(level: Tensor, levels: int) -> Tensor:
    """Bytes of levels and signs in Elias' gamma code, () int64."""
    some = (level > 0).sum()
    twos = [(level + 1 >= 2**power).sum() for power in range(1, math.floor(math.log2(levels + 1)) + 1)]
    bits = level.numel() + some + 2 * torch.stack(twos).sum()
    return (bits + 7) // 8


def _places(digits: Any) -> Any:
    """Which further digits each level has, and whether it has a sign, which stands behind them (n, most + 1)."""
    return np.column_stack((np.arange(digits.max(initial=0)) < digits[:, None], digits > 0))
