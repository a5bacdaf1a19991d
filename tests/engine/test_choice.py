"""`auto` takes what its trials find clearly faster, says so in `run.json`, and a resumed run does not ask again."""

from __future__ import annotations

import json

import pytest
import torch

import posterity
from posterity import models
from posterity.engine import choice, graph, loop
from posterity.engine.choice import Way, Wish, choose, exchange
from posterity.engine.ranks import Ranks
from posterity.engine.trials import Trial, use_onednn, with_onednn, with_threads
from posterity.experiment import run
from posterity.experiment.config import Config
from posterity.experiment.setup import set_up

SMALL = {"dataset": "digits", "clients": 4, "rounds": 3, "evaluate_every": 3, "subset": "10%", "method": "fedavg"}
CNN = {**SMALL, "model": "cnn", "set": {"model.feature_dim": 8}}
USUAL = {"loop": 1.0, "loop without oneDNN": 1.0, "loop channel last": 1.0, "native": 1.0,
         "native without oneDNN": 1.0, "patches": 1.0}  # fmt: skip


@pytest.fixture(autouse=True)
def _as_it_was():
    yield
    use_onednn(True)


@pytest.fixture
def cnn():
    model = models.build("cnn", (1, 8, 8), 10, feature_dim=8)
    return model, torch.randn(4, 1, 8, 8), model.init(0)


@pytest.fixture
def clock(monkeypatch):
    """Trials that take what a table says."""

    def set_times(**times):
        asked = []
        table = USUAL | {name.replace("_", " ").replace("onednn", "oneDNN"): t for name, t in times.items()}
        monkeypatch.setattr(Way, "seconds", lambda way, trial: asked.append(way.label) or table[way.label])
        return asked

    return set_times


def test_every_way_is_tried_on_a_cpu(cnn, clock):
    asked = clock()
    found = choose(Wish(), *cnn)
    assert asked == ["loop", "loop without oneDNN", "loop channel last", "native", "native without oneDNN", "patches"]
    assert all(f"{name} 1000.0 ms" in found.remark for name in asked)


@pytest.mark.parametrize(
    ("times", "engine", "way", "onednn"),
    [
        ({}, loop, "native", True),
        ({"patches": 0.95}, loop, "native", True),  # not clearly faster
        ({"patches": 0.5}, graph, "patches", True),
        ({"native_without_onednn": 0.5, "patches": 0.6}, graph, "native", False),
        ({"loop_without_onednn": 0.8}, loop, "native", False),
        ({"loop_channel_last": 0.8}, loop, "last", True),
    ],
)
def test_the_clearly_fastest_is_taken(cnn, clock, times, engine, way, onednn):
    clock(**times)
    found = choose(Wish(), *cnn)
    assert (found.engine, found.model.way, found.onednn) == (engine, way, onednn)


@pytest.mark.parametrize(
    ("wish", "tried"),
    [
        (Wish("graph"), ["native", "native without oneDNN", "patches"]),
        (Wish("loop"), ["loop", "loop without oneDNN", "loop channel last"]),
        (Wish("auto", "native"), ["loop", "loop without oneDNN", "native", "native without oneDNN"]),
        (Wish("auto", "auto", "on"), ["loop", "loop channel last", "native", "patches"]),
        (Wish("graph", "patches"), []),
        (Wish("loop", "last"), []),
        (Wish("stacked", "native", "off"), []),
    ],
)
def test_what_was_asked_for_is_not_tried(cnn, clock, wish, tried):
    asked = clock()
    found = choose(wish, *cnn)
    assert asked == tried
    if not tried:
        assert found.model.way == wish.convolution
        assert found.onednn == (wish.onednn != "off")


def test_a_network_without_convolutions_needs_no_trial(clock):
    asked, model = clock(), models.build("mlp", (1, 8, 8), 10)
    found = choose(Wish(), model, torch.randn(4, 1, 8, 8), model.init(0))
    assert (found.engine, found.onednn, found.remark, asked) == (graph, True, "", [])


