"""The catalogue: all methods, wrappers and names, for programs."""

from __future__ import annotations

import json
from importlib import util
from pathlib import Path

import pytest

from posterity import methods

FILE = Path(__file__).parents[2] / "recipes" / "catalogue.py"
SPEC = util.spec_from_file_location("catalogue", FILE)
catalogue = util.module_from_spec(SPEC)
SPEC.loader.exec_module(catalogue)
everything, message_facts = catalogue.everything, catalogue.message_facts


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


def test_one_of_them():
    assert everything("vd")["names"]["vd"]["settings"] == {"metavd.family": "naive"}
    with pytest.raises(ValueError, match="did you mean 'fedavg'"):
        everything("fedawg")
