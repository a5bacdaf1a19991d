"""A short run starts at once: nothing is imported or recorded that would not pay."""

from __future__ import annotations

import inspect
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch

from posterity.engine import process_settings
from posterity.engine.cache import COMPILER, TraceCache
from posterity.engine.choose import at_work

CPU = torch.device("cpu")


@pytest.mark.skipif(
    "from torch._dynamo" in inspect.getsource(torch.func.vmap), reason="torch.func.vmap imports the compiler by itself"
)
def test_a_short_run_does_not_import_the_compiler():
    code = ("import posterity, sys; posterity.run(method='fedavg', dataset='digits', clients=3, subset='5%', rounds=1);"
            "assert 'torch._dynamo' not in sys.modules; import torch; assert '_dynamo' not in vars(torch);"
            "assert torch._dynamo.config is sys.modules['torch._dynamo'].config;"  # who asks for it gets it
            "assert torch.func.grad(lambda p: p**2)(torch.ones(())) == 2")  # fmt: skip
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_importing_the_package_leaves_pytorch_as_it_is():
    """Nothing is put into PyTorch before a run begins; while one goes on, whoever asks for the compiler gets it."""
    code = ("import torch; before = dict(vars(torch)); import posterity, posterity.core, sys;"
            "from posterity.engine.process_settings import ProcessSettings;"
            "assert vars(torch) == before and 'torch._dynamo' not in sys.modules\n"
            "with ProcessSettings().applied(): assert vars(torch).keys() - before.keys() == {'_dynamo'}\n"
            "assert vars(torch) == before and 'torch._dynamo' not in sys.modules")  # fmt: skip
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_the_switch_is_the_real_one_once_the_compiler_is_there(monkeypatch):
    asked = []

    class Real:
        @staticmethod
        def _disable():
            asked.append(True)
            return nullcontext()

    monkeypatch.setitem(sys.modules, "torch._dynamo", Real)
    monkeypatch.setitem(sys.modules, "torch._dynamo.compiled_autograd", Real)
    with process_settings._disable():
        pass
    assert asked


@pytest.mark.parametrize("there", [False, True])
def test_the_first_recording_waits_until_it_pays_for_the_import(monkeypatch, there):
    modules = {n: m for n, m in sys.modules.items() if there or not n.startswith("torch._dynamo")}
    monkeypatch.setattr(sys, "modules", {**modules, **({"torch._dynamo": sys} if there else {})})
    traces = TraceCache()
    one, other = traces.entry(traces, "one"), traces.entry(traces, "other")
    assert traces.pays(one, CPU, 300) == there
    assert traces.pays(other, CPU, COMPILER) is True  # all calls together


def test_clients_at_work_by_hand():
    """50, 10 and 5 steps of which the longest sets the pace; of two thirds of them in a round."""
    counts = torch.tensor([500, 100, 50, 0])
    assert at_work(counts, 10, 3) == pytest.approx(65 / 50)
    assert at_work(counts, 10, 2) == pytest.approx(65 / 50 * 2 / 3)
