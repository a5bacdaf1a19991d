"""On a GPU: the same numbers as on the CPU, in float64; skipped where there is none."""

from __future__ import annotations

import pytest
import torch

import posterity
from posterity import methods
from posterity.runs.lines import rounds_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here")
SMALL = {"dataset": "digits", "clients": 6, "rounds": 3, "evaluate_every": 3, "subset": "30%", "participation": "50%",
         "public": "20%"}  # fmt: skip


@pytest.mark.parametrize("model", ["mlp", "mlp_bn", "cnn"])
@pytest.mark.parametrize("method", sorted(methods.available()))
def test_cuda_equals_cpu(method, model):
    settings = {"model.feature_dim": 16} if model == "cnn" else {"model.hidden": 8}
    runs = [posterity.run(method=method, model=model, device=d, dtype="float64", lr=0.01, set=settings, **SMALL)
            for d in ("cpu", "cuda")]  # fmt: skip
    for metric in ("nll", "brier"):
        for point in ("received", "adapted", "trained"):
            values = [run.metric(metric, show="last", point=point) for run in runs]
            assert values[0] == pytest.approx(values[1], rel=1e-7), (metric, point)


def test_a_server_that_is_captured_equals_the_cpu():
    """FedBE distils in every round; from the third on its steps are replayed."""
    runs = [posterity.run(method="fedbe", model="mlp", device=d, dtype="float64", set={"server_steps": 5},
                          **{**SMALL, "rounds": 6}) for d in ("cpu", "cuda")]  # fmt: skip
    assert runs[0].metric("nll", show="last") == pytest.approx(runs[1].metric("nll", show="last"), rel=1e-7)


def test_same_seed_same_bits_on_the_gpu():
    runs = [posterity.run(method="pfedvmp", device="cuda", **SMALL) for _ in range(2)]
    assert all(torch.equal(runs[0].state.params[n], p) for n, p in runs[1].state.params.items())


@pytest.mark.parametrize("model", ["mlp", "mlp_bn", "cnn"])
@pytest.mark.parametrize("method", sorted(methods.available()))
def test_cuda_graphs_equal_eager_steps(method, model):
    settings = {"model.feature_dim": 16} if model == "cnn" else {"model.hidden": 8}
    rounds = {"rounds": 6, "evaluate_every": 3}
    runs = [posterity.run(method=method, model=model, device="cuda", engine=e, dtype="float64", lr=0.01, set=settings,
                          **{**SMALL, **rounds}) for e in ("stacked", "graph")]  # fmt: skip
    for metric in ("nll", "brier"):
        for point in ("received", "adapted", "trained"):
            values = [run.metric(metric, show="last", point=point) for run in runs]
            assert values[0] == pytest.approx(values[1], rel=1e-9), (metric, point)


FEW = ["fedavg", "fedpa", "fedbps", "maml", "pfedvmp", "scaffold"]
WRAPPED = ["fedavg+metavd", "fedavg+drop", "fedavg+snip"]
COMPILED = [*((m, "mlp") for m in (*sorted(methods.available()), *WRAPPED)), *((m, "mlp_bn") for m in FEW[:3]),
            *((m, "cnn") for m in FEW)]  # fmt: skip


@pytest.mark.filterwarnings("error:this step cannot be compiled")
@pytest.mark.parametrize(("method", "model"), COMPILED)
def test_compiled_steps_equal_recorded_ones(method, model):
    settings = {"model.feature_dim": 16} if model == "cnn" else {"model.hidden": 8}
    way = "patches" if model == "cnn" else "auto"  # PyTorch's own wants the number of clients as a plain number
    runs = [posterity.run(method=method, model=model, device="cuda", engine=e, dtype="float64", lr=0.01, set=settings,
                          convolution=way, **SMALL) for e in ("graph", "compiled")]  # fmt: skip
    for metric in ("nll", "brier"):
        for point in ("received", "adapted", "trained"):
            values = [run.metric(metric, show="last", point=point) for run in runs]
            assert values[0] == pytest.approx(values[1], rel=1e-9), (metric, point)


