"""FedEP, the method: what a client does in its cavity and sends, how its site moves, what the server makes of it.

The paper is summed up in the folder's `__init__.py`; q and the algebra of its factors, (a) and (d), are in
`factors.py`, the tilted mean (b) in `tilted_mean.py` and the tilted precision (c) in `precision.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from posterity.core import (
    SGD,
    Batch,
    Carry,
    Facts,
    Gaussian,
    Here,
    Loss,
    Mean,
    Message,
    Method,
    Network,
    Now,
    Own,
    Params,
    Pass,
    Personal,
    Point,
    Training,
    Tree,
    check_fields,
    clipped,
    fit,
    gather,
    holding,
    hyper,
    trainable,
    tree_map,
    tuned,
    within,
)
from posterity.methods.fedep.factors import ClientFactor, Factors, Shared, State, anchored, change, common, taken_out
from posterity.methods.fedep.precision import PRECISIONS, fisher, laplace, sampled
from posterity.methods.fedep.tilted_mean import averaged_over_epochs

AUTHORS = "authors' CIFAR-100 example"
AUTHORS_TRAINING = Training(lr=0.01, epochs=10, batch=20, momentum=0.9)


@dataclass(frozen=True)
class FedEP(Method):
    label: ClassVar[str] = "FedEP"
    reference: ClassVar[str] = "Guo et al., ICLR 2023"
    absent: ClassVar[str] = "delta messages: an absent client's site stays part of q"
    scored: ClassVar[Point] = "received"
    differences: ClassVar[tuple[str, ...]] = ("change",)

    local: Training = hyper(Training(), "how the clients train", paper=AUTHORS_TRAINING)
    sites: bool = hyper(True, "clients keep factors of their own; false: FedSEP, which keeps nothing", "the paper")
    precision: str = hyper("identity", "how the tilted precision is found", "its simplest and cheapest", PRECISIONS)
    identity: float = hyper(
        0.05, "λ̄: first precision, and that of 'identity', of each sample", AUTHORS, search=(0.005, 0.5, "log")
    )
    scale: float = hyper(1.0, "c: what the Fisher information of 'laplace' is multiplied by", "1: the posterior's own")
    fisher_epochs: int = hyper(5, "passes over the data for the Fisher information ('laplace')", "5 to 10 in the paper")
    damping: float | None = hyper(None, "δ; none: 1/K with sites, 1/m without", "the paper's 1/m, see there")
    clip: float | None = hyper(None, "longest change that a client sends", "off", paper=100.0)
    floor: float = hyper(0.01, "least precision, as a fraction of the first", "ours")
    burn_rounds: int = hyper(100, "rounds of FedAvg at the start", "as FedPA; the paper's checkpoints", paper=400)
    server_lr: float = hyper(0.5, "step size of the server", AUTHORS)
    server_momentum: float = hyper(0.9, "momentum of the server", AUTHORS)
    loss: Loss = fit  # a wrapper may replace it

    def __post_init__(self) -> None:
        check_fields(self)
        within(self, scale=(0, None), fisher_epochs=(1, None), damping=(0, None), clip=(0, None), server_lr=(0, None))
        within(self, burn_rounds=(0, None))
        for name in ("identity", "floor"):
            if not getattr(self, name) > 0:
                given = getattr(self, name)
                raise ValueError(f"{name} must be above 0; {given} was given: q has no mean where it has no precision")
        if not 0 <= self.server_momentum < 1:
            raise ValueError(f"server_momentum must be at least 0 and below 1; {self.server_momentum} was given")
        if self.precision == "mcmc" and self.samples < 2:
            raise ValueError(
                f"precision 'mcmc' is the spread of one iterate of each epoch; local has {self.samples}. "
                "Set local.epochs to 2 or more, without local.steps, or take 'identity' or 'laplace'"
            )

    @property
    def samples(self) -> int:
        """Iterates of a round that the tilted mean is made of."""
        return self.local.epochs if self.local.steps is None else 1

    def server(self) -> SGD:
        return SGD(self.server_lr, self.server_momentum)

    def moved(self, factors: Factors, velocity: Tree, step: Factors) -> tuple[Factors, Any]:
        """Natural parameters after a step, and its momentum: the server's and the sites' rule."""
        found, after = self.server().update(tree_map(torch.neg, step), velocity, factors)  # (e), (f)
        return found, after

    # --- server -------------------------------------------------------------------------------------------------------
    def init(self, model: Network, params: Params, facts: Facts) -> State:
        names = trainable(params, model)
        first = {n: torch.full_like(params[n], self.identity * max(facts.samples, 1)) for n in names}
        samples = next(iter(params.values())).new_full((), facts.samples)
        anchor = {n: params[n] for n in names} if self.sites else {}
        state = State(params, first, (), anchor, torch.zeros_like(samples), samples, facts.clients)
        return replace(state, velocity=self.server().open(common(state)))

    def offer(self, state: State, client: Tensor | None) -> tuple[Shared, Own]:
        return Shared(state.params, state.precision, anchored(state), state.samples, state.clients), ()

    def combine(self, state: State, total: Message, now: Now) -> State:
        mean, count = total["change"].mean(), total["change"].weight
        late, damped = now.round > self.burn_rounds, 1.0
        if late and (self.sites or self.damping is not None):
            damped = count * (1 / state.clients if self.damping is None else self.damping)
        step = tree_map(lambda d: d * damped, mean)
        wide = tree_map(lambda leaf, d: leaf.to(d), common(state), step)
        lasting = state.begun if late else 1.0  # momentum of burn-in is in no site, and would move q for good
        velocity = tree_map(lambda v: v.to(count) * lasting, state.velocity)
        q, after = self.moved(wide, velocity, step)  # (f)
        begun = torch.full_like(state.begun, float(late))
        new = replace(self.product(state, q, after), anchor=anchored(state), begun=begun)
        rest = total["rest"].mean() if "rest" in total else {}
        return replace(new, params={n: rest.get(n, p) for n, p in new.params.items()})

    def product(self, state: State, q: Factors, velocity: Tree) -> State:
        """The State with another q; where its precision would be too small, µ stays what it was."""
        like = next(iter(q.values())).precision
        least = self.floor * self.identity * state.samples.to(like).clamp(min=1)
        safe = {n: f.precision >= least for n, f in q.items()}
        mu = {n: torch.where(safe[n], f.mean(), state.params[n].to(f.shift)) for n, f in q.items()}  # (f)
        precision = {n: f.precision.clamp(min=least) for n, f in q.items()}
        params = {n: mu.get(n, p) for n, p in state.params.items()}
        return replace(state, params=params, precision=precision, velocity=velocity)

    def forget(self, state: State, factor: ClientFactor) -> State:
        """Without a client's site, and without its momentum, which would go on moving q."""
        q = {n: f - factor.factors[n] for n, f in common(state).items()}
        return self.product(state, q, tree_map(torch.sub, state.velocity, factor.velocity))

    # --- one client ---------------------------------------------------------------------------------------------------
    def join(self, here: Here) -> Personal:
        if not self.sites:
            return ()
        empty = tree_map(torch.zeros_like, common(here.shared))
        return ClientFactor(empty, self.server().open(empty), torch.zeros_like(here.n))

    def start(self, here: Here) -> Params:
        return here.shared.params

    def site(self, here: Here, q: Factors) -> Factors:
        """The client's factor: without sites its share of q, before its first visit its share of the first q."""
        share = here.n / here.shared.samples.clamp(min=1)
        if not self.sites:
            return tree_map(lambda leaf: share * leaf, q)
        own = {n: Gaussian.of(mu, torch.full_like(mu, self.identity) * here.n) for n, mu in here.shared.anchor.items()}
        return tree_map(lambda mine, e: torch.where(here.personal.met > 0, mine, e), here.personal.factors, own)

    def penalised(self, params: Params, batch: Batch, here: Here) -> tuple[Tensor, Params]:
        """The mean loss and the cavity's energy, up to a constant, as a function of θ − µ."""
        value, buffers = self.loss(params, batch, here)
        q, mu = common(here.shared), here.shared.params
        site = self.site(here, q)
        held, far = taken_out(q, site), {n: params[n] - mu[n] for n in q}
        tilt = {n: site[n].shift - site[n].precision * mu[n] for n in q}  # 0 for a share of q
        energy = torch.stack([(0.5 * held[n].precision * far[n] ** 2 + tilt[n] * far[n]).sum() for n in q]).sum()  # (b)
        late = (here.round > self.burn_rounds).to(here.n)
        return value + late * energy / here.n.clamp(min=1), buffers

    def passes(self) -> tuple[Pass, ...]:
        if self.precision != "laplace":
            return (self.averaging(),)
        return self.averaging(), gather("fisher", fisher, epochs=self.fisher_epochs, batch=self.local.batch)

    def averaging(self) -> Pass:
        descent = self.local.descend(self.penalised)
        found = averaged_over_epochs(descent, self.samples, self.burn_rounds, spread=self.precision == "mcmc")  # (b)
        return holding((found,), copies=14)[0]  # q, the site and the cavity have two tensors for each leaf, and momenta

    def adapt(self, epochs: int) -> tuple[Pass, ...]:
        return tuned((self.local.descend(self.loss),), epochs)

    def tilted(self, cavity: Factors, carry: Carry, here: Here) -> Params:
        """Λ' of the cavity with the client's data."""
        held, plain = {n: f.precision for n, f in cavity.items()}, self.identity * here.n
        if self.precision == "laplace":
            information = tree_map(lambda f: f / self.fisher_epochs, carry.kept["fisher"])
            return laplace(held, information, self.local.weight_decay * here.n, self.scale)
        if self.precision == "mcmc":
            return sampled(held, carry.kept["spread"], plain)
        return tree_map(lambda c: c + plain, held)  # (c)

    def message(self, carry: Carry, here: Here) -> tuple[Message, Personal]:
        q, early = common(here.shared), here.round <= self.burn_rounds
        site = self.site(here, q)
        found = self.tilted(taken_out(q, site), carry, here)
        precision = {n: torch.where(early, q[n].precision, found[n]) for n in q}
        raw = change(q, {n: carry.params[n] for n in q}, precision)
        sent = tree_map(lambda a, b: torch.where(early, a, b), raw, clipped(raw, self.clip))
        rest = {n: p for n, p in carry.params.items() if n not in q}
        told: Message = {"change": Mean(torch.where(early, here.n, 1), sent)}
        return told | ({"rest": Mean(here.n, rest)} if rest else {}), self.renewed(site, sent, here)

    def renewed(self, site: Factors, sent: Factors, here: Here) -> Personal:
        """The client's record after a visit."""
        if not self.sites:
            return ()
        damping = 1 / here.shared.clients if self.damping is None else self.damping
        step = tree_map(lambda d: damping * d, sent)
        new = ClientFactor(*self.moved(site, here.personal.velocity, step), torch.ones_like(here.n))  # (e)
        early = here.round <= self.burn_rounds
        return tree_map(lambda old, now: torch.where(early, old, now), here.personal, new)

    def factor(self, personal: Personal) -> ClientFactor | None:
        return personal if self.sites else None

    def remarks(self, model: Network) -> tuple[str, ...]:
        if self.sites or self.precision != "identity":
            return ()
        return ("FedSEP with precision 'identity' never changes its precision: it is FedAvg of equally weighted "
                "clients that are pulled to the broadcast by λ̄(N − n_k)/n_k.",)  # fmt: skip
