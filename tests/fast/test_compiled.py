"""Steps written down for any number of clients and compiled once: the same numbers as stacked ones.

What a GPU would capture is called here as it is, on the CPU; `tests/behaviour/test_cuda.py` has the rest.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import pytest
import torch
from kinds import fewer, of_each_kind

from posterity import methods
from posterity.core.random import fold
from posterity.core.tree import tree_leaves, tree_rebuilt
from posterity.engine import engines as stacked
from posterity.engine.augment import Augmentation
from posterity.engine.blocks import able
from posterity.engine.engines import STACKED
from posterity.engine.round import first_state, train_round
from posterity.engine.simulation import PER_CLIENT, solid
from posterity.engine.store import Store
from posterity.fast import _cuda_graphs as cuda_graphs
from posterity.fast import compiled as inductor
from posterity.fast import graph
from posterity.fast._trace import fill
from posterity.fast.compiled import Input, Refused, compile_flat, trace_any
from posterity.fast.compiled import engine as COMPILED
from posterity.laws import make_case

GPU, HOST = torch.cuda.is_available(), os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if GPU and not HOST else "cpu"
kernels = pytest.mark.skipif(
    find_spec("triton") is None or not (GPU or HOST), reason="needs Triton, and a GPU or TRITON_INTERPRET=1"
)
on_host = pytest.mark.skipif(find_spec("triton") is None or not HOST, reason="needs Triton and TRITON_INTERPRET=1")
SMALL = torch.tensor([3, 4, 10])  # clients with 8, 5 and 3 samples
WRAPPED = ["fedavg+metavd", "fedavg+drop", "fedavg+snip", "fedavg+calibrated"]


def _simulation(method, model="mlp"):
    return make_case(methods.build(method, fewer(method), {"lr": 0.05, "batch": 5, "epochs": 2}), model).sim()


def _augmented():
    """A simulation whose pictures (1, 8, 8) are cropped and flipped."""
    return replace(_simulation("fedavg", "linear"), augment=Augmentation((1, 8, 8), crop=True, flip=True))


def _engine(stepping):
    """`compiled`, with other steps."""

    return replace(COMPILED, take_steps=stepping)


def on_gpu(sim, each, carry, here, plan):
    """The steps of `compiled` as a GPU takes them."""
    return cuda_graphs.take_steps(sim, each, carry, here, plan, graph.make_step, inductor.body)


def _rounds(sim, engine, count=2, cohort=None):
    state, store = first_state(sim), Store(sim.federation.clients)
    cohort = able(sim) if cohort is None else cohort
    for number in range(1, count + 1):
        state, log = train_round(sim, engine, state, store, cohort, number, count)
        assert not log.refused
    return state


def _met(sim):
    """Every pass of a round: the pass, the carry and the record that it starts from, and its plan."""
    found = []

    def note(sim, each, carry, here, plan):
        found.append((each, carry, here, plan))
        return stacked.take_steps(sim, each, carry, here, plan)

    _rounds(sim, _engine(note), 1)
    return found


SLOW = pytest.param("pfedgp", marks=pytest.mark.everything)  # its chains are thousands of operators


@pytest.mark.parametrize(
    "method", [SLOW, *of_each_kind(m for m in [*sorted(methods.available()), *WRAPPED] if m != "pfedgp")]
)
def test_operators_for_any_number_of_clients(method):
    _are_the_same_for_any_number(_simulation(method))


def test_augmented_steps_for_any_number_of_clients():
    _are_the_same_for_any_number(_augmented())


def _are_the_same_for_any_number(sim):
    for each, carry, here, plan in _met(sim):
        (rows,), (real,) = plan.rows(0, 1, len(here.client))
        mine = {name: getattr(here, name) for name in PER_CLIENT if name != "key"}
        data = (sim.federation.x, sim.federation.y)
        fixed = (here.shared, here.initial, here.round, *data, torch.zeros_like(here.step))
        trees = solid((fixed, (mine, rows, real, fold(here.key, 1), carry)))
        step = graph.make_step(sim, each, here)

        def flat(*leaves, step=step, trees=trees):
            (*fixed, number), (mine, rows, real, keys, carry) = tree_rebuilt(trees, leaves)
            return tree_leaves(step(tuple(fixed), mine, rows, real, keys, number, carry))

        constant, stacks = ([leaf.detach() for leaf in tree_leaves(tree)] for tree in trees)
        run = trace_any(flat, [*map(Input, constant), *(Input(leaf, 1) for leaf in stacks)])
        for count in (1, 2, len(here.client)):
            some = [leaf[:count] for leaf in stacks]
            with torch.no_grad():
                pairs = zip(run(*constant, *some), flat(*constant, *some), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs), (each, count)


@pytest.mark.parametrize(
    "exact", [pytest.param(64, id="every size", marks=pytest.mark.everything), pytest.param(1, id="few sizes")]
)
@pytest.mark.parametrize("method", ["fedavg", pytest.param("fedpa", marks=pytest.mark.everything)])
def test_compiled_steps_equal_stacked_ones(method, exact, monkeypatch):
    monkeypatch.setattr(cuda_graphs, "capture", lambda traces, body: body)
    monkeypatch.setattr(cuda_graphs, "EXACT", exact)
    monkeypatch.setattr(inductor, "EXACT", exact)
    compile_step, made = inductor._compile, []
    monkeypatch.setattr(inductor, "_compile", lambda *args: made.append(compile_step(*args)) or made[-1])
    states = [_rounds(_simulation(method), engine) for engine in (STACKED, _engine(on_gpu))]
    assert len(made) == 1
    assert made[0] is not None
    for a, b in zip(*map(tree_leaves, states), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("reserved", "calls"), [(2**33, 1), (0, 0)])
def test_what_captures_warmed_up_with_is_given_back_once_they_are_made(reserved, calls, monkeypatch):
    """Beyond --memory it went to no other program: one with 14 GB held 42. Later rounds capture nothing."""
    monkeypatch.setattr(cuda_graphs, "capture", lambda traces, body: body)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: reserved)
    given = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given.append(1))
    sim = _simulation("fedavg")
    state, store = first_state(sim), Store(sim.federation.clients)
    engine = _engine(partial(cuda_graphs.take_steps, make=graph.make_step))  # as `graph`: there is nothing to compile
    for number in (1, 2, 3):
        state, _ = train_round(sim, engine, state, store, SMALL, number, 3)
        assert len(given) == calls


@pytest.mark.everything  # compiles twice; `test_compiled_cpu.py` says it of a CPU
def test_a_resumed_run_has_the_same_bits(monkeypatch):
    """What is compiled rounds otherwise than what is called, so a new process must compile what the old one did."""
    monkeypatch.setattr(cuda_graphs, "capture", lambda traces, body: body)
    engine, ends = _engine(on_gpu), []
    for resumed in (False, True):
        sim = _simulation("fedavg")
        state, store = first_state(sim), Store(sim.federation.clients)
        for number in (1, 2):
            sim = _simulation("fedavg") if resumed and number == 2 else sim  # nothing is recorded yet
            state, _ = train_round(sim, engine, state, store, SMALL, number, 2)
        ends.append(state)
    called = _rounds(_simulation("fedavg"), STACKED, 2, SMALL)
    leaves = [tree_leaves(state) for state in (*ends, called)]
    assert all(torch.equal(a, b) for a, b in zip(*leaves[:2], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(*leaves[1:], strict=True))  # or this test would show nothing


@pytest.mark.everything
def test_augmented_steps_are_compiled(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "capture", lambda traces, body: body)
    compile_step, made = inductor._compile, []
    monkeypatch.setattr(inductor, "_compile", lambda *args: made.append(compile_step(*args)) or made[-1])
    states = [_rounds(_augmented(), engine) for engine in (STACKED, _engine(on_gpu))]
    assert len(made) == 1
    assert made[0] is not None
    for a, b in zip(*map(tree_leaves, states), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.everything
def test_a_compiled_step_of_a_host_equals_a_stacked_one():
    """The gradient of a cross-entropy adds into places that the labels choose."""
    sim = _simulation("fedavg")
    each, carry, here, plan = _met(sim)[0]
    (rows,), (real,) = plan.rows(0, 1, len(here.client))
    mine = {name: getattr(here, name) for name in PER_CLIENT if name != "key"}
    fixed = (here.shared, here.initial, here.round, sim.federation.x, sim.federation.y)
    inputs = solid((fixed, mine, rows, real, fold(here.key, 1), torch.zeros_like(here.step), carry))
    step = graph.make_step(sim, each, here)
    with torch.no_grad():
        run, _ = compile_flat(step, *inputs)
        pairs = zip(run(*tree_leaves(inputs)), tree_leaves(step(*inputs)), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_steps_that_cannot_be_written_down_are_replayed(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "capture", lambda traces, body: body)

    def refuse(*args):
        raise Refused("by this test")

    monkeypatch.setattr(inductor, "trace_any", refuse)
    with pytest.warns(UserWarning, match="cannot be compiled and is replayed as it is: by this test"):
        state = _rounds(_simulation("fedavg"), _engine(on_gpu))
    plain = _rounds(_simulation("fedavg"), STACKED)
    assert all(torch.equal(a, b) for a, b in zip(tree_leaves(state), tree_leaves(plain), strict=True))


def test_a_refusal_without_words_is_named(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "capture", lambda traces, body: body)

    def refuse(*args):
        raise AssertionError

    monkeypatch.setattr(inductor, "compile_operators", refuse)
    with pytest.warns(UserWarning, match="is replayed as it is: AssertionError in PyTorch's compiler"):
        _rounds(_simulation("fedavg"), _engine(on_gpu), 1)


@pytest.mark.everything
@pytest.mark.parametrize("time", ["first", "second"])
def test_a_number_of_clients_that_the_compiler_fixes_is_noticed(time, monkeypatch):
    """As in a grouped convolution. The second time, the compiler finds its result on disk and fixes nothing."""
    monkeypatch.setattr(cuda_graphs, "capture", lambda traces, body: body)
    made = make_case(methods.build("fedavg", {}, {"lr": 0.05, "batch": 4}), "cnn")
    with pytest.warns(UserWarning, match="cannot be compiled and is replayed as it is: expected size"):
        state = _rounds(made.sim(), _engine(on_gpu), 1, SMALL)
    plain = _rounds(made.sim(), STACKED, 1, SMALL)
    assert all(torch.equal(a, b) for a, b in zip(tree_leaves(state), tree_leaves(plain), strict=True))


def test_what_is_no_line_in_the_number_of_clients_is_refused():
    x = torch.ones(5, 3)
    line = trace_any(lambda x: [x.new_ones(2 * len(x) + 1)], [Input(x, 1)])
    assert [len(line(x[:n])[0]) for n in (1, 4)] == [3, 9]
    with pytest.raises(Refused, match="no line"):
        trace_any(lambda x: [x.new_ones(len(x) ** 2)], [Input(x, 1)])
    with pytest.raises(Refused, match="becomes"):
        trace_any(lambda x: [x / (1.5 * len(x))], [Input(x, 1)])
    with pytest.raises(
        Refused, match=r"other operators .* number 1 is aten.sin.default for 10007 and output for 10009"
    ):
        trace_any(lambda x: [x.sin() if len(x) % 10 == 7 else x], [Input(x, 1)])
    with pytest.raises(Refused, match="other operands"):
        trace_any(lambda x, y: [x + (x if len(x) % 10 == 7 else y)], [Input(x, 1), Input(x, 1)])


def test_products_that_are_taken_from_the_library():
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(3, *size, generator=draw, dtype=torch.float64) for size in ((5, 7), (7, 4)))
    for left in (a, a.mT.contiguous().mT, a[:1].expand(3, 5, 7)):
        torch.testing.assert_close(inductor.multiply(left, b), left @ b)
    assert inductor.multiply(torch.ones(3, 5, 40), torch.ones(3, 40, 4)) is NotImplemented  # many terms, on the host


@pytest.mark.parametrize(
    ("shape", "dims", "axes"),
    [
        ((3, 64, 200), [1, 2], [[2], [1]]),
        ((3, 64, 32, 5, 5), [1, -2, 2, 4], [[2, 3, 4], [1]]),
        ((3, 9000), [1], [[2], [1]]),
        ((3, 9000, 2), [-2], [[2], [1]]),
        ((3, 64, 100), [1, 2], [[1, 2]]),  # few terms
        ((3, 16001), [1], [[1]]),  # a prime
        ((3, 9000, 2), [1, 2], [[1, 2]]),
    ],
)
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("way", ["sum", "mean"])
def test_sums_of_many_terms_are_made_of_partial_ones(shape, dims, axes, way, keepdim):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    reduce = getattr(torch, way)
    made = trace_any(lambda x: [reduce(x, dims, keepdim, dtype=torch.float64)], [Input(x, 1)], inductor.INSTEAD)
    torch.testing.assert_close(made(x)[0], reduce(x, dims, keepdim, dtype=torch.float64))
    adding = [n for n in made.graph.nodes if n.target in (torch.ops.aten.sum.dim_IntList, torch.ops.aten.mean.dim)]
    assert [node.args[1] for node in adding] == axes


@kernels
@pytest.mark.parametrize("rows", [1, 10, 20])
@pytest.mark.parametrize("turned", [False, True], ids=["rows", "columns"])
def test_strips_are_products(rows, turned):
    from posterity.nn.kernels.products import strips

    draw = torch.Generator().manual_seed(rows)
    a, b = (torch.randn(3, *size, generator=draw).to(DEVICE) for size in ((rows, 100), (100, 70)))
    b = b.mT.contiguous().mT if turned else b
    torch.testing.assert_close(strips(a, b), (a.double() @ b.double()).float(), rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(
        strips(a[:1].expand_as(a), b), (a[:1].double() @ b.double()).float(), rtol=1e-5, atol=2e-5
    )


@on_host
@pytest.mark.filterwarnings("error:this step cannot be compiled")
def test_convolutions_by_kernels_inside_compiled_steps(monkeypatch):
    """Inductor lays its tensors out as it likes; what it hands to our operators must lie as they were recorded."""
    monkeypatch.setattr(cuda_graphs, "capture", lambda traces, body: body)
    made = make_case(methods.build("fedprox", {}, {"lr": 0.05, "batch": 4}), "cnn", torch.float32)
    engines = STACKED, _engine(on_gpu)
    sims = [replace(made.sim(), model=made.model.with_conv_backend("triton")) for _ in engines]
    states = [_rounds(sim, engine, 1, SMALL) for sim, engine in zip(sims, engines, strict=True)]
    for a, b in zip(*map(tree_leaves, states), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_values_that_trade_places_are_not_overwritten():
    """A step whose new first value is its old second one, and the other way round; what it passes on is not touched."""
    pair, mine = {"a": torch.zeros(3, 2), "b": torch.ones(3, 2), "c": torch.ones(3)}, {"client": torch.arange(3)}
    places = {name: leaf.clone() for name, leaf in pair.items()}
    tables = (torch.zeros(2, 3, 1), torch.zeros(2, 3, 1), torch.zeros(2, 3, 2))
    slot = torch.zeros((), dtype=torch.int64)

    def swap(fixed, mine, rows, real, keys, step, carry):
        return {"a": carry["b"], "b": carry["a"], "c": carry["c"]}

    mine["steps"] = torch.tensor([1, 1, 0])
    inductor._advance(swap, True, (), slot, torch.zeros_like(slot), tables, (mine, places))
    assert int(slot) == 1
    assert torch.equal(places["a"][:2], pair["b"][:2])
    assert torch.equal(places["b"][:2], pair["a"][:2])
    assert torch.equal(places["a"][2], pair["a"][2])  # it had finished
    assert places["c"]._version == 0


def test_fill_copies_every_type():
    values = [torch.arange(3), torch.ones(2), torch.arange(4.0), torch.tensor([True])]
    places = [torch.zeros_like(v) for v in values]
    fill(places, values)
    assert all(torch.equal(p, v) for p, v in zip(places, values, strict=True))
