"""Differential privacy of whole clients: what they contribute is shortened to a bound, and their sum gets noise.

    d_k = (θ_k − o) min(1, S/‖θ_k − o‖),   o = w for means of what was broadcast, else 0 (sums, differences)      # (1)
    mean   θ ← o + (Σ_k d_k + z S ε) / m,   ε ~ N(0, I),   m fixed: the clients of a round                        # (2)
    sum    Σ_k d_k + z S ε                                                                                        # (3)

All parts of a message are shortened together, each measured in its own bound S_i: Σ_i ‖d_i‖²/S_i² ≤ 1. Then one client
changes the sums by at most 1 in units of the bounds, however many parts there are, and noise of z S_i on each is one
Gaussian mechanism of noise multiplier z. Clients count alike, whatever their samples; m does not depend on who came,
so that a sum, whose sensitivity is known, is all that is seen of them. T rounds with everybody are (ε, δ)-private with

    δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ),   μ = √T/z                                                              # (4)

(Balle and Wang 2018, Theorem 8; Gaussians compose to a Gaussian). Where each of n clients takes part by chance q,
independently and in secret (`--participation p:q`), the moments accountant for Poisson sampling is used. Both are those
of the library dp-accounting (`pip install 'posterity[dp]'`). A round that nobody joined adds no noise: then the model
stays as it is, so that who knows that the others were away, with probability b, sees whether the last client was. If
R_q(α) is the Rényi divergence of a sampled round, and R_1(α) = α/2z² that of one with everybody, a round has

    R(α) = log( b (1 − q + q e^{(α−1) R_1(α)}) + (1 − b) e^{(α−1) R_q(α)} ) / (α − 1),   b = (1 − q)^{n−1}        # (5)

Where many of the n leave or fall silent, ε is larger than was told. A cohort of fixed size gets no credit for having
been drawn: ε is that of everybody in every round. It is told with clients and rounds before the run, and stands in its
page. It is that of real numbers: the noise is made of 32 random bits a number and rounded, by no secure sampler.

What is promised: two runs, in one of which a client's contributions are zero, can hardly be told apart by whoever sees
all that the server makes of the messages: its model after every round. A client's personal record never leaves it,
and is not noisy; whoever sees its predictions sees its data's influence. Losses, scores and sizes of cohorts that a
run writes are not covered, nor is a choice of hyper-parameters by them. What the inner method reports of a round's sum
is left out, for that sum has no noise yet. Nor is anybody protected from the server itself, which adds the noise.

Reference: McMahan, Ramage, Talwar and Zhang, "Learning differentially private recurrent language models", ICLR 2018,
Algorithm 1 with the fixed-denominator estimator.

Differs from the paper: weights are 1 instead of min(n_k/ŵ, 1); full participation has the exact ε (4) instead of the
moments accountant's bound; several parts of a message are shortened together; (5), since empty rounds add no noise;
a running variance of batch norm that the noise made negative stays as it was.
Below 20 clients a run is refused: the noise would drown them, or ε be nothing to speak of. The mechanism itself is the
same for any number, so the laws look at it on their smaller federation; what refuses is the plan of a run.
"""

import importlib
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posterity import core
from posterity.methods.wrappers.clip import broadcast, check_kind, length, origin

FEWEST = 20  # clients of a run
VARIANCE = "running_var"  # the end of the name of a batch norm's leaf
NOISE = 0x6470  # of the server's key: apart from what the inner method draws


@core.record
class State:
    host: core.Tree
    clients: int = field(metadata={core.STATIC: True})

    @property
    def params(self) -> core.Params:
        return self.host.params


