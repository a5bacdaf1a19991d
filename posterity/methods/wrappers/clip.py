"""Clip: no client moves the mean or the sum by more than a bound, however absurd what it sends is (if it is finite).

A mean of parameters has no origin of its own: what a client contributes is how far it went from the broadcast w. Leaves
that were not broadcast, differences (`differences` of the method) and sums are measured from o = 0 instead.

    d_k = θ_k − o,   o = w for what was broadcast, else 0                                                         # (1)
    θ_k ← o + d_k C/‖d_k‖   where ‖d_k‖ > C, all leaves of a mean (or of a sum) together                          # (2)
    p_k ← min(max(p_k, 0), n_k): nobody claims a larger weight than its training samples                          # (3)

So a client moves a mean by at most its share p_k/Σp times C, and a sum by at most C. Messages keep their kinds: sums
stay sums. What is not shortened is untouched bit for bit; with an infinite bound everything is.

How to choose C: `shortened` of the report counts the clients that met the bound. A seat belt is a bound that honest
clients never meet (the default: an epoch of our networks moves by 0.1 to 3); for robustness lower it until a few do.

Reference: the bound of McMahan, Ramage, Talwar and Zhang, "Learning differentially private recurrent language models",
ICLR 2018, Algorithm 1 (flat clipping); against attackers: Sun, Kairouz, Suresh and McMahan, "Can you really backdoor
federated learning?", 2019, section 4.

Differs from the paper: weights are bounded as well; running statistics of batch norm are leaves like any other, for
they move the average too. Clients shorten what they send, and as an attacker would not, a server across machines leaves
out what is longer (`inspect`). Behind a wrapper that changes messages afterwards (`+clip+dp`) it cannot tell. Kinds
that are neither Mean nor Sum, and means with a weight for every number, are refused, and so is `+dp+clip`: it would
take differences for parameters.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posterity import core

SLACK = 1 + 1e-4  # a length that was cut to the bound is rounded
SHORTENED = "clip.shortened"  # the name under which clients say that they met the bound


def broadcast(shared: core.Shared) -> dict[str, Any]:
    """The leaves that everybody was sent, whatever stands around them."""
    while isinstance(shared, core.Sparse) or hasattr(shared, "host"):
        shared = shared.part if isinstance(shared, core.Sparse) else shared.host
    found = getattr(shared, "params", shared)
    return found if isinstance(found, dict) else {}


def origin(part: core.Mean | core.Sum, known: dict[str, Any]) -> core.Tree:
    """Where a contribution is measured from: leaves in `known` from there, everything else from 0."""
    zero = core.tree_map(torch.zeros_like, part.value)
    if not isinstance(part, core.Mean) or not isinstance(zero, dict):
        return zero
    fits = [n for n in zero if isinstance(known.get(n), Tensor) and known[n].shape == getattr(zero[n], "shape", None)]
    return {n: known[n].to(zero[n]) if n in fits else zero[n] for n in zero}  # (1)


def length(tree: core.Tree) -> Tensor:
    """Euclidean norm of all leaves together, whose squares need not be representable."""
    leaves = [leaf.flatten() for leaf in core.tree_leaves(tree) if leaf.numel()]
    largest = torch.stack([leaf.abs().amax() for leaf in leaves]).amax()
    scale = torch.where(largest > 0, largest, 1)
    return scale * torch.stack([((leaf / scale) ** 2).sum() for leaf in leaves]).sum().sqrt()


def shortened(value: core.Tree, start: core.Tree, bound: float) -> tuple[core.Tree, Tensor]:
    """`value` at most `bound` away from `start`, and whether it was farther. What is not finite stays so."""
    if not core.tree_leaves(value):
        return value, torch.zeros((), dtype=torch.bool)
    moved = core.tree_map(torch.sub, value, start)
    far = length(moved)
    over = far > bound
    return core.tree_map(lambda v, o, d: torch.where(over, o + d / far * bound, v), value, start, moved), over  # (2)


def check_kind(name: str, part: Any, suffix: str) -> core.Mean | core.Sum:
    """The part of a message, if its length says how far it can move the total."""
    mean = isinstance(part, core.Mean) and isinstance(part.weight, Tensor) and part.weight.dim() == 0
    real = all(leaf.is_floating_point() for leaf in core.tree_leaves(getattr(part, "value", ())))
    if (mean or isinstance(part, core.Sum)) and real:
        return part
    raise ValueError(
        f"{suffix} bounds sums, and means with one weight, of real numbers; this method sends {name!r} as a "
        f"{type(part).__name__}, whose length does not say how far it moves the total. Leave {suffix} out"
    )


@dataclass(frozen=True)
class Clip(core.Wrapper):
    bound: float = core.hyper(10.0, "C: longest contribution to a mean; inf: any", "ours: see above how to choose it",
                              infinite=True, ge=0)  # fmt: skip
    sum_bound: float | None = core.hyper(
        None, "longest contribution to a sum; none: as `bound`", "ours", infinite=True, ge=0
    )

    def __post_init__(self) -> None:
        core.check_fields(self)
        if self.method.secret:
            raise ValueError("+clip behind +dp would measure what was shortened already, and from another origin: ε "
                             "would not hold. Write +clip before +dp, or leave it out")  # fmt: skip

    @property
    def label(self) -> str:
        return f"{self.inner.label}+Clip"

    def bound_of(self, part: core.Mean | core.Sum) -> float:
        return self.sum_bound if isinstance(part, core.Sum) and self.sum_bound is not None else self.bound

    def part(self, name: str, given: Any, here: core.Here) -> tuple[Any, Tensor]:
        """One part of a message within its bounds, and whether it was outside."""
        if isinstance(given, core.Sparse):
            inside, over = self.part(name, given.part, here)
            return replace(given, part=inside), over
        part = check_kind(name, given, "+clip")
        known = {} if name in self.inner.differences else broadcast(here.shared)
        value, over = shortened(part.value, origin(part, known), self.bound_of(part))
        if isinstance(part, core.Sum):
            return replace(part, value=value), over
        weight = torch.minimum(part.weight.clamp(min=0), here.n.to(part.weight))  # (3)
        return core.Mean(weight, value), over | (part.weight != weight)

    def inspect(self, message: core.Message, here: core.Here) -> str:
        """A site that is not honest does not clip what it sends, so a server looks."""
        wide = replace(self, bound=SLACK * self.bound, sum_bound=self.sum_bound and SLACK * self.sum_bound)
        for name, given in message.items():
            if name != SHORTENED and bool(wide.part(name, given, here)[1]):
                return f"{name!r} is longer than +clip allows ({self.bound:g}), or weighs more than its samples"
        return self.inner.inspect({n: part for n, part in message.items() if n != SHORTENED}, here)

    def message(self, carry: core.Carry, here: core.Here) -> core.Sent:
        sent, personal = self.inner.message(carry, here)
        parts = {name: self.part(name, given, here) for name, given in sent.items()}
        over = torch.stack([torch.zeros_like(here.n, dtype=torch.bool), *(over for _, over in parts.values())]).any()
        return {**{name: part for name, (part, _) in parts.items()}, SHORTENED: core.Sum(over.to(here.n))}, personal

    def combine(self, state: core.State, total: core.Message, now: core.Now) -> core.State:
        return self.inner.combine(state, inner_total(total), now)

    def report(self, state: core.State, total: core.Message) -> dict[str, Tensor]:
        return {**self.inner.report(state, inner_total(total)), "shortened": total[SHORTENED].value}


def inner_total(total: core.Message) -> core.Message:
    """What the inner method's clients sent."""
    return {name: part for name, part in total.items() if name != SHORTENED}
