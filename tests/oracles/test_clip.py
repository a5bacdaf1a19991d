"""The bound of `+clip` by another way: one poisoner among honest clients, and how far it moves the mean."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from posterity.core import Mean, Sum, Training, Wrapper, tree_map
from posterity.methods.fedavg import FedAvg
from posterity.methods.scaffold import SCAFFOLD
from posterity.methods.wrappers.clip import Clip

from .sims import DOUBLE, ENGINES, Run, each_engine, mlp, points

TRAINING = Training(lr=0.1, batch=4)
SIZES = (9, 5, 3, 12, 7)
POISONER = 1


@dataclass(frozen=True)
class Poisoned(Wrapper):
    """A test's method: client 1 sends this number everywhere, and claims this many times its weight."""

    value: float = 1e6
    claim: float = 1.0
    label: ClassVar[str] = "poisoned"

    def message(self, carry, here):
        sent, personal = self.inner.message(carry, here)
        bad = here.client == POISONER

        def spoil(part):
            value = tree_map(lambda leaf: torch.where(bad, self.value, leaf), part.value)
            if isinstance(part, Sum):
                return replace(part, value=value)
            return Mean(torch.where(bad, part.weight * self.claim, part.weight), value)

        return {name: spoil(part) for name, part in sent.items()}, personal


def flat(params):
    return np.concatenate([leaf.flatten().numpy().astype(np.float64) for leaf in params.values()])


def played(method, engine, cohort=None, dtype=DOUBLE):
    federation = points(SIZES, dtype=dtype)
    return Run(method, federation, mlp(federation), engine, dtype=dtype).rounds(1, cohort)


@each_engine
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize(("value", "claim"), [(1e6, 1.0), (-1e18, 1.0), (1e30, 1e30), (1e6, -1e3), (3.0, 1e30)])
def test_a_poisoner_moves_the_mean_by_at_most_its_share(engine, dtype, value, claim):
    """Without it the mean is m; with it, at share p, the mean is (1 − p) m + p (w + d), ‖d‖ ≤ C."""
    bound, honest = 0.5, [k for k in range(len(SIZES)) if k != POISONER]
    bad = played(Clip(Poisoned(FedAvg(TRAINING), value, claim), bound), engine, dtype=dtype)
    good = played(Clip(FedAvg(TRAINING), bound), engine, honest, dtype=dtype)
    assert bad.logs[0].accepted == len(SIZES)
    share = 0.0 if claim < 0 else SIZES[POISONER] / sum(SIZES)
    first = flat(bad.sim.initial)
    moved = flat(bad.state.params) - first - (1 - share) * (flat(good.state.params) - first)
    slack = 1e-5 if dtype == torch.float32 else 1e-12
    assert np.linalg.norm(moved) <= share * bound + slack
    if share:
        assert np.linalg.norm(moved) == pytest.approx(share * bound, abs=slack)  # it uses all that it may
    assert bad.logs[0].report["shortened"] == good.logs[0].report["shortened"] + 1


def test_without_the_wrapper_it_carries_the_mean_away():
    bad = played(Poisoned(FedAvg(TRAINING), 100.0), ENGINES[1])
    assert np.linalg.norm(flat(bad.state.params)) > 100


@each_engine
def test_what_is_shortened_by_hand(engine):
    """Every client by numpy: the difference to the broadcast, cut to the bound, averaged by samples."""
    bound = 0.3
    run = played(Clip(FedAvg(TRAINING), bound), engine)
    first, total = flat(run.sim.initial), 0.0
    met = 0
    for client, n in enumerate(SIZES):
        alone = flat(played(FedAvg(TRAINING), engine, [client]).state.params) - first
        far = np.sqrt((alone**2).sum())
        met += far > bound
        total = total + n / sum(SIZES) * alone * min(1.0, bound / far)
    assert 0 < met < len(SIZES)
    assert np.abs(flat(run.state.params) - first - total).max() < 1e-12
    assert run.logs[0].report["shortened"] == met


@each_engine
def test_differences_and_sums_are_measured_from_zero(engine):
    """SCAFFOLD sends how far it moved: a poisoner's 1e6 becomes a difference of length C, and so its variate."""
    bound, honest = 0.5, [k for k in range(len(SIZES)) if k != POISONER]
    bad = played(Clip(Poisoned(SCAFFOLD(TRAINING)), bound, sum_bound=0.25), engine)
    good = played(Clip(SCAFFOLD(TRAINING), bound, sum_bound=0.25), engine, honest)
    first, share = flat(bad.sim.initial), 1 / len(SIZES)
    moved = flat(bad.state.params) - first - (1 - share) * (flat(good.state.params) - first)
    assert np.linalg.norm(moved) == pytest.approx(share * bound, rel=1e-9)
    control = flat(bad.state.control) - flat(good.state.control)  # c changes by the sum over all K clients
    assert np.linalg.norm(control) == pytest.approx(0.25 / len(SIZES), rel=1e-9)
