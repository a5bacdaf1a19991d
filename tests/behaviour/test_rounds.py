"""Rounds count from 1: which rounds of a run a setting speaks of, as its user sees them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import pytest
import torch
from kinds import everything
from oracles.sims import ENGINES, Run, mlp, points

import posterity
from posterity.core.messages import Mean
from posterity.core.passes import Training
from posterity.core.protocol import Now
from posterity.core.random import make_key
from posterity.engine.round import first_state, train_round
from posterity.engine.store import Store
from posterity.laws import make_case
from posterity.laws.case import history
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedpa import FedPA
from posterity.methods.wrappers.metavd import MetaVD

TINY = {"dataset": "digits", "clients": 4, "subset": "10%", "lr": 0.1, "batch_size": 5, "dtype": "float64"}
each_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda e: e.name)


def after(rounds: int, method: str, **settings):
    """The server's leaves after so many rounds of a run."""
    found = posterity.run(method=method, rounds=rounds, evaluate_every=rounds, set=settings, **TINY)
    return torch.cat([p.flatten() for p in found.state.params.values()])


@pytest.mark.parametrize("burn", [0, 2])
def test_fedpa_sends_fedavgs_deltas_in_rounds_1_to_burn_rounds(burn):
    """With a server that takes over the mean: FedAvg's states after rounds 1 … b, another one after round b + 1."""
    plain = {"burn_rounds": burn, "rho": 0.5, "server_lr": 1.0, "server_momentum": 0.0}
    apart = [float((after(r, "fedpa", **plain) - after(r, "fedavg")).abs().max()) for r in range(1, burn + 2)]
    assert [gap < 1e-12 for gap in apart] == [True] * burn + [False]


@pytest.mark.parametrize("wait", [1, *everything(0, 3)])
def test_the_first_weight_is_dropped_in_round_after_plus_one(wait, tmp_path):
    settings = {"drop.after": wait, "drop.threshold": 1e-6}
    found = posterity.run(method="fedavg+drop", rounds=5, evaluate_every=5, set=settings, out=tmp_path / "run", **TINY)
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    dropped = {x["round"]: x["report"]["dropped"] > 0 for x in lines if x["kind"] == "round"}
    assert dropped == {r: r > wait for r in range(1, 6)}
    assert found.round == 5


def warmth(rounds: int, total: int, anneal: float) -> float:
    """The share of β in force when so many rounds are over, by hand."""
    length = anneal * total
    return 1 / (1 + math.exp(-(12 * rounds / length - 6))) if length > 0 and rounds <= length else 1.0


@dataclass(frozen=True)
class Listening(FedAvg):
    """FedAvg whose clients send which round they are told."""

    def message(self, carry, here):
        sent, personal = super().message(carry, here)
        return {**sent, "round": Mean(here.n, {"round": here.round.to(here.n)})}, personal

    def report(self, state, total):
        return {"told": total["round"].mean()["round"]}


@each_engine
@pytest.mark.parametrize(("rounds", "anneal"), [(5, 1.0), (10, 0.4), (7, 0.5), (4, 0.0), (6, 0.1)])
def test_the_share_of_beta_in_rounds_1_2_3(engine, rounds, anneal):
    """β in round r has r − 1 rounds behind it: sigmoid(−6) of β in round 1, β itself after `anneal` of the rounds."""
    federation = points((5, 3))
    run = Run(MetaVD(FedAvg(Training(lr=0.1)), anneal=anneal, width=5, depth=1), federation, mlp(federation), engine)
    told = []
    for number in range(1, rounds + 1):
        told.append(float(engine.offer(run.sim, run.state, torch.tensor([0, 1]), 2)[1].warmth[0]))
        run.state, _ = train_round(run.sim, engine, run.state, run.store, torch.tensor([0, 1]), number, rounds)
    assert told == pytest.approx([warmth(r - 1, rounds, anneal) for r in range(1, rounds + 1)], rel=1e-12)
    if anneal:
        assert told[0] == pytest.approx(0.0024726231566347743, rel=1e-12)  # 1 / (1 + e⁶)


def test_the_share_of_beta_by_hand():
    """anneal = 0.5 of 8 rounds: 4 rounds from sigmoid(−6) over −3, 0 and 3 to 6, then 1."""
    federation = points((5, 3))
    method = MetaVD(FedAvg(Training(lr=0.1)), anneal=0.5, width=5, depth=1)
    run = Run(method, federation, mlp(federation))
    shares = [float(run.state.warmth)]
    for number in range(1, 8):
        run.state, _ = train_round(run.sim, run.engine, run.state, run.store, torch.tensor([0, 1]), number, 8)
        shares.append(float(run.state.warmth))
    expected = [0.0024726231566347743, 0.04742587317756678, 0.5, 0.9525741268224334, 0.9975273768433653, 1, 1, 1]
    assert shares == pytest.approx(expected, rel=1e-12)


def test_a_runs_last_share_of_beta():
    """All 4 annealed rounds are over: sigmoid(6)."""
    settings = {"metavd.anneal": 1.0, "metavd.width": 4, "metavd.depth": 1}
    found = posterity.run(method="fedavg+metavd", rounds=4, evaluate_every=4, set=settings, **TINY)
    assert float(found.state.warmth) == pytest.approx(0.9975273768433653, rel=1e-12)


@each_engine
def test_clients_and_server_are_told_1_in_the_first_round(engine):
    federation = points((5, 3))
    run = Run(Listening(Training(lr=0.1)), federation, mlp(federation), engine).rounds(3)
    assert [log.report["told"] for log in run.logs] == [1, 2, 3]
    assert [log.round for log in run.logs] == [1, 2, 3]


def test_the_laws_try_a_method_in_the_rounds_that_it_will_see():
    """FedPA with one round of FedAvg: what clients send in the laws' first round is FedAvg's, in the second not."""
    local = Training(lr=0.05, batch=4)
    made = [history(make_case(m), "stacked") for m in (FedPA(local, burn_rounds=1, rho=0.1), FedAvg(local))]
    sent = [done.sent["delta"].value for done in made[0].rounds[:2]]
    first = {n: p - made[1].first.params[n] for n, p in made[1].rounds[0].sent["params"].value.items()}
    assert max(float((sent[0][n] - first[n]).abs().max()) for n in first) < 1e-12
    other = history(make_case(FedPA(local, burn_rounds=2, rho=0.1)), "stacked").rounds[1].sent["delta"].value
    assert max(float((sent[1][n] - other[n]).abs().max()) for n in other) > 1e-6


@pytest.mark.parametrize("number", [0, -1])
def test_a_round_below_one_is_refused(number):
    federation = points((5, 3))
    run = Run(FedAvg(), federation, mlp(federation))
    with pytest.raises(ValueError, match="rounds count from 1"):
        train_round(run.sim, run.engine, first_state(run.sim), Store(2), torch.tensor([0, 1]), number, 3)
    with pytest.raises(ValueError, match="rounds count from 1"):
        Now(number, 3, make_key(0), 2)
    with pytest.raises(ValueError, match="rounds count from 1"):
        replace(Now(1, 3, make_key(0), 2), round=number)