@dataclass(frozen=True)
class Private(core.Wrapper):
    bound: float = core.hyper(1.0, "S: longest contribution of a client to a mean", "ours: about an update's length",
                              infinite=True, gt=0)  # fmt: skip
    sum_bound: float | None = core.hyper(
        None, "longest contribution to a sum; none: as `bound`", "ours", infinite=True, gt=0
    )
    noise: float = core.hyper(1.0, "z: standard deviation of the sum's noise, in units of S", "ours", ge=0)
    delta: float | None = core.hyper(None, "δ; none: clients^-1.1", "McMahan et al. 2018, Table 1", gt=0, lt=1)
    cohort: float | None = core.hyper(
        None, "m: clients of a round, on average; none: all", "McMahan et al. 2018, Algorithm 1", ge=1
    )

    secret = True  # sites must not be able to draw the noise: on Flower it is not of the seed

    def __post_init__(self) -> None:
        core.check_fields(self)
        endless = [name for name in ("bound", "sum_bound") if getattr(self, name) == math.inf]
        if self.noise and endless:
            raise ValueError(f"noise {self.noise} with an infinite {endless[0]} has no end: give a finite number, or "
                             "noise 0 (which is not private)")  # fmt: skip

    @property
    def label(self) -> str:
        return f"{self.inner.label} (private)"

    def bound_of(self, part: core.Mean | core.Sum) -> float:
        return self.sum_bound if isinstance(part, core.Sum) and self.sum_bound is not None else self.bound

    def known(self, name: str, shared: core.Shared) -> core.Params:
        return {} if name in self.inner.differences else broadcast(shared)

    # --- one client
    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        sent, personal = self.inner.message(carry, here)
        parts = {name: check_kind(name, part, "+dp") for name, part in sent.items()}
        starts = {name: origin(part, self.known(name, here.shared)) for name, part in parts.items()}
        moved = {name: core.tree_map(torch.sub, part.value, starts[name]) for name, part in parts.items()}
        if not core.tree_leaves(moved):
            return parts, personal
        far = length({n: core.tree_map(lambda d, s=self.bound_of(parts[n]): d / s, tree) for n, tree in moved.items()})
        short = core.tree_map(lambda d: torch.where(far <= 1, d, d / far), moved)  # (1): nan stays nan
        one = torch.ones_like(here.n)
        each = {
            n: core.Mean(one, short[n]) if isinstance(p, core.Mean) else replace(p, value=short[n])
            for n, p in parts.items()
        }
        return each, personal

    # --- the server
    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        return State(self.inner.init(model, params, facts), facts.clients)

    def offer(self, state: State, client: Tensor | None) -> tuple[core.Shared, core.Own]:
        return self.inner.offer(state.host, client)

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        if not now.cohort:
            raise ValueError("the sum of nothing: no client sent a message")
        shared, _ = self.inner.offer(state.host, None)
        made = {name: self.private(name, total[name], state, shared, core.fold(core.fold(now.key, NOISE), i))
                for i, name in enumerate(total)}  # fmt: skip
        return State(self.inner.combine(state.host, made, now), state.clients)

    def private(
        self, name: str, part: core.Mean | core.Sum, state: State, shared: core.Shared, key: Tensor
    ) -> core.Mean | core.Sum:
        """A total with its noise, as the inner method knows it."""
        spread = self.noise * self.bound_of(part) if self.noise else 0.0
        if isinstance(part, core.Sum):
            return replace(part, value=noisy(part.value, spread, key))  # (3)
        count = state.clients if self.cohort is None else self.cohort
        summed = noisy(core.tree_map(lambda v: part.weight * v, part.value), spread, key)
        known = self.known(name, shared)
        start = origin(part, known)
        made = core.tree_map(lambda o, d: o + d / count, start, summed)  # (2)
        return core.Mean(torch.full_like(part.weight, count), with_variances(made, known))

    def report(self, state: State, total: core.Message) -> dict[str, Tensor]:
        return {}  # `total` has no noise

    # --- in words
    def announce(self, plan: core.Plan) -> tuple[str, ...]:
        if plan.clients < FEWEST:
            raise ValueError(
                f"+dp needs at least {FEWEST} clients; this run has {plan.clients}. With so few, either the noise "
                "drowns what they send or ε promises nothing: leave +dp out, or divide the data among more clients"
            )
        if not math.isclose(self.cohort or plan.clients, plan.cohort, rel_tol=0.01):
            raise ValueError(
                f"+dp divides by a fixed number of clients, {self.cohort or plan.clients}, but {plan.cohort:g} take "
                f"part in a round (--participation): give --set dp.cohort={plan.cohort:g}"
            )
        return (*self.inner.announce(plan), self.promise(plan))

    def promise(self, plan: core.Plan) -> str:
        """ε, δ, and what they are about."""
        delta = plan.clients**-1.1 if self.delta is None else self.delta
        able = plan.clients if plan.chance is None else plan.cohort / plan.chance
        spent = epsilon(self.noise, delta, plan.rounds, plan.chance, able)
        if math.isinf(spent):
            return "+dp without noise: contributions are shortened, and nothing is private (ε = ∞)"
        how = "counted as if all took part" if plan.chance is None else "drawn in secret"
        return (
            f"+dp: ε = {spent:.3g}, δ = {delta:.2g} for each client as a whole, after {plan.rounds} rounds with "
            f"{plan.cohort:g} of {plan.clients} clients, {how} (noise {self.noise:g}, bound {self.bound:g}); "
            "this is about the server's model, not about losses, scores and sizes of cohorts that a run writes"
        )


