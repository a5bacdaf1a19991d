"""On a GPU: the same numbers as on the CPU, in float64; skipped where there is none."""

from __future__ import annotations

import pytest
import torch

import posterity
from posterity import methods

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch sees no GPU here")
SMALL = {"dataset": "digits", "clients": 6, "rounds": 3, "evaluate_every": 3, "subset": "30%", "participation": "50%"}


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
