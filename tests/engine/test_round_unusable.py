"""Rounds whose result cannot be used: a finite poisoner is named, the others go on; what explodes is rolled back."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from oracles.sims import ENGINES, Run, leaves, mlp, points, same_bits, worst

from posterity.core.messages import Mean
from posterity.core.passes import Training
from posterity.core.tree import tree_map
from posterity.engine.round import first_state
from posterity.engine.seeds import MultiSeed, train_rounds
from posterity.engine.store import Store
from posterity.fast.graph import engine as GRAPH
from posterity.methods.fedper import FedPer
from posterity.methods.pfedvmp import PFedVMP

SIZES = (5, 4, 6, 3, 5, 4, 5, 3)
POISONER = 3
LONG = pytest.param(GRAPH, marks=pytest.mark.everything)
each_engine = pytest.mark.parametrize("engine", [*ENGINES, LONG], ids=lambda e: e.name)


@dataclass(frozen=True)
class Poisoned(FedPer):
    """FedPer in which one client sends a number of its choice from its second round on."""

    number: float = 1e30

    def message(self, carry, here):
        sent, kept = FedPer.message(self, carry, here)
        bad = (here.client == POISONER) & (here.round > 1)
        mean = sent["params"]
        return {"params": Mean(mean.weight, tree_map(lambda v: torch.where(bad, self.number, v), mean.value))}, kept


def run_of(method, engine=ENGINES[1], dtype=torch.float64, **how):
    federation = points(SIZES)
    return Run(method, federation, mlp(federation), engine, dtype=dtype, **how)


@each_engine
@pytest.mark.parametrize(
    ("number", "dtype"), [(1e30, torch.float32), (1e18, torch.float32), (1e200, torch.float64)], ids=str
)
def test_a_finite_poisoner_is_refused_by_name_and_the_others_go_on(engine, number, dtype):
    training = Training(lr=0.1, batch=4)
    run = run_of(Poisoned(training, number=number), engine, dtype).rounds(3)
    for log in run.logs[1:]:
        assert [refusal.client for refusal in log.refused] == [POISONER]
        assert log.accepted == len(SIZES) - 1
        assert log.cohort == len(SIZES)
        assert not log.rolled_back
    rest = [k for k in range(len(SIZES)) if k != POISONER]
    without = run_of(FedPer(training), engine, dtype).rounds(1).rounds(2, rest)
    assert worst(run.state, without.state) < 1e-6
    assert worst(run.store.rows, without.store.rows) < 1e-6


def test_the_reason_says_what_was_sent():
    log = run_of(Poisoned(Training(lr=0.1, batch=4), number=1e30)).rounds(2).logs[-1]
    assert "1e+30" in log.refused[0].reason


@dataclass(frozen=True)
class Breaks(FedPer):
    """FedPer whose server fails in round 2, in one of several ways."""

    how: str = "nan"

    def combine(self, state, total, now):
        after = FedPer.combine(self, state, total, now)
        if now.round != 2:
            return after
        if self.how == "solver":
            torch.linalg.cholesky(-torch.eye(3))
        factor = {"nan": float("nan"), "inf": float("inf"), "large": 1e25}.get(self.how, 1.0)
        return replace(after, params={n: p * factor for n, p in after.params.items()})


@each_engine
@pytest.mark.parametrize("how", ["nan", "inf", "large", "solver"])
def test_a_round_without_a_usable_result_is_rolled_back_and_named(engine, how):
    run = run_of(Breaks(Training(lr=0.1, batch=4), how=how), engine).rounds(1)
    before = tree_map(torch.clone, run.state)
    run.rounds(1)
    assert same_bits(run.state, before)
    log = run.logs[-1]
    assert log.rolled_back
    assert log.empty
    assert not log.refused
    run.rounds(1)
    assert run.logs[-1].accepted == len(SIZES)
    assert not same_bits(run.state, before)


def test_records_stay_when_a_round_is_rolled_back():
    run = run_of(Breaks(Training(lr=0.1, batch=4))).rounds(1)
    rows = tree_map(torch.clone, run.store.rows)
    run.rounds(1)
    assert run.logs[-1].rolled_back
    assert leaves(rows)
    assert same_bits(run.store.rows, rows)


def test_a_step_size_of_a_million_ends_in_no_traceback():
    federation = points((9, 7, 12, 8, 10, 6, 11, 5))
    run = Run(PFedVMP(Training(lr=1e6, batch=4)), federation, mlp(federation), dtype=torch.float32).rounds(3)
    assert all(leaf.isfinite().all() for leaf in leaves(run.state).values() if leaf.is_floating_point())
    assert all(log.empty for log in run.logs)


def test_seeds_at_once_refuse_and_roll_back_as_each_alone():
    training, federation = Training(lr=0.1, batch=4), points(SIZES)
    sims = [Run(Poisoned(training, number=1e18), federation, mlp(federation), seed=s, dtype=torch.float32).sim
            for s in (0, 1)]  # fmt: skip
    everyone = torch.arange(len(SIZES))

    def ends(group):
        seeds, states = MultiSeed.of(group), [first_state(sim) for sim in group]
        stores = [Store(len(SIZES)) for _ in group]
        logs = []
        for number in (1, 2, 3):
            found = train_rounds(seeds, ENGINES[1], states, stores, [everyone] * len(group), number, 3)
            states, logs = [state for state, _ in found], [*logs, [log for _, log in found]]
        return states, logs

    states, logs = ends(sims)
    for i, sim in enumerate(sims):
        alone, told = ends([sim])
        assert worst(states[i], alone[0]) < 1e-5
        assert [[r.client for r in each[i].refused] for each in logs] == [
            [r.client for r in e[0].refused] for e in told
        ]
        assert [r.client for r in logs[-1][i].refused] == [POISONER]


class Growing(FedPer):
    """FedPer whose State gets another leaf."""

    def combine(self, state, total, now):
        after = super().combine(state, total, now)
        return replace(after, params={**after.params, "rounds": total["params"].weight})


def test_a_state_that_grows_is_an_error_and_no_leaf_is_lost_in_silence():
    with pytest.raises(ValueError, match="FedPer: combine returned params/rounds, which the State before had not"):
        run_of(Growing(Training())).rounds(1)
