"""Recordings: bound to what their arguments are, not to which tensors happened to be equal when they were made."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import torch

from posterity.engine.cache import MOST, TraceCache, play
from posterity.fast._trace import capture, trace_flat


def weigh(a, b):
    return {"out": a["x"] * 2 + b["x"]}


def test_one_tensor_at_two_places_is_two_arguments():
    traces, one, other = TraceCache(patience=0), {"x": torch.tensor([1.0, 2.0])}, {"x": torch.tensor([5.0, 7.0])}
    assert play(traces, weigh, "weigh", weigh, one, one)["out"].tolist() == [3.0, 6.0]
    assert play(traces, weigh, "weigh", weigh, one, other)["out"].tolist() == [7.0, 11.0]
    assert play(traces, weigh, "weigh", weigh, other, one)["out"].tolist() == [11.0, 16.0]


def average(x):
    return {"out": x["x"].sum() / len(x["x"])}


def test_other_shapes_have_a_recording_of_their_own():
    traces = TraceCache(patience=0)
    for size in (2, 3, 2, 5):
        x = {"x": torch.arange(size, dtype=torch.float32)}
        assert float(play(traces, average, "average", average, x)["out"]) == (size - 1) / 2


def test_what_lies_crosswise_in_memory_gives_the_same_numbers():
    x = torch.arange(6.0).reshape(2, 3).t()
    run, _ = trace_flat(lambda a: a * 2, x)
    assert torch.equal(run(x.contiguous())[0], x * 2)


def test_calls_before_a_recording_and_after_agree():
    traces, found = TraceCache(patience=2), []
    for number in range(6):
        x = {"x": torch.full((3,), float(number))}
        found.append(play(traces, weigh, "weigh", weigh, x, x)["out"][0].item())
    assert found == [0.0, 3.0, 6.0, 9.0, 12.0, 15.0]


def test_recordings_that_never_fit_are_told_once():
    traces = TraceCache()
    traces.captures.allowed = 500
    said = []
    for _ in range(6):
        traces.overflow()
        said.append(traces.take_notes())
    assert said[:2] == said[3:5] == [[], []]
    assert len(said[2]) == 1
    assert "--memory (1,000 bytes)" in said[2][0]


class Device:
    """What PyTorch holds of a GPU: a body that is called takes 1,000 bytes, which are cached; recording it takes 10."""

    def __init__(self, monkeypatch):
        self.recorded, self.cached, self.recording = 0, 0, False
        side = SimpleNamespace(wait_stream=lambda other: None)
        for name, value in {
            "memory_reserved": lambda: self.recorded + self.cached,
            "empty_cache": lambda: setattr(self, "cached", 0),
            "Stream": lambda: side,
            "current_stream": lambda: side,
            "stream": lambda side: nullcontext(),
            "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None),
            "graph_pool_handle": object,
            "graph": self.graph,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)

    @contextmanager
    def graph(self, graph, pool):
        self.recording = True
        yield
        self.recording = False

    def body(self):
        if self.recording:
            self.recorded += 10
        else:
            self.cached = 1000


def test_what_warming_up_takes_is_not_counted_as_recorded(monkeypatch):
    """It was, each time that it had been given back: all recordings were forgotten and made again in every round."""
    device, traces = Device(monkeypatch), TraceCache()
    traces.captures.allowed = 45
    for made in range(1, 6):
        capture(traces, device.body)
        torch.cuda.empty_cache()
        assert traces.captures.bytes == 10 * made
    assert traces.captures.overflows == 0
    capture(traces, device.body)
    assert (traces.captures.overflows, traces.captures.bytes) == (1, 10)


def meet(traces, count):
    """Functions of so many shapes that never come again, as the rows of a random cohort."""
    for size in range(count):
        traces.entry(meet, size).calls += 1


def test_shapes_that_never_come_again_push_nothing_away_that_was_recorded():
    """A run of many rounds on uneven clients has a new shape in every round; its steps were made again every 450."""
    traces, called = TraceCache(patience=1), []

    def function(x):
        called.append(len(x["x"]))
        return {"out": x["x"] + 1}

    x = {"x": torch.ones(3)}
    for _ in range(2):  # called, then recorded
        play(traces, weigh, "f", function, x)
    before = len(called)
    meet(traces, 3 * MOST)
    assert play(traces, weigh, "f", function, x)["out"].tolist() == [2.0] * 3
    assert len(called) == before
    assert len(traces.found) <= MOST


def test_what_is_used_stays_though_everything_is_recorded():
    traces, made = TraceCache(), []
    for number in range(2 * MOST):
        traces.once(meet, "passes", lambda: made.append("passes") or object())
        traces.once(meet, number, object)
    assert made == ["passes"]


def test_nothing_that_was_made_is_made_again_because_it_is_none():
    """A step that cannot be compiled has None, and another attempt would take as long as the first."""
    traces, made = TraceCache(), []
    for _ in range(2):
        traces.once(meet, "compiled", lambda: made.append(1))
        meet(traces, 2 * MOST)
    assert made == [1]


def test_want_of_memory_costs_recordings_and_not_what_was_compiled():
    traces, made = TraceCache(), []
    for _ in range(2):
        traces.once(meet, "compiled", lambda: made.append("compiled"))
        traces.once(meet, "captured", lambda: made.append("captured"), holds=True)
        traces.captures.bytes = 7
        traces.forget()
        assert traces.captures.bytes == 0
    assert made == ["compiled", "captured", "captured"]
