"""Batch norm on batches of equal rows: a variance of 0, by which rounding errors would be divided."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from oracles.sims import Run, federate, mlp, worst

from posterity import methods, models
from posterity.engine.cache import TraceCache
from posterity.engine.engines import ORACLE, STACKED
from posterity.fast.compiled import engine as COMPILED
from posterity.fast.graph import engine as GRAPH

TRAINING = {"lr": 0.1, "batch": 4, "epochs": 3}
SINGLE = torch.float32


def equal_rows(shape, labels):
    """Three clients, each with one picture again and again."""
    source, train = torch.Generator().manual_seed(1), []
    for client, n in enumerate((12, 7, 20)):
        picture = 3 * torch.randn(1, *shape, generator=source) if labels else torch.full((1, *shape), 1.7 + client)
        y = torch.full((n,), client) if labels == "one" else torch.arange(n) % 3
        train.append((picture.expand(n, *shape).clone(), y))
    test = [(torch.randn(5, *shape, generator=source), torch.zeros(5, dtype=torch.int64)) for _ in train]
    return federate(train, 3, test=test)


def networks():
    flat = {labels: equal_rows((6,), labels) for labels in ("one", "mixed")}
    yield from ((f"mlp, {labels}", f, mlp(f, (16,), norm=True)) for labels, f in flat.items())
    plain = equal_rows((3, 16, 16), "")  # of one colour: only there are the values of a channel equal
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 5, 3), torch.nn.BatchNorm2d(5), torch.nn.ReLU(), torch.nn.Flatten(),
                              torch.nn.Linear(5 * 14 * 14, 3))  # fmt: skip
    yield "convolution", plain, models.wrap(net, "4", 3, "classification", shape=(3, 16, 16))


def run(engine, federation, model, dtype=SINGLE):
    first = {n: p.to(dtype) for n, p in model.init(0, SINGLE).items()}
    made = Run(methods.build("fedavg", {}, TRAINING), federation, model, engine, first, dtype)
    made.sim = replace(made.sim, traces=TraceCache(2))  # so that steps are replayed, too
    return made.rounds(1)


def check(engines, federation, model):
    """In single precision, after one round: within 1e-6 of double precision, and so of each other."""
    exact = run(ORACLE, federation, model, torch.float64)
    for engine in engines:
        made = run(engine, federation, model)
        assert worst(made.state, exact.state) < 1e-6, engine.name
        assert worst(made.outputs("received"), exact.outputs("received")) < 1e-5, engine.name


each_network = pytest.mark.parametrize(("name", "federation", "model"), [*networks()],
                                       ids=lambda v: v if isinstance(v, str) else "")  # fmt: skip


@each_network
def test_engines_agree_on_equal_rows(name, federation, model):
    check((ORACLE, STACKED, GRAPH), federation, model)


@pytest.mark.everything
@each_network
def test_compiled_steps_agree_on_equal_rows(name, federation, model):
    check((COMPILED,), federation, model)
