"""`auto` takes what its trials find clearly faster, says so in `run.json`, and a resumed run does not ask again."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace

import pytest
import torch

import posterity
from posterity import models
from posterity.core.gaussian import with_tf32
from posterity.engine import choose as choice
from posterity.engine import choose as trials
from posterity.engine.choose import TURNS, Race, Trial, Way, Wish, choose, exchange, hold_race
from posterity.engine.process_settings import with_onednn, with_threads
from posterity.engine.processes import Processes
from posterity.experiment import run
from posterity.experiment.setup import set_up
from posterity.fast.graph import engine as GRAPH
from posterity.fast.loop import engine as LOOP
from posterity.settings.config import Config

SMALL = {"dataset": "digits", "clients": 4, "rounds": 3, "evaluate_every": 3, "subset": "10%", "method": "fedavg"}
CNN = {**SMALL, "model": "cnn", "set": {"model.feature_dim": 8}}
USUAL = {"loop": 1.0, "loop without oneDNN": 1.0, "loop channel last": 1.0, "native": 1.0,
         "native without oneDNN": 1.0, "patches": 1.0}  # fmt: skip


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
        monkeypatch.setattr(Trial, "timer", lambda trial, model, alone: lambda: 1.0)
        monkeypatch.setattr(Way, "switched", lambda way, timer: asked.append(way.label) or (lambda: table[way.label]))
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
        ({}, LOOP, "native", True),
        ({"patches": 0.98}, LOOP, "native", True),  # not clearly faster
        ({"patches": 0.5}, GRAPH, "patches", True),
        ({"native_without_onednn": 0.5, "patches": 0.6}, GRAPH, "native", False),
        ({"loop_without_onednn": 0.8}, LOOP, "native", False),
        ({"loop_channel_last": 0.8}, LOOP, "last", True),
    ],
)
def test_the_clearly_fastest_is_taken(cnn, clock, times, engine, way, onednn):
    clock(**times)
    found = choose(Wish(), *cnn)
    assert (found.engine, found.model.conv_backend, found.onednn) == (engine, way, onednn)


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
        assert found.model.conv_backend == wish.convolution
        assert found.onednn == (wish.onednn != "off")


def test_a_network_without_convolutions_needs_no_trial(clock):
    asked, model = clock(), models.build("mlp", (1, 8, 8), 10)
    found = choose(Wish(), model, torch.randn(4, 1, 8, 8), model.init(0))
    assert (found.engine, found.onednn, found.remark, asked) == (GRAPH, True, "", [])


def test_processes_take_what_the_first_takes(cnn, clock, monkeypatch):
    clock(patches=0.5)
    monkeypatch.setattr(
        Processes, "tell", lambda processes, number: [3.0, number]
    )  # the first process found another way best
    found = choose(Wish(), *cnn, processes=Processes(1, 2))
    assert (found.engine, found.model.conv_backend, found.onednn) == (GRAPH, "native", True)


def test_a_process_for_each_core_is_tried_with_one_thread(cnn, monkeypatch):
    seen = []

    def timer(trial, model, alone):
        return lambda: seen.append((torch.get_num_threads(), threading.active_count() - before)) or 8.0

    monkeypatch.setattr(Trial, "timer", timer)
    monkeypatch.setattr(Trial, "fitted", lambda trial, model: trial)
    before = threading.active_count()
    with with_threads(2):
        found = choose(Wish(), *cnn, cores=4)
        assert torch.get_num_threads() == 2
    assert threading.active_count() == before
    half = len(seen) // 2
    assert seen == [(2, 0)] * half + [(1, 3)] * half  # the other three cores are at work too
    assert (found.step, found.apart) == (1.0, 0.25)  # 8 clients
    assert choose(Wish(), *cnn).apart == 0


def test_real_trials_time_what_the_engines_do(cnn):
    model, x, params = cnn
    trial = Trial.of(x, params, 10, 3)
    assert trial.x.shape == (10, 1, 8, 8)
    assert all(trial.timer(model, alone)() > 0 for alone in (True, False))
    with pytest.raises(ValueError, match=r"are wrong on this machine \(the gradient of .* differs .* by 300%; 2% may"):
        trial.check(_doubled(model), model)


def test_slopes_that_are_only_rounding_do_not_make_a_way_wrong():
    """Biases before batch norm: the ways differ there by more than a slope's own length. Elsewhere 3 % are refused."""
    model = models.build("office_cnn", (3, 70, 70), 5, width=4)
    params = model.init(0)
    trial = Trial.of(torch.randn(8, 3, 70, 70, generator=torch.Generator().manual_seed(0)), params, 8, 2)
    patches = model.with_conv_backend("patches")
    many = trial._together(2)
    found, right = (trials._slopes(each, *many) for each in (patches, model))
    name = "base.conv1.bias"
    assert float((found[name] - right[name]).norm()) > trials.STRICT * float(right[name].norm())
    trial.check(patches, model)
    with pytest.raises(ValueError, match="are wrong on this machine"):
        trial.check(_doubled(model, 1.03), model)