def test_processes_take_what_the_first_takes(cnn, clock, monkeypatch):
    clock(patches=0.5)
    monkeypatch.setattr(Ranks, "tell", lambda ranks, number: [3.0, number])  # the first process found another way best
    found = choose(Wish(), *cnn, ranks=Ranks(1, 2))
    assert (found.engine, found.model.way, found.onednn) == (graph, "native", True)


def test_a_process_for_each_core_is_tried_with_one_thread(cnn, monkeypatch):
    threads = []
    monkeypatch.setattr(Way, "seconds", lambda way, trial: threads.append(torch.get_num_threads()) or 8.0)
    with with_threads(2):
        found = choose(Wish(), *cnn, cores=4)
        assert torch.get_num_threads() == 2
    assert threads == [2] * len(USUAL) + [1]
    assert (found.step, found.apart) == (1.0, 0.25)  # 8 clients
    assert choose(Wish(), *cnn).apart == 0


def test_real_trials_time_what_the_engines_do(cnn):
    model, x, params = cnn
    trial = Trial.of(x, params, 10, 3)
    assert trial.x.shape == (10, 1, 8, 8)
    assert all(trial.seconds(model, alone) > 0 for alone in (True, False))
    with pytest.raises(ValueError, match="are wrong on this machine"):
        trial.check(_doubled(model), model)


def _doubled(model):
    class Doubled:
        way = "doubled"

        def __call__(self, *args, **kwargs):
            output, buffers = model(*args, **kwargs)
            return 2 * output, buffers

    return Doubled()


def test_switches_are_put_back():
    with with_onednn(False):
        assert not torch.backends.mkldnn.enabled
        with with_onednn(True):
            assert torch.backends.mkldnn.enabled
        assert not torch.backends.mkldnn.enabled
    assert torch.backends.mkldnn.enabled


def test_the_choice_is_reported_and_repeated(clock, tmp_path, monkeypatch):
    asked = clock(native_without_onednn=0.4)
    whole = run.start_run(Config(**CNN), tmp_path / "whole")
    facts = json.loads((tmp_path / "whole" / "run.json").read_text())
    assert (facts["engine"], facts["convolution"], facts["onednn"]) == ("graph", "native", "off")
    assert "native without oneDNN 400.0 ms" in facts["engine_remark"]
    assert not torch.backends.mkldnn.enabled

    class Stop(Exception):
        pass

    def stop(round, rounds, lines):
        if round == 1:
            raise Stop

    with pytest.raises(Stop):
        run.start_run(Config(**CNN), tmp_path / "cut", stop)
    use_onednn(True)
    asked.clear()
    clock(patches=0.1)  # what would be chosen now
    again = run.resume_run(tmp_path / "cut")
    assert (again.setup.engine, again.setup.world.model.way) == (graph, "native")
    assert not torch.backends.mkldnn.enabled
    assert asked == []
    assert all(torch.equal(whole.state.params[n], p) for n, p in again.state.params.items())


def test_a_run_after_another_has_its_own_switch(clock):
    clock(native_without_onednn=0.4)
    set_up(Config(**CNN))
    assert not torch.backends.mkldnn.enabled
    set_up(Config(**SMALL))
    assert torch.backends.mkldnn.enabled


@pytest.mark.parametrize("way", ["last", "patches"])
def test_ways_agree(way):
    runs = [posterity.run(**CNN, engine="loop", convolution=each, onednn=switch, dtype="float64")
            for each, switch in (("native", "on"), (way, "on"), ("native", "off"))]  # fmt: skip
    values = [r.metric("nll", show="last") for r in runs]
    assert values[1:] == pytest.approx([values[0]] * 2, rel=1e-9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"onednn": "maybe"}, "possible: auto, off, on"),
        ({"convolution": "first"}, "possible: auto, last, native, patches, triton"),
        ({"engine": "processes"}, "started by the command line"),
        ({"engine": "stacked", "convolution": "last"}, "use --engine loop"),
    ],
)
def test_bad_values_are_explained(settings, message):
    with pytest.raises(ValueError, match=message):
        posterity.run(**{**CNN, **settings})


def test_an_exchange_costs_more_for_larger_networks():
    small, large = (set_up(Config(**{**SMALL, "set": {"model.hidden": h}})).world for h in ("8", "512"))
    assert choice.SHARING[0] < exchange(small) < exchange(large)
