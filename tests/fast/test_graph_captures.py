"""Places that captures share: the same numbers, and memory that does not grow with the number of recordings.

What a GPU would capture is warmed up and called here as it is, on the CPU; `tests/behaviour/test_cuda.py` has the rest.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from kinds import everything, fewer
from predicted import score

from posterity import methods
from posterity.core.tree import tree_leaves
from posterity.engine.blocks import able
from posterity.engine.cache import Captures, TraceCache, play
from posterity.engine.engines import STACKED
from posterity.engine.round import first_state, train_round
from posterity.engine.store import Store
from posterity.fast import _cuda_graphs as cuda_graphs
from posterity.fast import _trace as trace
from posterity.fast import graph
from posterity.fast._trace import WARM, capture_call
from posterity.fast.graph import engine as GRAPH
from posterity.laws import make_case


@pytest.fixture
def captured(monkeypatch):
    """A CPU that captures; the list of what it did."""
    made = []

    def capture(traces, body):
        for _ in range(WARM + 1):  # the last one would be captured
            body()
        made.append(body)
        return body

    monkeypatch.setattr(cuda_graphs, "capture", capture)
    monkeypatch.setattr(trace, "capture", capture)
    record = lambda traces, function, name, *trees: capture_call(traces, function, *trees)  # noqa: E731
    monkeypatch.setattr("posterity.engine.cache.recorder", lambda: record)
    return made


def total(traces):
    return sum(place.nbytes for place in traces.captures.places.values())


def test_calls_that_look_alike_share_their_places_and_not_their_numbers(captured):
    traces, names = TraceCache(patience=0), ("more", "less", "both")
    functions = {"more": lambda x: {"out": x["a"] + x["b"]}, "less": lambda x: {"out": x["a"] - x["b"]},
                 "both": lambda x: x}  # fmt: skip
    kept = []
    for number in range(3):
        x = {"a": torch.full((4,), float(number)), "b": torch.ones(4)}
        kept += [(number, name, play(traces, captured, name, functions[name], x)) for name in names]
    for number, name, found in kept:  # results are nobody's place: later calls leave them alone
        if name == "both":
            assert (found["a"] == number).all()
            assert (found["b"] == 1).all()
        else:
            assert (found["out"] == number + (1 if name == "more" else -1)).all()
    assert len(captured) == 3
    assert total(traces) == 2 * 16 + 2 * 16  # two inputs, and two results where there are two


def test_a_place_is_counted_once_and_forgotten_with_the_recordings():
    held = Captures()
    leaves = [torch.zeros(3), torch.zeros(3), torch.zeros(3, dtype=torch.float64), torch.zeros(2, 3).t()]
    first = held.places_like("input", leaves)
    assert [place.stride() for place in first] == [leaf.stride() for leaf in leaves]
    assert len({place.data_ptr() for place in first}) == 4
    assert held.bytes == 12 + 12 + 24 + 24
    assert all(a is b for a, b in zip(first, held.places_like("input", leaves), strict=True))
    assert held.bytes == 72
    assert held.places_like("result", leaves[:1])[0] is not first[0]
    assert held.bytes == 84
    assert held.places_like("input", [torch.zeros(3, 2)])[0].stride() == (2, 1)  # and not that of the transposed one
    held.forget()
    assert (held.bytes, held.places) == (0, {})
    assert held.places_like("input", leaves[:1])[0] is not first[0]


def end_of(method, engine):
    """State, records and outputs after rounds of three cohorts, with scores between."""
    sim = make_case(methods.build(method, fewer(method), {"lr": 0.05, "batch": 5, "epochs": 2})).sim()
    sim = replace(sim, traces=TraceCache(patience=0))
    state, store, everybody = first_state(sim), Store(sim.federation.clients), able(sim)
    parts, outputs = [sim.federation.test, sim.federation.train], []
    late = torch.arange(sim.federation.members, sim.federation.clients)
    for number, cohort in enumerate((everybody, everybody[::2], everybody), 1):
        state, log = train_round(sim, engine, state, store, cohort, number, 3)
        assert not log.refused
        for point in ("received", "adapted", "trained"):
            outputs.append(score(sim, engine, state, store, everybody, number, parts, point, None))
        outputs.append(score(sim, engine, state, store, late, number, parts, "received", None, newcomers=True))
    return sim, (state, store.read(everybody), outputs)


FEW = ("fedavg", "scaffold", "pfedvmp", "ditto")
SPECS = [*sorted(methods.available()), "fedavg+metavd", "fedavg+calibrated", "fedavg+snip", "fedavg+drop"]


@pytest.mark.parametrize("method", [*FEW, *everything(*(spec for spec in SPECS if spec not in FEW))])
def test_captured_calls_and_steps_end_where_stacked_ones_end(method, captured):
    steps = partial(cuda_graphs.take_steps, make=graph.make_step)
    sim, end = end_of(method, replace(GRAPH, take_steps=steps))
    _, plain = end_of(method, STACKED)
    assert captured
    for a, b in zip(tree_leaves(end), tree_leaves(plain), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    assert sim.traces.captures.bytes == total(sim.traces)
    steps = [place for (use, *_), place in sim.traces.captures.places.items() if use == "step"]
    assert steps
    assert all(place.is_floating_point() for place in steps)  # a stale number of a row may be no row of this federation
