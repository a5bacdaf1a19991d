"""The loop replays steps that it has taken often: the same bits, and only where operators are always the same ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from posterity import methods
from posterity.core.tree import tree_leaves, tree_map
from posterity.engine.record import Recordings
from posterity.laws import subject
from posterity.laws.trace import run
from posterity.methods.fedavg import FedAvg

NEVER = 2**60
CASES = [("fedavg", "mlp"), ("fedavg", "mlp_bn"), ("fedavg", "mlp_dropout"), ("fedavg", "cnn"), ("pfedvmp", "mlp"),
         ("perfedavg", "mlp_bn"), ("fedavg+metavd", "mlp")]  # fmt: skip


def end(made, patience):
    """Everything that some rounds sent and left behind, and what became of the recordings of steps."""
    world = replace(made.world(), recordings=Recordings(patience=patience))
    leaves = [t for r in run(world, "loop").rounds for t in tree_leaves((r.sent, r.rows, r.state))]
    return leaves, [entry.value for key, entry in world.recordings.found.items() if "loop" in key]


def equal(left, right):
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize(("method", "network"), CASES)
def test_replayed_steps_have_the_same_bits(method, network):
    made = subject(methods.build(method, {}), network, torch.float32)
    (called, none), (replayed, entries) = end(made, NEVER), end(made, 1)
    assert not any(none)
    assert any(entries)
    assert equal(called, replayed)


@dataclass(frozen=True)
class Peeping(FedAvg):
    """Its steps are scaled by a number that they look at, which only a loop allows."""

    look: Callable = int

    def passes(self):
        one = self.local.descend()

        def step(carry, batch, here):
            after = one.step(carry, batch, here)
            return replace(after, params=tree_map(lambda p: p * (1 + 0.1 * self.look(here.client)), after.params))

        return (replace(one, step=step),)


LOOKS = {"int": int, "numpy": lambda number: float(number.numpy())}  # the second is no operator: a recording misses it


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_a_step_that_looks_at_numbers_is_never_recorded(look):
    made = subject(Peeping(look=look))
    (called, _), (again, entries) = end(made, NEVER), end(made, 0)
    assert entries
    assert not any(entries)
    assert equal(called, again)
