"""`auto` is a rule: by device, network and sizes, never by a clock; what was taken is written down and repeated."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
import torch

import posterity
from posterity import models
from posterity.core.gaussian import with_tf32
from posterity.engine import choose as rule
from posterity.engine.choose import ALONE, Wish, choose
from posterity.engine.process_settings import with_onednn
from posterity.experiment import run
from posterity.experiment.setup import set_up
from posterity.fast.graph import engine as GRAPH
from posterity.settings.config import Config

SMALL = {"dataset": "digits", "clients": 4, "rounds": 3, "evaluate_every": 3, "subset": "10%", "method": "fedavg"}
CNN = {**SMALL, "model": "cnn", "set": {"model.feature_dim": 8}}
FULL = "CUDA out of memory. Tried to allocate 20.00 GiB"


def samples(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def cnn():
    model = models.build("cnn", (1, 8, 8), 10, feature_dim=8)
    return model, samples(4, 1, 8, 8), model.init(0)


@pytest.fixture
def large():
    model = models.build("cnn", (3, 32, 32), 10)
    return model, samples(4, 3, 32, 32), model.init(0)


@pytest.fixture
def mlp():
    model = models.build("mlp", (1, 8, 8), 10)
    return model, samples(4, 1, 8, 8), model.init(0)


def taken(found):
    return found.engine.name, found.model.conv_backend, found.onednn


@pytest.mark.parametrize(
    ("network", "busy", "expected"),
    [
        ("mlp", 10.0, ("graph", "", True)),
        ("mlp", ALONE - 0.1, ("loop", "", True)),
        ("cnn", 10.0, ("graph", "native", False)),
        ("cnn", ALONE - 0.1, ("loop", "native", False)),
        ("large", 10.0, ("loop", "last", True)),
        ("large", ALONE - 0.1, ("loop", "last", True)),
    ],
)
def test_the_rule_on_a_cpu(request, network, busy, expected):
    found = choose(Wish(), *request.getfixturevalue(network), busy=busy)
    assert taken(found) == expected
    assert ("one by one is faster" in found.remark) == (expected[0] == "loop")


@pytest.mark.parametrize(("there", "expected"), [(("triton",), "triton"), ((), "native")])
def test_on_a_gpu_kernels_are_taken_where_there_are_some(there, expected):
    assert rule._usual_backend(("native", "patches", *there), False, True, True) == expected
    assert rule._usual_backend(("native", "patches", *there), False, False, True) == expected
    assert rule._usual_backend(("native", "patches", *there), True, False, True) == "native"


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (Wish("graph"), ("graph", "native", True)),
        (Wish("stacked", "patches"), ("stacked", "patches", True)),
        (Wish("loop"), ("loop", "last", True)),
        (Wish("oracle", "native"), ("oracle", "native", True)),
        (Wish("auto", "patches"), ("graph", "patches", True)),
        (Wish("auto", "native"), ("loop", "native", True)),
        (Wish("auto", "auto", "off"), ("loop", "last", False)),
        (Wish("stacked", "native", "off"), ("stacked", "native", False)),
    ],
)
def test_what_was_asked_for_is_taken(large, wish, expected):
    assert taken(choose(wish, *large)) == expected


@pytest.mark.parametrize(
    ("wish", "expected"),
    [
        (Wish("auto", "auto", "on"), ("graph", "patches", True)),
        (Wish("auto", "patches"), ("graph", "patches", True)),
        (Wish("stacked"), ("stacked", "native", False)),
        (Wish("stacked", "native", "on"), ("stacked", "native", True)),
    ],
)
def test_small_convolutions_do_without_onednn_unless_it_is_asked_for(cnn, wish, expected):
    assert taken(choose(wish, *cnn)) == expected


@pytest.mark.parametrize("network", ["cnn", "mlp"])
def test_the_same_configuration_has_the_same_choice_and_no_clock_is_read(request, monkeypatch, network):
    def read(*given):
        raise AssertionError("a clock was read")

    for name in ("time", "perf_counter", "thread_time", "process_time", "monotonic"):
        monkeypatch.setattr(time, name, read)
    given = request.getfixturevalue(network)
    assert len({taken(choose(Wish(), *given)) for _ in range(3)}) == 1


@pytest.mark.parametrize(("loop", "engine"), [(False, "stacked"), (True, "oracle")])
def test_without_faster_engines_the_plain_ones_are_taken(mlp, monkeypatch, loop, engine):
    monkeypatch.setattr(rule, "engine_names", lambda: ("stacked", "oracle"))
    assert choose(Wish(), *mlp, busy=1.0 if loop else 10.0).engine.name == engine


def test_a_model_that_cannot_be_stacked_goes_through_the_loop(mlp):
    model, *few = mlp
    stubborn = replace(model, unstackable=("fc: a reason",))
    found = choose(Wish(), stubborn, *few)
    assert (found.engine.name, found.remark) == ("loop", "fc: a reason")
    with pytest.raises(ValueError, match="a reason"):
        choose(Wish("stacked"), stubborn, *few)
    with pytest.raises(ValueError, match="possible"):
        choose(Wish("fast"), model, *few)


class Times:
    """A network whose outputs are so many times those of another; with TF32 a `share` of something else is added."""

    conv_backend = "times"

    def __init__(self, model, times=1.0, share=0.0):
        self.model, self.times, self.share, self.trainable = model, times, share, model.trainable

    def __call__(self, params, x, **kwargs):
        output, buffers = self.model(params, x, **kwargs)
        wrong = self.share * output.roll(1, -1) if torch.backends.cuda.matmul.allow_tf32 else 0.0
        return self.times * (output + wrong), buffers


def test_wrong_gradients_are_refused(cnn):
    model, x, params = cnn
    rule.check_gradients(model.with_conv_backend("patches"), model, x, params, 10)
    with pytest.raises(ValueError, match=r"are wrong on this machine \(the gradient of .* differs .* by 300%; 2% may"):
        rule.check_gradients(Times(model, 2.0), model, x, params, 10)


def test_a_wrong_kernel_ends_the_run_before_it_begins(cnn, monkeypatch):
    model, x, params = cnn
    monkeypatch.setattr(type(model), "with_conv_backend", lambda model, backend: Times(model, 2.0))
    with pytest.raises(ValueError, match="are wrong on this machine"):
        choose(Wish("stacked", "patches"), model, x, params)


def test_slopes_that_are_only_rounding_do_not_make_a_backend_wrong():
    """Biases before batch norm: backends differ there by more than a slope's own length. Elsewhere 3 % are refused."""
    model = models.build("office_cnn", (3, 70, 70), 5, width=4)
    params, x = model.init(0), torch.randn(8, 3, 70, 70, generator=torch.Generator().manual_seed(0))
    patches = model.with_conv_backend("patches")
    found, right = (rule._slopes(each, params, x) for each in (patches, model))
    name = "base.conv1.bias"
    assert float((found[name] - right[name]).norm()) > rule.STRICT * float(right[name].norm())
    rule.check_gradients(patches, model, x, params, 8)
    with pytest.raises(ValueError, match="are wrong on this machine"):
        rule.check_gradients(Times(model, 1.03), model, x, params, 8)


