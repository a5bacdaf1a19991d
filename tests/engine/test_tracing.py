"""Recordings: bound to what their arguments are, not to which tensors happened to be equal when they were made."""

from __future__ import annotations

import torch

from posterity.engine.tracing.trace import TraceCache, play, trace_flat


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
        traces.captures.overflows += 1
        said.append(traces.told())
    assert said[:2] == said[3:5] == [[], []]
    assert len(said[2]) == 1
    assert "--memory (1,000 bytes)" in said[2][0]
