"""GPFL: one set of features, seen once as everybody's and once as the client's own.

The base b is shared, the head h_k stays at home; shared as well are a table of class embeddings e_c (C × d) and a
conditional valve, which bends features z = b(x) according to a vector u; its γ and β are each a linear layer, ReLU and
layer norm. It is used twice, with two conditions u:

    V(z, u) = ReLU(z ⊙ (γ(u) + 1) + β(u))                                                                     # (a)
    u_G = mean of the e_c,   u_k = Σ_c π_kc e_c,   π_k the client's class frequencies; 0 in the first round    # (b)

with the e_c as they were received, or (`lagged`) as the client had trained them itself when it was last asked.
A client descends on the sum of three terms, with ē the table as it was received and the norm over all of the batch,

    CE(h_k(V(z, u_k)), y)                                       its own view                                  # (c)
    CE(cos(V(z, u_G), e_·), y)                                  everybody's view, by cosines with the table    # (d)
    λ ‖V(z, u_G) − ē_y‖                                         not squared, not averaged                     # (e)

and µ is a weight decay of table and valve alone. The server averages base, table and valve by samples;
h_k(V(z, u_k)) predicts. A newcomer has the first head and its own class frequencies, and should train its head; who has
no data gets u_G for u_k.

Reference: Zhang, Hua, Cao, Wang, Song, Xue, Ma and Guan, "GPFL: Simultaneously learning global and personalized feature
information for personalized federated learning", ICCV 2023.

The letters are ours: the paper's own numbers were not at hand.

Differs from the paper: u_G and u_k are made of the table that this round brought. Released code makes them before it
takes the new table over, of the one that the client itself trained when it was last asked (`lagged`: a client keeps
that table, and has the received one until it is first asked), and it does not shuffle. They are constants in both: no
gradient reaches the table through (b). Since (e) grows with the root of the batch size, λ is worth something else with
another batch. A clip of the gradient is of network and added layers apart.
"""

from dataclasses import dataclass, field, replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posterity import core
from posterity.methods.fedper import split
from posterity.nn.extra import Extra

ADDED = "gpfl/"  # how the names of table and valve begin
TABLE = ADDED + "table"
COUNTING_BATCH = 256  # samples at once when labels are counted; has no influence on the result


@core.record
class State:
    params: core.Params  # base, table and valve, and the common first head
    begun: Tensor  # () 0 before the first aggregation, then 1
    head: frozenset[str] = field(metadata={core.STATIC: True})  # names of the leaves that stay at home


@core.record
class Shared:
    base: core.Params  # with table and valve
    begun: Tensor


@cache
def layers(name: str, size: int) -> Extra:
    """γ or β."""
    return Extra(ADDED + name, nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.LayerNorm(size)))


def first_layers(classes: int, size: int, key: Tensor, like: Tensor) -> core.Params:
    """First values of the table (standard normal, as of PyTorch's embeddings) and of the valve."""
    table = core.normal(core.fold(key, 0), (classes, size), torch.float64).to(like)
    valves = [layers(name, size).init(core.fold(key, i), like) for i, name in enumerate(("gamma", "beta"), 1)]
    return {TABLE: table, **valves[0], **valves[1]}


def added_numbers(model: core.Network) -> int:
    """Of the table and the valve."""
    return model.classes * model.feature_dim + sum(layers(n, model.feature_dim).numbers for n in ("gamma", "beta"))


def valve(params: core.Params, z: Tensor, u: Tensor) -> Tensor:
    """Features z (B, d) as the condition u (d,) lets them through."""
    gamma, beta = (layers(name, u.shape[-1])(params, u) for name in ("gamma", "beta"))
    return torch.relu(z * (gamma + 1) + beta)  # (a)


def conditions(here: core.Here) -> tuple[Tensor, Tensor]:
    """u_G and u_k (d,) of a client whose labels have been counted."""
    counts, begun = here.kept["labels"], here.shared.begun
    table, total = here.personal.get(TABLE, here.shared.base[TABLE]), counts.sum()  # its own one, if it keeps one
    share = torch.where(total > 0, counts / total.clamp(min=1), 1 / len(table))
    return begun * table.mean(0), begun * (share @ table)  # (b)


def unit(rows: Tensor) -> Tensor:
    """Rows of length 1; a row of zeros stays one, and has no gradient."""
    square = (rows**2).sum(-1, keepdim=True)
    some = square > 0
    return rows * torch.where(some, torch.rsqrt(torch.where(some, square, 1)), 0)


