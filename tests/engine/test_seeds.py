"""Several seeds at once: every engine, and the parts that the laws do not look at."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kinds import needs

import posterity
from posterity import methods
from posterity.core.passes import Training
from posterity.core.protocol import keep
from posterity.data.federation import Part
from posterity.engine.blocks import able
from posterity.engine.cache import TraceCache
from posterity.engine.engines import find_engine
from posterity.engine.round import Question, answer, first_state, train_round
from posterity.engine.seeds import MultiSeed, PerSeed, answers, train_rounds
from posterity.engine.store import Store
from posterity.laws.case import largest_gap, make_case, small_federation
from posterity.methods.fedavg import FedAvg
from posterity.methods.fedmap import FedMAP

SMALL = {"dataset": "digits", "clients": 6, "rounds": 3, "evaluate_every": 3, "subset": "30%", "participation": "50%"}
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here")


def sims(method=None, **changes):
    one = make_case(method or FedMAP(Training(lr=0.05)))
    return [replace(one.sim(seed=s), initial=one.model.init(s, one.dtype), **changes) for s in (0, 1)]


def moved(sim):
    """The simulation on a pool of its own: the same samples in another order."""
    federation = sim.federation
    order = torch.randperm(len(federation.x), generator=torch.Generator().manual_seed(0))
    place = torch.argsort(order)
    parts = {n: Part(place[getattr(federation, n).rows], getattr(federation, n).offsets)
             for n in ("train", "validation", "test")}  # fmt: skip
    return replace(sim, federation=replace(federation, x=federation.x[order], y=federation.y[order], **parts))


def both(some, engine):
    """States and records of two rounds, at once and alone."""
    multi, found = MultiSeed.of(some), []
    for at_once in (True, False):
        states, stores = [first_state(w) for w in some], [Store(w.federation.clients) for w in some]
        cohorts = [able(w)[i::2] for i, w in enumerate(some)]
        for number in (1, 2):
            if at_once:
                ends = train_rounds(multi, find_engine(engine), states, stores, cohorts, number, 2)
            else:
                each = zip(some, states, stores, cohorts, strict=True)
                ends = [train_round(w, find_engine(engine), s, t, c, number, 2) for w, s, t, c in each]
            states = [state for state, _ in ends]
        found.append([(s, t.rows, t.known) for s, t in zip(states, stores, strict=True)])
    return found


@pytest.mark.parametrize("engine", ["loop", "stacked", "graph"])
def test_every_engine(engine):
    some = sims(traces=TraceCache(patience=2**60 if engine == "loop" else 0))  # see tests/fast/test_loop.py
    together, alone = both(some, engine)
    assert largest_gap(together, alone)[0] < 1e-9


def test_seeds_with_samples_of_their_own():
    one, other = sims()
    together, alone = both([one, moved(other)], "stacked")
    assert largest_gap(together, alone)[0] < 1e-9


def test_the_same_samples_are_held_once():
    one, other = sims()
    size = len(one.federation.x)
    assert len(MultiSeed.of([one, other]).joint.federation.x) == size
    assert len(MultiSeed.of([one, moved(other)]).joint.federation.x) == 2 * size


def test_one_seed_is_its_own_simulation():
    (one, _) = sims()
    assert MultiSeed.of([one]).joint is one


def test_what_is_to_be_said_about_all_seeds_is_said_by_the_first():
    """Their clients are recorded together, and a run asks the simulation of its own seed."""
    some = sims()
    multi = MultiSeed.of(some)
    for _ in range(5):
        multi.joint.traces.overflow()
    assert [len(sim.traces.take_notes()) for sim in some] == [1, 0]
    assert multi.joint.traces.take_notes() == []


def _alone(sim, engine, state, store, question):
    return answer(sim, engine, state, store, question, 1)


def test_a_part_that_is_none_of_the_usual():
    some = sims()
    multi, engine = MultiSeed.of(some), find_engine("stacked")
    states, stores = [first_state(w) for w in some], [Store(w.federation.clients) for w in some]
    parts = [Part.of([w.federation.test.client(k) for k in range(w.federation.clients)]) for w in some]
    asked = [Question(torch.tensor([2, 0]), (part,), "received") for part in parts]
    for i, outputs in enumerate(answers(multi, engine, states, stores, asked, 1)):
        assert largest_gap(outputs, _alone(some[i], engine, states[i], stores[i], asked[i]))[0] < 1e-12


def test_nobody_takes_part():
    some = sims()
    states, stores = [first_state(w) for w in some], [Store(w.federation.clients) for w in some]
    nobody = [torch.zeros(0, dtype=torch.int64)] * 2
    ends = train_rounds(MultiSeed.of(some), find_engine("stacked"), states, stores, nobody, 1, 1)
    assert [log.empty for _, log in ends] == [True, True]


def test_what_does_nothing_is_left_out_by_engines_too():
    (each,) = PerSeed(FedAvg()).passes()
    plain = FedAvg().passes()[0]
    assert (each.open is keep, each.close is keep) == (plain.open is keep, plain.close is keep)


def test_other_shapes_are_refused():
    one, other = sims()
    wide = replace(other, federation=small_federation((7,)).to("cpu", torch.float64))
    with pytest.raises(ValueError, match="equal shapes of a sample"):
        MultiSeed.of([one, wide])
    with pytest.raises(ValueError, match="equal methods"):
        MultiSeed.of([one, replace(other, method=FedAvg())])


@GPU
@pytest.mark.parametrize("engine", ["graph", "compiled"])
@pytest.mark.parametrize("method", [*sorted(methods.available()), "fedavg+metavd"])
def test_on_a_gpu(method, engine):
    settings = {**needs(method), "method": method, "engine": engine, "device": "cuda", "dtype": "float64", "lr": 0.01,
                "set": {"model.hidden": 8}, **SMALL}  # fmt: skip
    for seed, result in zip((0, 1), posterity.run_seeds([0, 1], **settings), strict=True):
        alone = posterity.run(seed=seed, **settings)
        for point in ("received", "adapted", "trained"):
            one, other = (run.metric("nll", show="last", point=point) for run in (result, alone))
            assert one == pytest.approx(other, rel=1e-8), point
