"""FedNP: clients share a latent z by expectation propagation, and a network of z says where classifiers should lie.

Expectation propagation (2), (3) for the posterior of z given everybody's data (4): it is approximated by a Gaussian
q(z) ∝ p(z) Π_k q_k(z) (5). Client k takes its site q_k out, multiplies the cavity q_{−k} = N(m, s) (6) with its factor
σ(f z), f = f(X_k) (8), and takes over the moments of this tilted density (7),

    z_m = m + s f (1 − r₂),     z_s = s − s² f² κ,     κ = r₂ + r₂² − 2 r₃                                # (9), (10)

with r_d = E σ(C)^d / E σ(C), C ~ N(f m, f² s) (14), (15). An NPN turns q(z) into a Gaussian over the classifier (17),
and the client minimises, with θ̂ the classifier that it trains,

    J + λ { KL[NPN(q(z)) ‖ N(θ̂, ε)] + KL[q(z) ‖ p(z)] }                                                 # (19), (47)

After training f is computed on all its data, and the client sends its parameters, which are averaged, and the *change*
of its site, which the server adds to the totals: prior + all sites, absent clients' included.

Reference: "FedNP: Towards non-IID federated learning via federated neural propagation", AAAI 2023.

Differs from the paper (errata, numbered by us):
  N1  (12) is not the second moment; N4 (11) and (12) divide by f: both are replaced by the update above.
  N2, N3  constants of (44), not of (28) and (29). `moments="closed"` is the paper's; "quadrature" is its Quad-FedNP.
  N5  exact sites have no negative precision; where the closed form would give one, it is clamped.
  N7  parameters are averaged by n_k / Σn, not 1/n_k (`weighting="uniform"`: released code). N8: sites go every round.
  N9  the uniform prior of (4) makes cavities improper: p(z) = N(0, 1/τ₀), counted once.
  N10 with a scalar f all coordinates of z stay equal for ever: `f_output="vector"` has one factor per coordinate.
  N11 the gradient reaches f; `detach_f=True` is the released code, which never trains it.
  N6, N12  the code's constant sites and its other KLs are not reproduced; (18) is averaged over weights.
  N13 the toy has the f of the images, not tanh(MLP((ŷ − y)²)) of the code. N14 concerns a table only.
Algorithm 1 makes the site that is sent (line 8) from the z_m and z_s of the last iteration (line 5), that is from the f
of its last mini-batch, before the last step; here f is computed anew on all of the client's data with the parameters
that are sent, so that a site does not depend on which samples came last. Within training f is the mini-batch's in both.
f is a linear layer on the features, averaged over samples; its first values depend on the seed. The NPN has no weight
variances and stays with its client, as in the code. A newcomer's cavity is q(z). Fine-tuning repeats the round's
training, (18) included. The classifier is the head of any network. The host is FedAvg, or FedProx for µ > 0: with λ = 0
its trajectory is the host's, bit for bit.

Moments, (8) to (16), are element-wise over the coordinates of z. Stein's lemma gives the derivatives of
log Z = log E σ(C) without a division by f, so that (13) is not needed,

    ∂ log Z / ∂m = f (1 − r₂),      −∂² log Z / ∂m² = f² κ,      κ in (0, ¼],

from which z_m, z_s and the site follow. The ratios r_d come from a closed form (`closed`) or from a fixed number of
points that lie where the tilted density does (`quadrature`). The layers of the NPN take and return the mean and
variance of every unit.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from posterity import core

KINDS = ("quadrature", "closed")
POINTS = 129  # of the quadrature: see `places` for what they give
DEPTH = 40.0  # the points end where the tilted density is e^−DEPTH of its largest value
ZETA2 = math.pi / 8  # σ(x) ≈ Φ(ζ x)                                                                     # (45)
SHARE = {"closed": 0.99, "quadrature": 1 - 1e-6}  # most of the cavity's variance that a factor may take away
F_WEIGHT, F_BIAS = F_NAMES = ("fednp.f.weight", "fednp.f.bias")
NPN = ("fednp.npn.weight1", "fednp.npn.bias1", "fednp.npn.weight2", "fednp.npn.bias2")
NPN_RANGE = 0.05  # first values of the NPN are uniform on ±0.05: authors' code
SCORING_BATCH = 256  # samples at once when f is computed on all data; has no influence on the result
AUTHORS = core.Training(epochs=10, batch=128)
TINY = 1e-12  # least variance of a predicted weight
FLOOR = 1e-6  # least variance after a sigmoid


@core.record
class State:
    params: core.Params  # θ, with the layer of f
    totals: core.Gaussian  # τ₀ + Σ λ_k and Σ η_k


@dataclass(frozen=True)
class FedNP(core.Method):
    label = "FedNP"
    reference = "FedNP, AAAI 2023"
    absent = "delta messages: the sites of absent clients stay in the totals"

    local: core.Training = core.hyper(core.Training(), "how the clients train", paper=AUTHORS)
    lam: float = core.hyper(0.01, "λ: weight of both divergences", "D.3: best of 0.001, 0.01, 0.1, 1",
                            search=(1e-3, 1.0, "log"), ge=0)  # fmt: skip
    moments: str = core.hyper("quadrature", "moments of the tilted density", "ours", KINDS, paper="closed")
    points: int = core.hyper(POINTS, "points of the quadrature", "ours: error below 1e-6; Table 6: 100 to 10000", ge=17)
    latent: int = core.hyper(10, "D_z: dimension of z, and width of the layer of f", "D.3", ge=1)
    eps: float = core.hyper(0.01, "ε: variance of the classifier about its value", "not in §4.3: ours", ge=1e-12)
    tau0: float = core.hyper(1.0, "τ₀: precision of the prior of z", "Algorithm 1, line 2; erratum N9", ge=1e-12)
    f_output: str = core.hyper("scalar", "one f for all of z, or one each", "D.3; erratum N10", ("scalar", "vector"))
    detach_f: bool = core.hyper(False, "do not train f", "erratum N11: the released code does not")
    biases: bool = core.hyper(False, "let the NPN predict the classifier's biases too", "authors' code: weights alone")
    weighting: str = core.hyper("num_examples", "weight of a client", "§4; erratum N7", ("num_examples", "uniform"))
    mu: float = core.hyper(0.0, "µ: pull of the host to the broadcast; > 0: FedNP on FedProx", "FedNP on FedAvg", ge=0)

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        if not core.head(params, model):
            raise ValueError("FedNP predicts the classifier's weights, but no leaf of the model's head is trained")
        like, size, key = next(iter(params.values())), model.feature_dim, facts.key
        bound = size**-0.5  # as PyTorch's linear layers
        layer = [((self.latent, size), F_WEIGHT), ((self.latent,), F_BIAS)]
        first = {
            n: (2 * core.uniform(core.fold(key, i), s, torch.float64) - 1) * bound for i, (s, n) in enumerate(layer)
        }
        zero = like.new_zeros(self.latent)
        return State({**params, **{n: p.to(like) for n, p in first.items()}}, core.Gaussian(zero + self.tau0, zero))

    def join(self, here: core.Here) -> core.Personal:
        names = spoken_of(here.initial, here.model, self.biases)
        size, wide = sum(here.initial[n].numel() for n in names), self.latent
        shapes = ((wide, wide), (wide,), (wide, size), (size,))
        draws = (core.uniform(core.fold(here.key, i), shape, here.n.dtype) for i, shape in enumerate(shapes))
        npn = {n: NPN_RANGE * (2 * u - 1) for n, u in zip(NPN, draws, strict=True)}
        zero = torch.zeros_like(here.shared.totals.shift)
        return {"site": core.Gaussian(zero, zero), "npn": npn}

    def start(self, here: core.Here) -> core.Params:
        return {**here.shared.params, **here.personal["npn"]}

    def factors(self, params: core.Params, h: Tensor) -> Tensor:
        """What each sample contributes to f: (B, D_z), or (B, 1) if all of z have one."""
        out = h @ params[F_WEIGHT].T + params[F_BIAS]
        return out if self.f_output == "vector" else out.mean(-1, keepdim=True)

    def matched(self, f: Tensor, here: core.Here) -> tuple[Tensor, Tensor, core.Gaussian]:
        """z_m, z_s and the client's new site for the factor σ(f z)."""
        cavity = here.shared.totals - here.personal["site"]  # (6)
        s = 1 / cavity.precision.clamp(min=self.tau0)  # sites are never negative: only rounding is below
        return match(cavity.shift * s, s, f, self.moments, self.points)

    def classifier(self, params: core.Params, z_m: Tensor, z_s: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of every weight of the classifier."""
        w1, b1, w2, b2 = (params[n] for n in NPN)
        mean, variance = npn_linear(*npn_sigmoid(*npn_linear(z_m, z_s, w1, b1)), w2, b2)  # (17)
        return mean, variance.clamp(min=TINY)

    def divergence(self, params: core.Params, f: Tensor, here: core.Here) -> Tensor:
        """Both divergences, that of the classifier averaged over its weights."""
        z_m, z_s, _ = self.matched(f.detach() if self.detach_f else f, here)
        mean, variance = self.classifier(params, z_m, z_s)
        now = torch.cat([params[n].flatten() for n in spoken_of(params, here.model, self.biases)])
        about = kl_each(mean, variance, now, self.eps).mean()  # (18)
        return about + kl_each(z_m, z_s, torch.zeros_like(z_m), 1 / self.tau0).sum()  # (47)

    def loss(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        output, z, buffers = core.run_features(params, batch, here)
        value = core.masked_mean(core.pointwise(output, batch.y, here.model), batch.mask)  # (1)
        if self.lam:
            f = (self.factors(params, z) * batch.mask[:, None]).sum(0) / batch.mask.sum().clamp(min=1)
            value = value + self.lam * self.divergence(params, f, here)  # (19)
        if self.mu:
            value = value + 0.5 * self.mu * core.squared_distance(params, here.shared.params, here.model)
        return value, buffers

    def summary(self, params: core.Params, batch: core.Batch, here: core.Here) -> Tensor:
        h, _ = here.model.features(params, batch.x)
        return (self.factors(params, h) * batch.mask[:, None]).sum(0)

    def trains(self, names: Iterable[str], model: core.Network) -> list[str]:
        """The network, and for λ > 0 the NPN and, unless it is detached, f."""
        found = list(names)
        own = [n for n in found if n in NPN or (n in F_NAMES and not self.detach_f)]
        return core.trainable(found, model) + (own if self.lam else [])

    def passes(self) -> core.Passes:
        learn = self.local.descend(self.loss, self.trains)
        return *core.holding((learn,), leaves=self.added_numbers), core.gather("f", self.summary, batch=SCORING_BATCH)

    def added_numbers(self, model: core.Network) -> int:
        """Of f and the NPN, which predicts the head, about."""
        told = sum(p.numel() for n, p in model.module.named_parameters() if n in model.head_names)
        return (self.latent + 1) * (self.latent + model.feature_dim + told)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        f = carry.kept["f"] / here.n.clamp(min=1)
        _, _, site = self.matched(f, here)
        weight = here.n if self.weighting == "num_examples" else torch.ones_like(here.n)
        params = {n: carry.params[n] for n in here.shared.params}
        kept = {"site": site, "npn": {n: carry.params[n] for n in NPN}}
        return {"params": core.Mean(weight, params), "site": core.Sum(site - here.personal["site"])}, kept

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        return State(core.averaged(state.params, total), state.totals + total["site"].value)  # (5)

    def factor(self, personal: core.Personal) -> core.Gaussian:
        return personal["site"]

    def forget(self, state: State, factor: core.Gaussian) -> State:
        return State(state.params, state.totals - factor)  # (5)

    def report(self, state: State, total: core.Message) -> dict[str, Tensor]:
        return {"z_mean": state.totals.mean().mean(), "z_variance": state.totals.covariance().mean()}


def spoken_of(params: core.Params, model: core.Network, biases: bool) -> list[str]:
    """Leaves of the classifier that the NPN predicts: its weight matrices, or all that it trains."""
    names = core.head(params, model)
    return [n for n in names if biases or params[n].dim() > 1] or names


# --- moments of the tilted density: a Gaussian times a sigmoid, N(z; m, s) σ(f z)
def match(m: Tensor, s: Tensor, f: Tensor, kind: str, points: int = POINTS) -> tuple[Tensor, Tensor, core.Gaussian]:
    """Mean and variance of the cavity N(m, s) times σ(f z), and the site: what the factor adds to the cavity.

    `m` and `s` have one shape; `f` has it too, or is one number. Sums over points are formed in float64.
    """
    dtype, f = m.dtype, f.expand(m.shape)
    if kind == "quadrature":
        m, s, f = m.double(), s.double(), f.double()
    first, second = slopes(m, s, f, kind, points)
    second = torch.minimum(second, SHARE[kind] / s)
    left = 1 - s * second
    site = core.Gaussian((second / left).to(dtype), ((first + m * second) / left).to(dtype))  # Algorithm 1, line 8
    return (m + s * first).to(dtype), (s * left).to(dtype), site  # (9), (10)


def slopes(m: Tensor, s: Tensor, f: Tensor, kind: str, points: int = POINTS) -> tuple[Tensor, Tensor]:
    """∂ log Z and −∂² log Z by the cavity's mean."""
    if kind == "closed":
        _, r2, r3 = closed_ratios(m, s, f)
        return f * (1 - r2), f * f * curvature(r2, r3)  # (33), (37) with (39)
    u, log_weight, sigma, rest = tilted_grid(m, s, f, points)
    weight = torch.softmax(log_weight, -1)
    first, mixed = (weight * rest).sum(-1), (weight * rest * sigma).sum(-1)  # 1 − r₂ and r₂ − r₃
    kappa = mixed - (weight * (rest - first[..., None]) ** 2).sum(-1)
    mean = (weight * u).sum(-1)
    spread = (weight * (u - mean[..., None]) ** 2).sum(-1)
    steep = f * f * s * mixed > 1  # equal by Stein's lemma (21); f² κ loses its digits there, 1 − spread below
    return f * first, torch.where(steep, (1 - spread) / s, f * f * kappa).clamp(min=0)


def curvature(r2: Tensor, r3: Tensor) -> Tensor:
    """κ, never negative."""
    return (r2 + r2 * r2 - 2 * r3).clamp(min=0)


def closed_ratios(m: Tensor, s: Tensor, f: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log E σ, r₂ and r₃ by the closed form, with 0 ≤ r₃ ≤ r₂ ≤ 1."""
    one, two, three = (log_power(f * m, f * f * s, *constants(d)) for d in (1, 2, 3))  # (15)
    r2 = torch.exp(two - one).clamp(max=1)
    return one, r2, torch.minimum(torch.exp(three - one), r2)


def log_power(mean: Tensor, variance: Tensor, a: float, b: float) -> Tensor:
    """log E σ(C)^d for C ~ N(mean, variance), approximately."""
    return F.logsigmoid(a * (mean + b) / torch.sqrt(1 + ZETA2 * a * a * variance))  # (16)


def constants(power: int) -> tuple[float, float]:
    """a and b of σ(x)^d ≈ Φ(ζ a (x + b))."""
    return 2 * power * (1 - 2 ** (-1 / power)), math.log(2 ** (1 / power) - 1)  # (44)


def tilted_grid(m: Tensor, s: Tensor, f: Tensor, points: int = POINTS) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Places u in cavity sd, log weights of σ(C) N(u; 0, 1), whose sum is Z, σ(C) and 1 − σ(C), all (..., points)."""
    u, log_gap = places(m, s, f, points)
    c = f[..., None] * (m[..., None] + torch.sqrt(s)[..., None] * u)
    log_sigma, prior = F.logsigmoid(c), -0.5 * u * u - 0.5 * math.log(2 * math.pi)
    return u, log_sigma + prior + log_gap, torch.exp(log_sigma), torch.exp(log_sigma - c)  # (8), times the cavity


def places(m: Tensor, s: Tensor, f: Tensor, points: int = POINTS) -> tuple[Tensor, Tensor]:
    """Points u (..., points) in cavity sd, on all of the tilted density and nowhere else, and logs of their spacings.

    Along t = ±u, the sign being that of f, with β = |f| √s and the sigmoid's corner at t = c, the logarithm of the
    density is −t²/2 + min(0, β (t − c)) up to log 2. This is the smaller of two parabolas, so the interval on which it
    is within DEPTH of its largest value, which it has at c or at the nearer of 0 and β, is where both are. A trapezium
    rule needs points as close as the sigmoid's poles c ± iπ/β are: t = c + π/β sinh v with equally spaced v.

    Measured for |m| ≤ 40, s from 1e-4 to 100, |f| ≤ 100 in float64: mean, variance and log Z to 1e-9 (relative).
    To the gradient the places are constants; what is summed over them is not.
    """
    m, s, f = m.detach(), s.detach(), f.detach()
    sign, sd = torch.where(f < 0, -1.0, 1.0).to(m), torch.sqrt(s)
    corner, steep = -sign * m / sd, f.abs() * sd
    peak = torch.minimum(corner.clamp(min=0), steep)
    reach = torch.sqrt(peak**2 + 2 * DEPTH + 2 * steep * (corner - peak).clamp(min=0))
    other = torch.sqrt((steep - peak) ** 2 + 2 * DEPTH + 2 * steep * (peak - corner).clamp(min=0))
    low, high = torch.maximum(-reach, steep - other), torch.minimum(reach, steep + other)
    scale = math.pi / steep.clamp(min=1e-3)  # below, σ is a straight line wherever there is density
    begin, length = (low - corner) / scale, (high - low) / scale
    part = torch.linspace(0, 1, points, dtype=m.dtype, device=m.device)
    full = _between(begin, length)[..., None]
    half = torch.exp(0.5 * part * full)  # exp and no sinh, whose last bit depends on the place in memory
    mean = torch.exp(torch.asinh(begin))[..., None] * half
    step = 0.5 * (mean + 1 / mean) * (half - 1 / half)  # sinh v − sinh v_low = 2 cosh(v_low + half) sinh(half)
    along = begin[..., None] + step
    log_gap = 0.5 * torch.log1p(along**2) + torch.log(scale[..., None] * full / (points - 1))
    return sign[..., None] * (low[..., None] + scale[..., None] * step), log_gap


def _between(begin: Tensor, length: Tensor) -> Tensor:
    """asinh(begin + length) − asinh(begin), also where both are large and close."""
    end = begin + length
    mixed = end * torch.sqrt(1 + begin**2) + begin * torch.sqrt(1 + end**2)
    alike = torch.asinh(length * (begin + end) / torch.where(begin * end > 0, mixed, 1.0))
    return torch.where(begin * end > 0, alike, torch.asinh(end) - torch.asinh(begin))


# --- the network of (17), from a Gaussian over z to one over the classifier
def npn_linear(mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of xW + b for x ~ N(mean, variance)."""
    return mean @ weight + bias, variance @ (weight * weight)


def npn_sigmoid(mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of σ(o) for o ~ N(mean, variance)."""
    out = torch.exp(log_power(mean, variance, *constants(1)))  # (27)
    square = torch.exp(log_power(mean, variance, *constants(2)))  # (28)
    return out, (square - out * out).clamp(min=FLOOR)


def kl_each(mean: Tensor, variance: Tensor, prior_mean: Tensor, prior_variance: float | Tensor) -> Tensor:
    """KL(N(mean, variance) ‖ N(prior_mean, prior_variance)) of every element."""
    ratio = variance / prior_variance
    return 0.5 * (ratio - 1 - torch.log(ratio) + (mean - prior_mean) ** 2 / prior_variance)
