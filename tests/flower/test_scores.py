"""Scores that sites compute are those of the simulator: at every point, for members and newcomers."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest
from core.test_codec import with_header

import posterity
from posterity.experiment.config import Config

from .in_process import configuration, deploy, federation_of, node_of

POINTS = ("trained", "received", "adapted")


def simulated(config: Config):
    """(group, point, epochs, part) -> values of each client, of the last round."""
    result = posterity.run(**{f.name: getattr(config, f.name) for f in fields(config)})
    return {
        (line["group"], line["point"], line["epochs"], line["part"]): line["clients"]
        for line in result.lines
        if line["kind"] == "score" and line["round"] == config.rounds
    }


@pytest.mark.parametrize(
    "spec",
    [
        "pfedvmp",
        "feddyn",
        pytest.param("fedper+ft", marks=pytest.mark.everything),
        pytest.param("fedavg+calibrated", marks=pytest.mark.everything),
    ],
)
def test_they_are_those_of_the_simulator(spec, tmp_path):
    config = configuration(spec, clients=4, newcomers="1")
    lines: list = []
    server = deploy(config, tmp_path, lines.append)
    expected, members = simulated(config), federation_of(config).members
    found = [line for line in lines if line["kind"] == "score"]
    assert {line["round"] for line in found} == {2}
    assert len(found) == members * len(POINTS) + 2
    for line in found:
        number = server.roster.numbers[line["client"]]
        group, place = ("members", number) if number < members else ("newcomers", number - members)
        for part in ("validation", "test"):
            values = expected[(group, line["point"], line["epochs"], part)]
            assert line[part]["n"] == values["n"][place]
            if line[part]["n"]:
                assert line[part]["accuracy"] == values["accuracy"][place]
                assert line[part]["nll"] == pytest.approx(values["nll"][place], rel=1e-12)


LIES = {
    "deep": lambda score: {**score, "more": json.loads("[" * 600 + "]" * 600)},
    "words": lambda score: {**score, "test": "good"},
    "nothing": lambda score: {name: score[name] for name in ("point", "round", "epochs")},
    "count": lambda score: {**score, "test": {**score["test"], "n": -1}},
    "metric": lambda score: {**score, "test": {**score["test"], "accuracy": "1.0"}},
    "large": lambda score: {**score, "test": {**score["test"], "accuracy": 10**400}},
}


@pytest.mark.parametrize("case", LIES)
def test_scores_of_another_form_are_refused(case, tmp_path):
    """They are written into the server's folder, so they must be what a reader of it expects."""
    config = configuration("fedavg", rounds=1)
    lines: list = []

    def lie(sent):
        def changed(header):
            facts = header["facts"]
            return {**header, "facts": {**facts, "scores": [LIES[case](each) for each in facts["scores"]]}}

        return with_header(sent, changed)

    server = deploy(config, tmp_path, lines.append, {(node_of(1), n): lie for n in (4, 5, 6)})
    (line,) = [line for line in lines if line["kind"] == "round"]
    assert [(each["client"], each["reason"][:18]) for each in line["refused"]] == [("client 1", "its scores are no ")]
    assert server.finished
    assert {line["client"] for line in lines if line["kind"] == "score" and line["point"] == "trained"} == {
        "client 0",
        "client 2",
    }
