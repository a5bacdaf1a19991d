"""Work before any prediction, by hand: it comes after training or fine-tuning, at every point, and leaves no trace."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from predicted import score

from posterity import methods
from posterity.core.passes import gather
from posterity.core.tree import tree_map
from posterity.engine.engines import find_engine
from posterity.engine.round import Question, first_state, train_round
from posterity.engine.seeds import MultiSeed, answers
from posterity.engine.store import Store
from posterity.laws import LawBroken, make_case
from posterity.laws.case import largest_gap
from posterity.laws.plain import law_runs
from posterity.methods.fedavg import FedAvg

POINTS = ("received", "adapted", "trained")
CLIENTS = torch.tensor([0, 1, 3])


@dataclass(frozen=True)
class Prepared(FedAvg):
    """Predicts how many training samples, which leaves and which number of its own its preparation found."""

    def prepare(self):
        def seen(params, batch, here):
            rows = batch.mask.sum()
            return torch.stack([rows, rows * sum(p.sum() for p in params.values()), rows * here.client])

        return (gather("seen", seen, batch=7),)

    def predict(self, carry, x, here):
        leaves = sum(p.sum() for p in carry.params.values())
        count, total, number = carry.kept["seen"]
        return torch.stack([count, total / here.n - leaves, leaves, number / here.n]).expand(len(x), 4)


def scored(sim, engine, point):
    state, store = first_state(sim), Store(sim.federation.clients)
    state, _ = train_round(sim, find_engine(engine), state, store, CLIENTS, 1, 1)
    before = tree_map(torch.clone, (state, store.rows))
    found = score(sim, find_engine(engine), state, store, CLIENTS, 1, [sim.federation.test], point)[0]
    assert largest_gap(before, (state, store.rows))[0] == 0
    return torch.stack([rows[0] for rows in found])


@pytest.mark.parametrize("engine", ["oracle", "stacked", "graph"])
def test_it_sees_the_model_that_predicts_at_every_point(engine):
    sim = make_case(Prepared()).sim()
    leaves = {}
    for point in POINTS:
        found = scored(sim, engine, point)
        assert found[:, 0].tolist() == [25, 1, 8]
        assert found[:, 1].abs().max() < 1e-9
        assert found[:, 3].tolist() == CLIENTS.tolist()
        leaves[point] = found[:, 2]
    assert (leaves["received"] == leaves["received"][0]).all()
    assert (leaves["adapted"] != leaves["received"]).all()


def test_several_seeds_prepare_as_each_does_alone():
    sims = [make_case(Prepared()).sim(seed=seed) for seed in (0, 1)]
    states, stores = [first_state(sim) for sim in sims], [Store(sim.federation.clients) for sim in sims]
    asked = [Question(CLIENTS, [sim.federation.test], "adapted") for sim in sims]
    both = answers(MultiSeed.of(sims), find_engine("stacked"), states, stores, asked, 1)
    for sim, state, store, together in zip(sims, states, stores, both, strict=True):
        alone = score(sim, find_engine("stacked"), state, store, CLIENTS, 1, [sim.federation.test], "adapted")
        assert largest_gap(torch.cat(alone[0]), torch.cat(together[0]))[0] < 1e-12


@pytest.mark.parametrize(
    "spec",
    [*sorted(methods.available()), "fedbn+calibrated", "reptile+metavd", "fedavg+drop", "fedavg+snip", "fedavg+ft"],
)
def test_no_epochs_are_no_work(spec):
    assert methods.build(spec, {}).adapt(0) == ()


def test_work_for_no_epochs_is_refused_by_the_laws():
    class Wrong(FedAvg):
        def adapt(self, epochs):
            return Prepared().prepare()

    with pytest.raises(LawBroken, match="for 0 epochs; expected none: then nothing happens"):
        law_runs(make_case(Wrong()))


def test_wrappers_hand_it_on():
    for spec in ("ft", "snip", "calibrated", "drop"):
        wrapped = methods.build(f"fedavg+{spec}", {})
        inner = Prepared()
        host = replace(wrapped.method, method=inner) if spec == "drop" else inner
        assert replace(wrapped, method=host).prepare()[0].batch == 7