@pytest.mark.filterwarnings("error:this step cannot be compiled")
@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_compiled_steps_with_our_kernels(precision):
    runs = [posterity.run(method="fedavg", model="cnn", device="cuda", engine=e, convolution="triton", lr=0.01,
                          precision=precision, **SMALL) for e in ("graph", "compiled", "compiled")]  # fmt: skip
    nll = [run.metric("nll", show="last", point="trained") for run in runs]
    assert nll[0] == pytest.approx(nll[1], rel=1e-4 if precision == "ieee" else 1e-2)
    assert all(torch.equal(runs[1].state.params[n], p) for n, p in runs[2].state.params.items())


@pytest.mark.filterwarnings("error:this step cannot be compiled", "error:.*cannot be captured")
def test_augmented_steps_are_the_same_on_the_cpu_captured_and_compiled():
    ways = (("cpu", "stacked"), ("cuda", "stacked"), ("cuda", "graph"), ("cuda", "compiled"))
    settings = {"augment": "crop,flip", "convolution": "patches", "set": {"model.feature_dim": 16}, **SMALL}
    runs = [posterity.run(method="fedavg", model="cnn", device=d, engine=e, dtype="float64", lr=0.01, **settings)
            for d, e in ways]  # fmt: skip
    for point in ("received", "adapted", "trained"):
        values = [run.metric("nll", show="last", point=point) for run in runs]
        assert values[1:] == pytest.approx(values[:1] * 3, rel=1e-7), point


def peak_of(**settings) -> int:
    """Bytes that a run made PyTorch reserve, at most."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    result = posterity.run(device="cuda", **settings)
    assert not any(line.notes for line in rounds_of(result.lines) if line.round > 1)
    return torch.cuda.max_memory_reserved() - before


WIDE = {"method": "fedavg", "dataset": "digits", "clients": 60, "rounds": 4, "evaluate_every": 2, "engine": "graph",
        "model": "cnn", "batch_size": 5, "partition": "dirichlet:0.3"}  # fmt: skip


@pytest.mark.parametrize("allowed", [2**30, 3 * 2**30])
def test_memory_is_a_promise_that_captures_keep(allowed):
    """Clients of many sizes: a graph for every number of them. A quarter more is left for what libraries keep."""
    assert peak_of(memory=allowed, **WIDE) < 1.25 * allowed + 2**28


def test_memory_of_recordings_is_given_back_when_it_is_too_much():
    """Less than one recording takes: every one is forgotten again and again, and the numbers stay what they are."""
    settings = {**WIDE, "clients": 12, "model": "mlp", "rounds": 8}
    runs = [posterity.run(device="cuda", dtype="float64", memory=memory, **settings) for memory in (2**14, 2**32)]
    values = [run.metric("nll", show="last") for run in runs]
    assert values[0] == pytest.approx(values[1], rel=1e-9)
    notes = [[note for line in rounds_of(run.lines) for note in line.notes if "recordings" in note] for run in runs]
    assert [len(each) for each in notes] == [1, 0]


def test_running_out_of_memory_halves_the_block_and_goes_on():
    """PyTorch is given less than a block needs, as if other programs had the rest."""
    settings = {**WIDE, "clients": 40, "dtype": "float64", "engine": "stacked", "batch_size": 64, "local_steps": 2}
    roomy = posterity.run(device="cuda", **settings)
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    posterity.run(device="cuda", **{**settings, "rounds": 1})
    needed = torch.cuda.max_memory_reserved()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.6 * needed / total)
    try:
        tight = posterity.run(device="cuda", **settings)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    notes = [note for line in rounds_of(tight.lines) for note in line.notes]
    assert any("out of memory in training with" in note for note in notes)
    assert tight.metric("nll", show="last") == pytest.approx(roomy.metric("nll", show="last"), rel=1e-7)
