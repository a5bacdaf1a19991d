"""FedEP: expectation propagation between clients; each refines its own factor of a Gaussian that all have in common.

The server keeps q = N(µ, diag Λ⁻¹) in natural parameters (η, Λ), η = Λµ, meant as the product of one factor (a *site*)
for each client. A client takes its factor q_k out, puts its data in, and sends by how much that changes q:

    cavity    (η, Λ) − (η_k, Λ_k)                 with sites (FedEP), or                                 # (a)
              (1 − n_k/N) (η, Λ)                  without (FedSEP: all clients have equal shares of q)
    tilted    x = mean of the epochs' last iterates on f_k(θ) + (1/n_k) × the cavity's energy, from µ    # (b)
              precision Λ' = Λ_cavity + that of the client's data, see below                             # (c)
    change    Δ_k = (Λ'x − η, Λ' − Λ),   its length at most `clip`                                       # (d)
    site      (η_k, Λ_k) ← the server's step along δ Δ_k                                                 # (e)
    server    (η, Λ) ← SGD step, with momentum, along δ Σ_k Δ_k;   µ = η/Λ                               # (f)

Rounds 1 … `burn_rounds` are FedAvg's (with the server's step): they find the µ about which a Gaussian makes sense. The
q with which they end has Λ = λ̄N, every client owns n_k/N of it (Λ_k = λ̄n_k), whenever it is first met, and the server
begins without momentum: so q is the product of the sites. A newcomer predicts with µ.

`sites=false` is FedSEP: clients keep nothing. With `precision="identity"` its Λ never changes, and it is FedAvg of
equal clients with a pull of λ̄(N − n_k)/n_k to µ on the mean loss; with sites it is not, and ends where Σ_k n_k ∇f_k(µ)
is 0. Either way `local.lr` times that pull should stay below 2, or clients with few samples and many steps run away.

Reference: Guo, Greengard, Wang, Gelman, Kim and Xing, "Federated learning as variational inference: a scalable
expectation propagation approach", ICLR 2023.

The letters (a) to (f) are ours: the paper's own numbers were not at hand.

Differs from the paper: burn-in is part of the run instead of a checkpoint of FedAvg, and its µ is sent along for those
who are met later. The damping δ is 1/m with m clients in the round for FedSEP as in the paper; FedEP's is 1/K, since a
client must know it too, or q would not stay the product of the sites (`damping` sets another). A site moves by the
server's own rule, step size and momentum included (the paper has an optimiser of its own for it); where a client is
absent its site waits, while the server's momentum does not, and catches up. Where Λ would fall below `floor` of its
first value, as it can with momentum, it stays there and µ stays what it was, and q is no longer that product. Who
leaves before a visit has no factor yet, and leaves its share of the first q behind. Weight decay of the clients'
optimiser is part of their likelihood, as in the paper. Its precisions of MCMC samples and NGVI are not here; for the
Fisher information of "laplace" each pass draws labels from the model, so that the squares of *batch* gradients have its
mean. Factors cover trainable leaves; running statistics of batch norm are averaged by samples.

The precision of the client's data in (c) is found in one of two ways:

    identity   Λ' = Λ_cavity + λ̄ n_k: nothing is estimated                                               # (c)
    laplace    Λ' = Λ_cavity + c (F + w n_k), F the diagonal Fisher information at the tilted mean, summed over the
               client's samples and cut to its mean ± 2 deviations, w the weight decay
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.func import grad

from posterity import core

Factors = dict[str, core.Gaussian]  # of every trainable leaf, diagonal
PRECISIONS = ("identity", "laplace")
AUTHORS = "authors' CIFAR-100 example"
AUTHORS_TRAINING = core.Training(lr=0.01, epochs=10, batch=20, momentum=0.9)


@core.record
class State:
    params: core.Params  # µ, and running statistics
    precision: core.Params  # Λ
    velocity: core.Tree  # the server's momentum, like Factors; () without, and in the broadcast
    anchor: core.Params  # µ at the end of burn-in, of which unmet clients own a share; {} without sites
    begun: core.Tree  # () 1 after the first round that is not burn-in; not broadcast
    samples: Tensor  # N, ()
    clients: int = field(metadata={core.STATIC: True})  # K


@core.record
class ClientFactor:
    factors: Factors
    velocity: core.Tree  # like the server's
    met: Tensor  # () 1 after the first visit that is not burn-in


@dataclass(frozen=True)
class FedEP(core.Method):
    label = "FedEP"
    reference = "Guo et al., ICLR 2023"
    absent = "delta messages: an absent client's site stays part of q"
    differences = ("change",)

    local: core.Training = core.hyper(core.Training(), "how the clients train", paper=AUTHORS_TRAINING)
    sites: bool = core.hyper(True, "clients keep factors of their own; false: FedSEP, which keeps nothing", "the paper")
    precision: str = core.hyper("identity", "how the tilted precision is found", "simplest, cheapest", PRECISIONS)
    identity: float = core.hyper(
        0.05, "λ̄: first precision, and that of 'identity', of each sample", AUTHORS, search=(0.005, 0.5, "log"), gt=0
    )
    scale: float = core.hyper(1.0, "c: factor on the Fisher information", "1: the posterior's own", ge=0)
    fisher_epochs: int = core.hyper(5, "passes for the Fisher information", "5 to 10 in the paper", ge=1)
    damping: float | None = core.hyper(None, "δ; none: 1/K with sites, 1/m without", "the paper's 1/m, see there", ge=0)
    clip: float | None = core.hyper(None, "longest change that a client sends", "off", paper=100.0, ge=0)
    floor: float = core.hyper(0.01, "least precision, as a fraction of the first", "ours", gt=0)
    burn_rounds: int = core.hyper(100, "rounds of FedAvg at the start", "as FedPA; paper: checkpoints", paper=400, ge=0)
    server_lr: float = core.hyper(0.5, "step size of the server", AUTHORS, ge=0)
    server_momentum: float = core.hyper(0.9, "momentum of the server", AUTHORS, ge=0, lt=1)
    loss: core.Loss = core.fit  # a wrapper may replace it

    adapt = core.adapt_plainly

    def server(self) -> core.SGD:
        return core.SGD(self.server_lr, self.server_momentum)

    def moved(self, factors: Factors, velocity: core.Tree, step: Factors) -> tuple[Factors, Any]:
        """Natural parameters after a step, and its momentum: the server's and the sites' rule."""
        found, after = self.server().update(core.tree_map(torch.neg, step), velocity, factors)  # (e), (f)
        return found, after

    # --- server
    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        names = core.trainable(params, model)
        first = {n: torch.full_like(params[n], self.identity * max(facts.samples, 1)) for n in names}
        samples = next(iter(params.values())).new_full((), facts.samples)
        anchor = {n: params[n] for n in names} if self.sites else {}
        state = State(params, first, (), anchor, torch.zeros_like(samples), samples, facts.clients)
        return replace(state, velocity=self.server().open(common(state)))

    def offer(self, state: State, client: Tensor | None) -> tuple[State, core.Own]:
        return replace(state, anchor=anchored(state), velocity=(), begun=()), ()

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        mean, count = total["change"].mean(), total["change"].weight
        late, damped = now.round > self.burn_rounds, 1.0
        if late and (self.sites or self.damping is not None):
            damped = count * (1 / state.clients if self.damping is None else self.damping)
        step = core.tree_map(lambda d: d * damped, mean)
        wide = core.tree_map(lambda leaf, d: leaf.to(d), common(state), step)
        lasting = state.begun if late else 1.0  # momentum of burn-in is in no site, and would move q for good
        velocity = core.tree_map(lambda v: v.to(count) * lasting, state.velocity)
        q, after = self.moved(wide, velocity, step)  # (f)
        begun = torch.full_like(state.begun, float(late))
        new = replace(self.product(state, q, after), anchor=anchored(state), begun=begun)
        rest = total["rest"].mean() if "rest" in total else {}
        return replace(new, params={n: rest.get(n, p) for n, p in new.params.items()})

    def product(self, state: State, q: Factors, velocity: core.Tree) -> State:
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
        return self.product(state, q, core.tree_map(torch.sub, state.velocity, factor.velocity))

    # --- one client
    def join(self, here: core.Here) -> core.Personal:
        if not self.sites:
            return ()
        empty = core.tree_map(torch.zeros_like, common(here.shared))
        return ClientFactor(empty, self.server().open(empty), torch.zeros_like(here.n))

    def site(self, here: core.Here, q: Factors) -> Factors:
        """The client's factor: without sites its share of q, before its first visit its share of the first q."""
        share = here.n / here.shared.samples.clamp(min=1)
        if not self.sites:
            return core.tree_map(lambda leaf: share * leaf, q)
        own = {
            n: core.Gaussian.of(mu, torch.full_like(mu, self.identity) * here.n) for n, mu in here.shared.anchor.items()
        }
        return core.tree_map(lambda mine, e: torch.where(here.personal.met > 0, mine, e), here.personal.factors, own)

    def penalised(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        """The mean loss and the cavity's energy, up to a constant, as a function of θ − µ."""
        value, buffers = self.loss(params, batch, here)
        q, mu = common(here.shared), here.shared.params
        site = self.site(here, q)
        held, far = taken_out(q, site), {n: params[n] - mu[n] for n in q}
        tilt = {n: site[n].shift - site[n].precision * mu[n] for n in q}  # 0 for a share of q
        energy = torch.stack([(0.5 * held[n].precision * far[n] ** 2 + tilt[n] * far[n]).sum() for n in q]).sum()  # (b)
        late = (here.round > self.burn_rounds).to(here.n)
        return value + late * energy / here.n.clamp(min=1), buffers

    def passes(self) -> core.Passes:
        if self.precision != "laplace":
            return (self.averaging(),)
        return self.averaging(), core.gather("fisher", fisher, epochs=self.fisher_epochs, batch=self.local.batch)

    def averaging(self) -> core.Pass:
        samples = self.local.epochs if self.local.steps is None else 1  # that the tilted mean is made of
        found = averaged_over_epochs(self.local.descend(self.penalised), samples, self.burn_rounds)  # (b)
        return core.holding((found,), copies=14)[0]  # q, site and cavity have two tensors for each leaf, and momenta

    def tilted(self, cavity: Factors, carry: core.Carry, here: core.Here) -> core.Params:
        """Λ' of the cavity with the client's data."""
        held = {n: f.precision for n, f in cavity.items()}
        if self.precision == "laplace":
            information = core.tree_map(lambda f: f / self.fisher_epochs, carry.kept["fisher"])
            return laplace(held, information, self.local.weight_decay * here.n, self.scale)
        return core.tree_map(lambda c: c + self.identity * here.n, held)  # (c)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        q, early = common(here.shared), here.round <= self.burn_rounds
        site = self.site(here, q)
        found = self.tilted(taken_out(q, site), carry, here)
        precision = {n: torch.where(early, q[n].precision, found[n]) for n in q}
        raw = {n: core.Gaussian.of(carry.params[n], p) - q[n] for n, p in precision.items()}  # (d)
        sent = core.tree_map(lambda a, b: torch.where(early, a, b), raw, core.clipped(raw, self.clip))
        rest = {n: p for n, p in carry.params.items() if n not in q}
        told: core.Message = {"change": core.Mean(torch.where(early, here.n, 1), sent)}
        return told | ({"rest": core.Mean(here.n, rest)} if rest else {}), self.renewed(site, sent, here)

    def renewed(self, site: Factors, sent: Factors, here: core.Here) -> core.Personal:
        """The client's record after a visit."""
        if not self.sites:
            return ()
        damping = 1 / here.shared.clients if self.damping is None else self.damping
        step = core.tree_map(lambda d: damping * d, sent)
        new = ClientFactor(*self.moved(site, here.personal.velocity, step), torch.ones_like(here.n))  # (e)
        early = here.round <= self.burn_rounds
        return core.tree_map(lambda old, now: torch.where(early, old, now), here.personal, new)

    def factor(self, personal: core.Personal) -> ClientFactor | None:
        return personal if self.sites else None


# --- q and the factors that it is a product of
def common(state: State) -> Factors:
    """q in natural parameters."""
    return {n: core.Gaussian.of(state.params[n], precision) for n, precision in state.precision.items()}


def anchored(state: State) -> core.Params:
    """The µ with which burn-in ended, which is today's until it has; {} without sites."""
    return {n: torch.where(state.begun > 0, mu, state.params[n]) for n, mu in state.anchor.items()}


def taken_out(q: Factors, site: Factors) -> Factors:
    """The cavity; an improper one would drive its client away, so its precision is cut at 0."""
    return {n: core.Gaussian((q[n] - site[n]).precision.clamp(min=0), (q[n] - site[n]).shift) for n in q}  # (a)


# --- the tilted mean
def averaged_over_epochs(descent: core.Pass, samples: int, burn_rounds: int) -> core.Pass:
    """The same descent with the mean of the epochs' last iterates at its end (in burn-in, the last one of all).

    Sums are of θ − µ.
    """

    def begin(carry: core.Carry, here: core.Here) -> core.Carry:
        carry = descent.open(carry, here)
        far = {n: torch.zeros_like(carry.params[n]) for n in here.shared.precision}
        return replace(carry, kept={**carry.kept, "far": far, "count": here.n * 0})

    def step(carry: core.Carry, batch: core.Batch, here: core.Here) -> core.Carry:
        carry, steps = descent.step(carry, batch, here), here.steps.clamp(min=1)
        done = [(here.step + i) * samples // steps for i in (0, 1)]
        last = (done[1] > done[0]).to(here.n)
        far = {n: s + last * (carry.params[n] - here.shared.params[n]) for n, s in carry.kept["far"].items()}
        return replace(carry, kept={**carry.kept, "far": far, "count": carry.kept["count"] + last})

    def end(carry: core.Carry, here: core.Here) -> core.Carry:
        carry, early = descent.close(carry, here), here.round <= burn_rounds
        count, mu = carry.kept["count"].clamp(min=1), here.shared.params
        far = core.tree_map(lambda s: s / count, carry.kept["far"])
        mean = {n: torch.where(early, carry.params[n], mu[n] + f) for n, f in far.items()}  # (b)
        kept = {n: v for n, v in carry.kept.items() if n not in ("far", "count")}
        return replace(carry, params={**carry.params, **mean}, kept=kept)

    return replace(descent, open=begin, step=step, close=end)


# --- the tilted precision
def laplace(cavity: core.Params, information: core.Params, decay: Tensor, scale: float) -> core.Params:
    """Λ' from the Fisher information of the client's data, and `decay` = w n_k."""
    return core.tree_map(lambda c, f: c + scale * (f + decay), cavity, cut(information))


def fisher(params: core.Params, batch: core.Batch, here: core.Here) -> core.Params:
    """An unbiased estimate of the diagonal Fisher information of a batch: the square of one summed gradient.

    For labels that the model itself draws, the samples' gradients are independent and have mean 0, so that products of
    two of them have mean 0 too. A regression target is drawn one deviation above or below the prediction.
    """
    names = core.trainable(params, here.model)

    def surprise(moving: core.Params) -> Tensor:
        output, _ = here.model({**params, **moving}, batch.x)
        return (core.pointwise(output, drawn(output.detach(), here), here.model) * batch.mask).sum()

    return core.tree_map(torch.square, grad(surprise)({n: params[n] for n in names}))


def drawn(output: Tensor, here: core.Here) -> Tensor:
    """Labels or targets (B,) as the model expects them."""
    if here.model.task == "regression":
        return output + core.NOISE**0.5 * torch.where(core.uniform(here.key, output.shape, output.dtype) < 0.5, -1, 1)
    return core.categorical(here.key, output)


def cut(tree: core.Params) -> core.Params:
    """All numbers within two deviations of their mean."""
    flat = torch.cat([leaf.flatten() for leaf in tree.values()])
    mean, reach = flat.mean(), 2 * flat.std(correction=0)
    return core.tree_map(lambda leaf: torch.minimum(torch.maximum(leaf, mean - reach), mean + reach), tree)