def _rounded(model, share, times=1.0):
    """Its outputs with `share` of something else where TF32 is allowed, as if products had few bits."""

    class Rounded:
        way, trainable = "rounded", model.trainable

        def __call__(self, params, x, **kwargs):
            output, buffers = model(params, x, **kwargs)
            wrong = share * output.roll(1, -1) if torch.backends.cuda.matmul.allow_tf32 else 0.0
            return times * (output + wrong), buffers

    return Rounded()


@pytest.mark.parametrize(
    ("native", "ours", "right"),
    [
        ((0.05, 1), (-0.05, 1), True),
        ((0.4, 1), (-0.3, 1), True),
        ((0.05, 1), (0.4, 1), False),
        ((0.4, 1), (0.4, 2), False),
    ],
)
def test_with_tf32_a_way_may_be_as_far_from_exact_gradients_as_pytorchs_own(cnn, native, ours, right):
    model, x, params = cnn
    trial = Trial.of(x, params, 10, 3)
    with with_tf32(True):
        if right:
            trial.check(_rounded(model, *ours), _rounded(model, *native))
        else:
            with pytest.raises(ValueError, match="are wrong on this machine"):
                trial.check(_rounded(model, *ours), _rounded(model, *native))
        assert torch.backends.cuda.matmul.allow_tf32
    with with_tf32(False):
        trial.check(_rounded(model, 9.0), model)


def test_switches_hold_while_a_way_is_timed(cnn):
    ways = [Way("loop", cnn[0], on) for on in (True, False)]
    assert [way.switched(lambda: float(torch.backends.mkldnn.enabled))() for way in ways] == [1.0, 0.0]
    assert torch.backends.mkldnn.enabled


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(("short", "records", "recorded"), [(60.0, True, 1), (0.0, True, 0), (60.0, False, 0)])
def test_short_steps_are_recorded_before_they_are_tried(cnn, monkeypatch, short, records, recorded, alone):
    made, inner = [], trials.trace_flat
    monkeypatch.setattr(trials, "SHORT", short)
    monkeypatch.setattr(trials, "trace_flat", lambda *trees: made.append(inner(*trees)) or made[-1])
    model, x, params = cnn
    assert replace(Trial.of(x, params, 10, 3), records=records).timer(model, alone)() > 0
    assert len(made) == recorded


def test_the_loop_is_tried_as_it_runs(cnn, monkeypatch):
    model, x, params = cnn
    seen, before = [], threading.active_count()

    def seconds(trial, step):
        seen.append((torch.get_num_threads(), threading.active_count() - before))
        return 1.0

    monkeypatch.setattr(Trial, "_seconds", seconds)
    monkeypatch.setattr(Trial, "_recorded", lambda trial, called, pure, *trees: trials.Step(called))
    with with_threads(2):
        assert Trial.of(x, params, 10, 6).timer(model, True)() == 3.0  # two of six side by side
        assert Trial.of(x, params, 10, 1).timer(model, True)() == 1.0
    with with_threads(1):
        assert Trial.of(x, params, 10, 6).timer(model, True)() == 6.0
    assert seen == [(1, 1), (2, 0), (1, 0)]


