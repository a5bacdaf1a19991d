"""FedPAC: features drawn to common class prototypes, and for every client its own combination of all heads.

Client k gets the base b, the prototypes P_c and a head. On the received base it describes its features z, with class
frequencies π_c and class means µ_c, by where the classes lie and by how uncertain that is,

    H_k = (π_c µ_c)_c,     V_k = (1/n_k) Σ_c [ π_c E‖z‖²_c − π_c² ‖µ_c‖² ]                                  # (a)

trains the head for one epoch on the cross-entropy with the base held still, then the base for E epochs with the head
held still, on

    f_k + λ (1/D) ‖z − P_y‖²        from round 2 on; in round 1 there are no prototypes                     # (b)

and sends base, head, H_k, V_k and the class means of its features on the trained base. The server takes means, of bases
by n_k and of class means by class counts, and looks for each participant i for the weights of everybody's heads,

    α_i = argmin αᵀ (diag V + G_i) α on the simplex,     G_i[j, l] = ⟨H_i − H_j, H_i − H_l⟩                  # (c)

which trade the variance of the estimate against its bias. Weights below 1e-3 are dropped and the rest made to sum to 1.

    h_i ← Σ_j α_ij h_j                                                                                      # (d)

Reference: Xu, Tong and Huang, "Personalized federated learning with feature alignment and classifier collaboration",
ICLR 2023.

Differs from the paper: (c) is solved for all participants by pivoting, to rounding, after 1e-8 was
added to the diagonal; the authors' code calls a library and first drops eigenvalues below 0.01, which only rounding
makes small, and curvature with them. If the programme cannot be solved a client keeps its head. G_i comes from one
table of inner products. A class that nobody has reported yet pulls to the client's own mean before training. The
statistics (a) of the received base and the trained head travel in one message, so a round has one exchange and not two.
A client of one sample has V = 0 by (a). The server keeps the head that it made for a client until that client takes
part again. A newcomer, and a client that has not taken part yet, gets the mean of the last cohort's heads, by n_k;
adaptation trains the head alone. Classification only.

Cost: a round has two more passes over the data without gradients and an epoch for the head; the server takes O(m³) for
each of m participants, in all about 0.15 s for m = 100 and 4 s for m = 300 on one core.

On (c): the least αᵀAα on the simplex, for A positive definite, is at α = β / Σβ with β the least ½βᵀAβ − Σβ over β ≥ 0:
at the former's solution Aα ≥ λ with equality where α > 0 and λ = αᵀAα > 0, so that β = α/λ has Aβ ≥ 1 with equality
where β > 0, which is all that the latter asks for. So the sum of α needs no multiplier, and the programme is solved by
exchanging who is 0 and who is not until no sign is wrong (block principal pivoting: Júdice and Pires, Computers and
Operations Research 21, 1994), for many participants at once. That is exact: the tolerance is for rounding alone.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from posterity import core
from posterity.methods.fedper import split

AUTHORS = "authors' code"
PAPER = core.Training(lr=0.01, epochs=5, batch=50, momentum=0.5, weight_decay=5e-4)
SCORING_BATCH = 64  # samples at once for sums; has no influence on the result
RIDGE = 1e-8  # added to the diagonal, so that equal participants share equally
ROUNDING = 1e-12  # the same, of the largest diagonal entry, so that rounding leaves A positive definite
TOLERANCE = 1e-8  # of Aβ ≥ 1
CUT = 1e-3  # weights below are dropped
PATIENCE = 3  # exchanges of everything that is wrong without having less of it, before only one is exchanged at a time
CHUNK = 2**22  # numbers in the matrices that are solved at once


@core.record
class State:
    params: core.Params  # the shared base, and the mean of the last cohort's heads
    prototypes: Tensor  # P_c (C, D)
    known: Tensor  # 1 where somebody has reported the class (C,)
    heads: core.Params  # (clients, ...): what the server made for each client
    met: Tensor  # 1 where that has happened (clients,)
    head: frozenset[str] = field(metadata={core.STATIC: True})


@core.record
class Shared:
    base: core.Params
    prototypes: Tensor
    known: Tensor


@dataclass(frozen=True)
class FedPAC(core.Method):
    label = "FedPAC"
    reference = "Xu, Tong and Huang, ICLR 2023"
    absent = "cohort only: an absent client keeps the head that it was given last"
    outside = "the server's base with the mean head"
    class_statistics = {"before": ("clients",), "after": ("prototypes",)}

    local: core.Training = core.hyper(
        core.Training(), "how the clients train; lr and epochs are those of the base", paper=PAPER
    )
    lam: float = core.hyper(1.0, "λ: pull of features to their prototype", AUTHORS, search=(0.1, 10.0, "log"), ge=0)
    head_lr: float = core.hyper(0.1, "step size of the head", AUTHORS, ge=0)
    head_epochs: int = core.hyper(1, "epochs of the head, before those of the base", AUTHORS, ge=1)
    collaboration: bool = core.hyper(
        True, "combine heads; false: each client keeps its own", "Xu et al. 2023, ablation"
    )

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        if model.task != "classification":
            raise ValueError("FedPAC speaks about classes; this task is regression. Use a method without prototypes")
        core.require_two_parts(params, model, "FedPAC")
        zero = next(iter(params.values())).new_zeros(())
        heads = {n: p.expand(facts.clients, *p.shape).clone() for n, p in split(params, model.head_names)[1].items()}
        prototypes = zero.expand(facts.classes, model.feature_dim).clone()
        known, met = zero.expand(facts.classes).clone(), zero.expand(facts.clients).clone()
        return State(params, prototypes, known, heads, met, model.head_names)

    def offer(self, state: State, client: Tensor | None) -> tuple[Shared, core.Own]:
        below, mean = split(state.params, state.head)
        shared = Shared(below, state.prototypes, state.known)
        if client is None:
            return shared, mean
        row = core.tree_map(lambda leaf: leaf.index_select(0, client[None])[0], (state.heads, state.met))
        return shared, core.tree_map(lambda made, common: torch.where(row[1] > 0, made, common), row[0], mean)

    def start(self, here: core.Here) -> core.Params:
        return {n: here.own[n] if n in here.own else here.shared.base[n] for n in here.initial}

    def aligned(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        """The loss of the base: (b)."""
        output, z, buffers = core.run_features(params, batch, here)
        own = class_means(here.kept["before"]).to(here.n)
        target = torch.where(here.shared.known[:, None] > 0, here.shared.prototypes, own)[batch.y]
        pull = ((z - target) ** 2).mean(1) * (here.round > 1)
        each = core.pointwise(output, batch.y, here.model) + self.lam * pull
        return core.masked_mean(each, batch.mask), buffers  # (b)

    def train_head(self) -> core.Pass:
        how = replace(self.local, lr=self.head_lr, epochs=self.head_epochs, steps=None)
        return how.descend(core.fit_head, core.head)

    def passes(self) -> core.Passes:
        return (
            core.gather("before", core.sum_features, batch=SCORING_BATCH),
            self.train_head(),
            self.local.descend(self.aligned if self.lam else core.fit, core.base),
            core.gather("after", core.sum_features, batch=SCORING_BATCH),
        )

    def adapt(self, epochs: int) -> core.Passes:
        return core.tuned((self.train_head(),), epochs)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        below, own = split(carry.params, here.model.head_names)
        (variance, rows), after = describe(carry.kept["before"]), carry.kept["after"]
        row = {"head": own, "n": here.n, "variance": variance.to(here.n), "rows": rows.to(here.n)}
        prototypes = core.Mean(after["count"].to(here.n), class_means(after).to(here.n))
        return {**core.weighted(below, here), "prototypes": prototypes, "clients": core.Rows(here.client, row)}, ()

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        params, found = core.averaged(state.params, total), total["clients"]
        said, classes = found.value, total["prototypes"]
        prototypes = classes.mean(state.prototypes)
        known = torch.maximum(state.known, (classes.weight > 0).to(state.known))
        share = said["n"] / said["n"].sum()
        mean = core.tree_map(lambda h: torch.tensordot(share, h.to(share), 1), said["head"])
        made = said["head"]
        if self.collaboration:
            alpha = collaborate(said["variance"], said["rows"])
            made = core.tree_map(lambda h: torch.tensordot(alpha, h, 1), made)  # (d)
        heads, met = core.Rows(found.client, made).into(state.heads), state.met.index_fill(0, found.client, 1.0)
        return State({**params, **mean}, prototypes, known, heads, met, state.head)

    def report(self, state: State, total: core.Message) -> dict[str, Tensor]:
        return {"known_classes": state.known.sum()}


# --- a client's statistics
def class_means(sums: dict[str, Tensor]) -> Tensor:
    """µ_c (C, D); 0 for a class without samples."""
    return sums["sum"] / sums["count"].clamp(min=1)[:, None]


def describe(sums: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """V () and H (C, D) from counts (C,), sums (C, D) and sums of squared lengths (C,) of features."""
    n = sums["count"].sum().clamp(min=1)
    rows = sums["sum"] / n  # π_c µ_c
    variance = (sums["square"].sum() / n - (rows**2).sum()) / n  # (a)
    return variance.clamp(min=0), rows  # rounding may leave a little less than nothing


# --- the quadratic programme: for every participant, how much of whose head it takes
def collaborate(variance: Tensor, rows: Tensor) -> Tensor:
    """α (m, m): row i are participant i's weights, from V (m,) and H (m, C, D); the identity where there are none.

    A participant whose V and H are 0 has said nothing (its classes are too small to be told): it keeps its own
    head, and nobody takes of it.
    """
    told = rows.flatten(1).any(1) | (variance != 0)
    if not bool(told.all()):
        kept, who = torch.eye(len(rows)).to(rows), told.nonzero()[:, 0]
        if len(who):
            kept[who[:, None], who] = collaborate(variance[who], rows[who])
        return kept
    flat = (rows - rows.mean(0)).flatten(1)  # G does not know where 0 is; near it fewer digits cancel
    inner = flat @ flat.T
    inner = (inner + inner.T) / 2
    some = torch.split(torch.arange(len(inner), device=inner.device), max(1, CHUNK // len(inner) ** 2))
    alpha = torch.cat([least_on_simplex(bias(inner, i) + torch.diag(variance)) for i in some])  # (c)
    alpha = torch.where(alpha < CUT, 0, alpha)
    alpha = alpha / alpha.sum(1, keepdim=True)
    return torch.where(alpha.isfinite().all(1, keepdim=True), alpha, torch.eye(len(alpha)).to(alpha))


def bias(inner: Tensor, some: Tensor) -> Tensor:
    """G_i (n, m, m) of the participants `some` (n,), from the inner products of all H (m, m)."""
    mine = inner[some]  # ⟨H_i, H_j⟩ (n, m)
    away = inner.diagonal()[some][:, None] - mine  # ⟨H_i, H_i − H_j⟩
    gram = away[:, :, None] - (mine[:, None, :] - inner)
    return (gram + gram.transpose(1, 2)) / 2


def least_on_simplex(quadratic: Tensor) -> Tensor:
    """α (n, m): row i minimises αᵀA_iα on the simplex, A (n, m, m) positive semidefinite; NaN where that fails."""
    size = quadratic.shape[1]
    top = quadratic.diagonal(dim1=1, dim2=2).amax(1)
    quadratic = quadratic + torch.diag_embed((RIDGE + ROUNDING * top)[:, None].expand(-1, size))
    free = torch.ones_like(quadratic[..., 0], dtype=torch.bool)  # (n, m): whose weight is not 0
    fewest, tries = torch.full_like(top, size + 1), torch.full_like(top, PATIENCE)
    for _ in range(10 * size + 50):
        beta, slack = stationary(quadratic, free)
        wrong = torch.where(free, beta < 0, slack < -TOLERANCE)
        count = wrong.sum(1)
        if not bool(count.any()):
            break
        fewer = count < fewest
        tries, fewest = torch.where(fewer, PATIENCE, tries - 1), torch.where(fewer, count, fewest)
        last = wrong & (wrong.flip(1).cumsum(1).flip(1) == 1)
        free = free ^ torch.where((tries >= 0)[:, None], wrong, last)
    beta = torch.where(wrong.any(1, keepdim=True), torch.nan, beta.clamp(min=0))
    return beta / beta.sum(1, keepdim=True)


def stationary(quadratic: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """β (n, m) with Aβ = 1 where `free` and β = 0 elsewhere, and Aβ − 1."""
    some = free.to(quadratic)
    both = some[:, :, None] * some[:, None, :]
    factor, failed = torch.linalg.cholesky_ex(quadratic * both + torch.diag_embed(1 - some))
    beta = torch.cholesky_solve(some[:, :, None], factor)
    beta = torch.where(failed[:, None, None] > 0, torch.nan, beta)
    return beta[..., 0], (quadratic @ beta)[..., 0] - 1
