"""`posterity methods --json`: all there is, for programs."""

from __future__ import annotations

import json

import pytest

from posterity import methods
from posterity.cli.listing import everything, message_facts


@pytest.fixture(scope="module")
def found():
    return everything()


def test_it_has_everything(found):
    assert set(found) == {"methods", "wrappers", "names"}
    assert set(found["methods"]) == set(methods.available())
    assert set(found["wrappers"]) == set(methods.suffixes())
    assert set(found["names"]) == set(methods.names())
    json.dumps(found, allow_nan=False)


def test_a_method(found):
    told = found["methods"]["scaffold"]
    assert (told["label"], told["reference"], told["scored"]) == (
        "SCAFFOLD",
        "Karimireddy et al., ICML 2020",
        "received",
    )
    assert told["absent"].startswith("delta messages")
    assert told["messages"] == {"params": "Mean", "control": "Sum"}
    assert told["plain_sum"] is True
    knob = {k["name"]: k for k in found["methods"]["fedprox"]["hyperparameters"]}["mu"]
    assert (knob["default"], knob["type"], knob["search"]) == (0.01, "a number", [1e-3, 1.0, "log"])
    assert "paper tries" in knob["source"]
    training = {k["name"]: k for k in found["methods"]["reptile"]["training"]}
    assert (training["lr"]["default"], training["lr"]["paper"]) == (0.01, 0.02)


def test_kinds_are_seen(found):
    assert found["methods"]["fedmap"]["messages"] == {"params": "LogMean"}
    assert found["methods"]["fedmap"]["plain_sum"] is False
    assert found["methods"]["local"]["messages"] == {}
    assert found["wrappers"]["metavd"]["plain_sum"] is False
    assert found["wrappers"]["clip"]["messages"] == {"params": "Mean", "clip.shortened": "Sum"}
    assert found["wrappers"]["snip"]["messages"] == {"params": "Mean"}  # without what need not travel
    assert found["names"]["vd"]["spec"] == "reptile+metavd"


def test_a_method_that_refuses_says_why():
    told = message_facts(methods.build("fedmap+clip"))
    assert told["messages"] is None
    assert "as a LogMean" in told["why"]


def test_the_command(call):
    code, out, _ = call("methods", "vd", "--json")
    assert code == 0
    assert json.loads(out)["names"]["vd"]["settings"] == {"metavd.family": "naive"}
    code, _, complaint = call("methods", "fedawg", "--json")
    assert code != 0
    assert "did you mean 'fedavg'" in complaint


def test_the_table_lists_names(call):
    out = call("methods")[1]
    assert "ensemblevd" in out
    assert "reptile+metavd" in call("methods", "vd")[1]
