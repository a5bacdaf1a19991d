"""Withholding is a wrapper like others: clients side by side withhold what clients one by one do."""

from __future__ import annotations

import pytest

import posterity
from posterity.runs.lines import scores_of

RUN = {"dataset": "digits", "clients": 4, "subset": "8%", "rounds": 2, "lr": 0.05, "partition": "dirichlet:0.5:2",
       "evaluate_every": 2, "set": {"model.hidden": "8"}}  # fmt: skip


def scores(**changes):
    lines = posterity.run(**{**RUN, **changes}).lines
    return [line.clients[name] for line in scores_of(lines) for name in ("n", "nll")]


@pytest.mark.parametrize(
    "method",
    [pytest.param(m, marks=() if m == "fedproto" else pytest.mark.everything) for m in ("fedproto", "fedpac",
                                                                                       "pfedvmp", "pfedvmp@paper")],
)  # fmt: skip
def test_engines_withhold_the_same(method):
    one, all_at_once = (scores(method=method, min_count=5, engine=engine) for engine in ("oracle", "stacked"))
    for first, second in zip(one, all_at_once, strict=True):
        assert first == pytest.approx(second, rel=1e-4, nan_ok=True)
    assert one != scores(method=method, engine="oracle")