# --- what a client sends, with noise
def noisy(tree: core.Tree, spread: float, key: Tensor) -> core.Tree:
    """`tree` with Gaussian noise of standard deviation `spread` on every number."""
    keys = iter([core.fold(key, i) for i in range(len(core.tree_leaves(tree)))])
    return core.tree_map(lambda leaf: leaf + spread * core.normal(next(keys), leaf.shape, torch.float64).to(leaf), tree)


def with_variances(made: core.Tree, known: core.Params) -> core.Tree:
    """Running variances of batch norm that the noise made negative stay as they were: nothing divides by their root."""
    if not isinstance(made, dict):
        return made
    names = [name for name in made if name.endswith(VARIANCE) and name in known]
    return {**made, **{name: torch.where(made[name] > 0, made[name], known[name].to(made[name])) for name in names}}


# --- ε, by the accountants of the library dp-accounting (Google, Apache 2.0)
@cache
def epsilon(
    noise: float, delta: float, rounds: int, chance: float | None = None, clients: float = math.inf
) -> float:  # fmt: skip
    """ε of so many rounds at this δ; `chance` is that of each of the `clients` to take part in one (None: always)."""
    if noise == 0:
        return math.inf
    if chance is None or chance == 1:
        exact: float = library().get_epsilon_gaussian(noise / math.sqrt(rounds), delta)  # (4)
        return exact
    dp, rdp = library(), library("dp_accounting.rdp")
    accountant = rdp.RdpAccountant()
    with _quiet():
        accountant.compose(dp.PoissonSampledDpEvent(chance, dp.GaussianDpEvent(noise)))
    spent = rounds * _with_empty_rounds(accountant.orders, accountant.rdp, noise, chance, clients)
    found: float = rdp.compute_epsilon(accountant.orders, spent, delta)[0]
    return min(found, epsilon(noise, delta, rounds))  # not to be asked never tells more


def _with_empty_rounds(orders: Any, sampled: Any, noise: float, chance: float, clients: float) -> Any:
    """Rényi divergence of a round that adds no noise where nobody came; `sampled` is that of one that always does."""
    alone = (1 - chance) ** (clients - 1)
    if alone == 0:
        return sampled
    seen = np.logaddexp(math.log1p(-chance), math.log(chance) + (orders - 1) * orders / (2 * noise**2))
    hidden = math.log1p(-alone) + (orders - 1) * sampled
    return np.logaddexp(math.log(alone) + seen, hidden) / (orders - 1)  # (5)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's remarks on orders that it leaves out: the bound is the best of the others."""
    logger = logging.getLogger("absl")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def library(name: str = "dp_accounting") -> Any:
    """The library, which is asked for when somebody wants an ε: it takes seconds to import."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(
            "+dp says how private a run is with the library dp-accounting, which is not installed: "
            "pip install 'posterity[dp]'"
        ) from None