def test_slow_networks_are_tried_with_few_clients(cnn, monkeypatch):
    model, x, params = cnn
    trial = Trial.of(x, params, 10, 8)
    for seconds, clients in ((0.001, 8), (0.02, 5), (1.0, 4)):  # of one client
        monkeypatch.setattr(Trial, "timer", lambda trial, model, alone, s=seconds: lambda: trial.clients * s)
        assert trial.fitted(model).clients == clients
    assert Trial.of(x, params, 10, 3).fitted(model).clients == 3


@pytest.mark.parametrize(
    ("usual", "rival", "winner"),
    [
        ([1.0] * 5, [0.95] * 5, 1),  # faster in every turn
        ([1.0] * 5, [0.98] * 5, 0),  # but hardly
        ([1.0] * 5, [0.9] * 4 + [1.01], 0),  # not in every turn
        ([1.0] * 5, [0.8] * 4 + [1.01], 1),  # but clearly
        ([1.0] * 4, [0.9] * 4, 0),  # too few turns
        ([1.0] * 4, [0.8] * 4, 1),
        ([1.0] * 5, [0.5], 0),  # dropped out
    ],
)
def test_the_usual_way_is_left_for_a_clearly_faster_one(usual, rival, winner):
    assert Race((tuple(usual), tuple(rival))).winner() == winner


def test_hopeless_ways_leave_the_race_and_the_usual_one_never_does():
    taken = []

    def timer(name, *seconds):
        supply = iter(seconds)
        return lambda: taken.append(name) or next(supply, seconds[-1])

    race = hold_race([timer("usual", 9.0, 1.0), timer("fast", 0.5), timer("slow", 0.8), timer("slowest", 20.0)])
    assert [len(times) for times in race.times] == [TURNS[1], TURNS[1], 2, 1]
    assert race.finished == [0, 1]
    assert race.medians == [1.0, 0.5, 0.8, 20.0]  # the first turn of the usual way warmed up
    assert taken[:4] == ["usual", "fast", "slow", "slowest"]
    assert taken[4:12] == ["usual", "fast", "slow"] * 2 + ["usual", "fast"]


def test_a_race_ends_in_time():
    clock = iter(range(10**6))  # a second between two looks
    assert len(hold_race([lambda: 1.0, lambda: 1.0], lambda: float(next(clock))).times[0]) == 2


def test_on_one_thread_other_programs_do_not_decide(cnn):
    """A thread that waits for its core, as one that sleeps, spends no time of its own: two of eighteen runs of one
    command had another engine than the same command had an hour before."""
    _, x, params = cnn
    with with_threads(1):
        trial = Trial.of(x, params, 10, 3)
        assert trial._seconds(lambda: time.sleep(0.05)) < 0.03
        assert trial._seconds(lambda: sum(range(10**6))) > 0.002
    with with_threads(2):  # the others' time is not this thread's
        trial = Trial.of(x, params, 10, 3)
        assert trial._seconds(lambda: time.sleep(0.05)) >= 0.05
        with with_threads(1):  # what processes would save is held against it
            assert trial._seconds(lambda: time.sleep(0.05)) >= 0.05


def _doubled(model, times=2.0):
    class Doubled:
        way = "doubled"

        def __call__(self, *args, **kwargs):
            output, buffers = model(*args, **kwargs)
            return times * output, buffers

    return Doubled()


def test_switches_are_put_back():
    with with_onednn(False):
        assert not torch.backends.mkldnn.enabled
        with with_onednn(True):
            assert torch.backends.mkldnn.enabled
        assert not torch.backends.mkldnn.enabled
    assert torch.backends.mkldnn.enabled


