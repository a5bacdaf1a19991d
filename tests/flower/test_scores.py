"""Scores that sites compute are those of the simulator: at every point, for members and newcomers."""

from __future__ import annotations

from dataclasses import fields

import pytest

import posterity
from posterity.experiment.config import Config

from .in_process import configuration, deploy, federation_of

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