@pytest.mark.parametrize(
    ("native", "ours", "right"),
    [
        ((0.05, 1), (-0.05, 1), True),
        ((0.4, 1), (-0.3, 1), True),
        ((0.05, 1), (0.4, 1), False),
        ((0.4, 1), (0.4, 2), False),
    ],
)
def test_with_tf32_a_backend_may_be_as_far_from_exact_gradients_as_pytorchs_own(cnn, native, ours, right):
    model, x, params = cnn

    def rounded(share, times):
        return Times(model, times, share)

    with with_tf32(True):
        if right:
            rule.check_gradients(rounded(*ours), rounded(*native), x, params, 10)
        else:
            with pytest.raises(ValueError, match="are wrong on this machine"):
                rule.check_gradients(rounded(*ours), rounded(*native), x, params, 10)
        assert torch.backends.cuda.matmul.allow_tf32
    with with_tf32(False):
        rule.check_gradients(rounded(9.0, 1), model, x, params, 10)


@pytest.mark.parametrize("text", [FULL, "shapes do not fit"])
def test_a_network_that_does_not_fit_is_not_called_one_that_cannot_be_stacked(cnn, monkeypatch, text):
    model, x, params = cnn

    def full(*args, **settings):
        raise torch.OutOfMemoryError(text) if text == FULL else RuntimeError(text)

    monkeypatch.setattr(type(model), "__call__", full)
    if text == FULL:
        with pytest.raises(ValueError, match="one client alone does not fit into the memory of cpu: use a smaller"):
            rule.why_unstackable(model, x, params)
    else:
        assert text in rule.why_unstackable(model, x, params)


def test_switches_are_put_back():
    with with_onednn(False):
        assert not torch.backends.mkldnn.enabled
        with with_onednn(True):
            assert torch.backends.mkldnn.enabled
        assert not torch.backends.mkldnn.enabled
    assert torch.backends.mkldnn.enabled


def test_the_choice_is_reported_and_repeated(tmp_path, monkeypatch):
    config = Config(**CNN)
    whole = run.start_run(config, tmp_path / "whole")
    facts = json.loads((tmp_path / "whole" / "run.json").read_text())
    assert (facts["engine"], facts["convolution"], facts["onednn"]) == ("graph", "native", "off")
    assert torch.backends.mkldnn.enabled  # as before the run

    class Stop(Exception):
        pass

    def stop(round, rounds, lines):
        assert not torch.backends.mkldnn.enabled
        if round == 1:
            raise Stop

    with pytest.raises(Stop):
        run.start_run(config, tmp_path / "cut", stop)
    assert torch.backends.mkldnn.enabled  # also after an exception
    monkeypatch.setattr(rule, "SMALL", 0)  # what would be chosen now is another engine
    again = run.resume_run(tmp_path / "cut")
    assert (again.setup.engine, again.setup.sim.model.conv_backend) == (GRAPH, "native")
    assert not again.setup.settings.onednn
    assert all(torch.equal(whole.state.params[n], p) for n, p in again.state.params.items())


def test_backends_agree():
    runs = [posterity.run(**CNN, engine="loop", convolution=each, onednn=switch, dtype="float64")
            for each, switch in (("native", "on"), ("last", "on"), ("patches", "on"), ("native", "off"))]  # fmt: skip
    values = [r.metric("nll", show="last") for r in runs]
    assert values[1:] == pytest.approx([values[0]] * 3, rel=1e-9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"onednn": "maybe"}, "possible: auto, off, on"),
        ({"convolution": "first"}, "possible: auto, last, native, patches, triton"),
        ({"engine": "processes"}, "possible: auto, compiled, graph, loop"),
        ({"engine": "stacked", "convolution": "last"}, "use --engine loop"),
    ],
)
def test_bad_values_are_explained(settings, message):
    with pytest.raises(ValueError, match=message):
        posterity.run(**{**CNN, **settings})


def test_a_run_after_another_has_its_own_switch():
    assert not set_up(Config(**CNN)).settings.onednn
    assert torch.backends.mkldnn.enabled
    assert set_up(Config(**SMALL)).settings.onednn