@dataclass(frozen=True)
class GPFL(core.Method):
    label = "GPFL"
    reference = "Zhang et al., ICCV 2023"
    absent = "cohort only: an absent client keeps its head (and with `lagged` its table)"
    outside = "the server's base and valve, with the initial head and the mean of the class embeddings"
    without_base = "shares its table and valve only"

    local: core.Training = core.hyper(core.Training(), "how the clients train", paper=core.Training(lr=0.005))
    lam: float = core.hyper(
        0.01, "λ: pull to the received embedding", "authors' scripts, CNN and MLP", search=(0.0001, 0.1, "log"), ge=0
    )
    mu: float = core.hyper(0.1, "µ: weight decay of table and valve", "authors' scripts, CNN and MLP", ge=0)
    lagged: bool = core.hyper(False, "make u of the table that the client trained last", "ours; true in authors' code")

    def init(self, model: core.Network, params: core.Params, facts: core.Facts) -> State:
        if model.task != "classification":
            raise ValueError("GPFL has an embedding of each class; this task is regression. Use fedper there")
        if model.head_names & model.buffers:
            raise ValueError(
                f"the head of the network {model.name!r} has running statistics, and GPFL gives it features that the "
                "network's own forward never sees. Name a head that begins behind the last batch norm"
            )
        like = next(iter(params.values()))
        added = first_layers(facts.classes, model.feature_dim, facts.key, like)
        return State({**params, **added}, like.new_zeros(()), model.head_names)

    def offer(self, state: State, client: Tensor | None) -> tuple[Shared, core.Own]:
        return Shared(split(state.params, state.head)[0], state.begun), ()

    def join(self, here: core.Here) -> core.Personal:
        return self.kept_at_home(here.initial, here.shared.base[TABLE], here.model)

    def kept_at_home(self, params: core.Params, table: Tensor, model: core.Network) -> core.Params:
        """The head, and the table if the client will make use of it."""
        head = split(params, model.head_names)[1]
        return {**head, TABLE: table} if self.lagged else head

    def start(self, here: core.Here) -> core.Params:
        return {**here.shared.base, **split(here.personal, here.model.head_names)[1]}

    def general(self, params: core.Params, seen: Tensor, batch: core.Batch, here: core.Here) -> Tensor:
        """What everybody's view costs, for features V(z, u_G)."""
        cosine = unit(seen) @ unit(params[TABLE]).T  # (B, C)
        value = core.masked_mean(core.pointwise(cosine, batch.y, here.model), batch.mask)  # (d)
        away = (seen - here.shared.base[TABLE][batch.y]) * batch.mask[:, None]
        return value + self.lam * core.norm(away)  # (e)

    def loss(self, params: core.Params, batch: core.Batch, here: core.Here) -> tuple[Tensor, core.Params]:
        z, buffers = here.model.features(params, batch.x, mask=batch.layer_mask, train=True, key=here.key)
        common, personal = conditions(here)
        bent = valve(params, z, personal)
        output = here.model.classify(params, bent, mask=batch.layer_mask, train=True, key=here.key)
        value = core.masked_mean(core.pointwise(output, batch.y, here.model), batch.mask)  # (c)
        return value + self.general(params, valve(params, z, common), batch, here), buffers

    def passes(self) -> core.Passes:
        decayed = replace(self.local, weight_decay=self.local.weight_decay + self.mu)
        optimisers = self.local.make_optimiser(), decayed.make_optimiser()
        apart = core.Groups(lambda name: int(name.startswith(ADDED)), optimisers)
        learn = core.descend(self.loss, apart, core.everything, **self.local.schedule())
        return *self.prepare(), *core.holding((learn,), leaves=added_numbers)

    def prepare(self) -> core.Passes:
        """The client's class frequencies, without which there is no u_k."""
        count = core.gather("labels", core.count_labels, anew=True, batch=COUNTING_BATCH)
        return core.holding((count,), leaves=added_numbers)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        common, _ = split(carry.params, here.model.head_names)
        return core.weighted(common, here), self.kept_at_home(carry.params, carry.params[TABLE], here.model)

    def combine(self, state: State, total: core.Message, now: core.Now) -> State:
        return State(core.averaged(state.params, total), torch.ones_like(state.begun), state.head)

    def predict(self, carry: core.Carry, x: Tensor, here: core.Here) -> Tensor:
        z, _ = here.model.features(carry.params, x)
        _, personal = conditions(here)
        return F.log_softmax(here.model.classify(carry.params, valve(carry.params, z, personal)), -1)