class Tight(Trial):
    """On a device on which steps of so many clients fit, and not of one more."""

    most = 3
    text = "CUDA out of memory. Tried to allocate 20.00 GiB"

    def _together(self, clients):
        if clients > self.most:
            raise torch.OutOfMemoryError(self.text)
        return super()._together(clients)


def test_a_trial_that_does_not_fit_is_held_with_half_as_many_clients(cnn, monkeypatch):
    freed = []
    monkeypatch.setattr(choice, "free", freed.append)
    monkeypatch.setattr(Trial, "of", staticmethod(lambda x, params, rows, clients: Tight(x, params, clients)))
    found = choose(Wish("graph"), *cnn, clients=8)
    assert found.remark.startswith("2 clients x 4 samples: native ")
    assert freed == [torch.device("cpu")] * 2  # eight and four did not fit
    assert found.step > 0


def test_a_step_of_one_client_that_does_not_fit_is_explained(cnn, monkeypatch):
    def full(*trees):
        raise torch.OutOfMemoryError(Tight.text)

    monkeypatch.setattr(trials, "_slopes", full)
    monkeypatch.setattr(Trial, "check", lambda *given: None)
    with pytest.raises(ValueError, match="one client alone does not fit into the memory of cpu: use a smaller --batch"):
        choose(Wish("graph"), *cnn, clients=8)


def test_another_error_of_a_trial_is_not_taken_for_a_lack_of_memory(cnn, monkeypatch):
    def wrong(*trees):
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(trials, "_slopes", wrong)
    monkeypatch.setattr(Trial, "check", lambda *given: None)
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        choose(Wish("graph"), *cnn, clients=8)


def test_a_network_that_does_not_fit_is_not_called_one_that_cannot_be_stacked(cnn):
    _, x, params = cnn

    def full(*args, **settings):
        raise torch.OutOfMemoryError(Tight.text)

    with pytest.raises(ValueError, match="one client alone does not fit"):
        choice.probe(full, x, params)


def test_the_choice_is_reported_and_repeated(clock, tmp_path, monkeypatch):
    asked = clock(native_without_onednn=0.4)
    whole = run.start_run(Config(**CNN), tmp_path / "whole")
    facts = json.loads((tmp_path / "whole" / "run.json").read_text())
    assert (facts["engine"], facts["convolution"], facts["onednn"]) == ("graph", "native", "off")
    assert "native without oneDNN 400.0 ms" in facts["engine_remark"]
    assert torch.backends.mkldnn.enabled  # as before the run

    class Stop(Exception):
        pass

    def stop(round, rounds, lines):
        assert not torch.backends.mkldnn.enabled
        if round == 1:
            raise Stop

    with pytest.raises(Stop):
        run.start_run(Config(**CNN), tmp_path / "cut", stop)
    assert torch.backends.mkldnn.enabled  # also after an exception
    asked.clear()
    clock(patches=0.1)  # what would be chosen now
    again = run.resume_run(tmp_path / "cut")
    assert (again.setup.engine, again.setup.sim.model.conv_backend) == (GRAPH, "native")
    assert not again.setup.settings.onednn
    assert asked == []
    assert all(torch.equal(whole.state.params[n], p) for n, p in again.state.params.items())


def test_a_run_after_another_has_its_own_switch(clock):
    clock(native_without_onednn=0.4)
    assert not set_up(Config(**CNN)).settings.onednn
    assert torch.backends.mkldnn.enabled
    assert set_up(Config(**SMALL)).settings.onednn


def test_ways_agree():
    runs = [posterity.run(**CNN, engine="loop", convolution=each, onednn=switch, dtype="float64")
            for each, switch in (("native", "on"), ("last", "on"), ("patches", "on"), ("native", "off"))]  # fmt: skip
    values = [r.metric("nll", show="last") for r in runs]
    assert values[1:] == pytest.approx([values[0]] * 3, rel=1e-9)


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
    small, large = (set_up(Config(**{**SMALL, "set": {"model.hidden": h}})).sim for h in ("8", "512"))
    assert choice.SHARING[0] < exchange(small) < exchange(large)
