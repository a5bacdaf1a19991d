"""x of (b), the tilted mean: a descent that ends at the mean of its epochs' last iterates, and keeps their spread."""

from __future__ import annotations

from dataclasses import replace

import torch

from posterity.core import Batch, Carry, Here, Pass, tree_map
from posterity.methods.fedep.precision import unbiased


def averaged_over_epochs(descent: Pass, samples: int, burn_rounds: int, spread: bool) -> Pass:
    """The same descent with the mean of `samples` iterates at its end (in burn-in, the last one of all).

    Sums are of θ − µ. With `spread` the variances of the iterates are kept for (c).
    """

    def begin(carry: Carry, here: Here) -> Carry:
        carry = descent.open(carry, here)
        zeros = {n: torch.zeros_like(carry.params[n]) for n in here.shared.precision}
        sums = {"far": zeros, **({"square": zeros} if spread else {})}
        return replace(carry, kept={**carry.kept, **sums, "count": here.n * 0})

    def step(carry: Carry, batch: Batch, here: Here) -> Carry:
        carry, steps = descent.step(carry, batch, here), here.steps.clamp(min=1)
        done = [(here.step + i) * samples // steps for i in (0, 1)]
        last = (done[1] > done[0]).to(here.n)
        far = {n: last * (carry.params[n] - here.shared.params[n]) for n in here.shared.precision}
        sums = {"far": tree_map(torch.add, carry.kept["far"], far), "count": carry.kept["count"] + last}
        if spread:
            sums["square"] = tree_map(lambda s, f: s + f**2, carry.kept["square"], far)
        return replace(carry, kept={**carry.kept, **sums})

    def end(carry: Carry, here: Here) -> Carry:
        carry, early = descent.close(carry, here), here.round <= burn_rounds
        count = carry.kept["count"].clamp(min=1)
        far = tree_map(lambda s: s / count, carry.kept["far"])
        mean = {n: torch.where(early, carry.params[n], here.shared.params[n] + f) for n, f in far.items()}  # (b)
        kept = {n: v for n, v in carry.kept.items() if n not in ("far", "square", "count")}
        if spread:
            kept["spread"] = tree_map(lambda s, f: unbiased(s, f, count), carry.kept["square"], far)
        return replace(carry, params={**carry.params, **mean}, kept=kept)

    return replace(descent, open=begin, step=step, close=end)


__all__ = ["averaged_over_epochs"]
