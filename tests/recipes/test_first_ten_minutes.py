"""The transcript of a newcomer's first ten minutes is that of the recipe's steps, and each ended as it should."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "first_ten_minutes.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n\$ (.*?)\n(.*?)\n?```(?:\n\(exit (\d+)\))?", PAGE, re.S)


@pytest.fixture
def steps(script):
    return script("first_ten_minutes").STEPS


def test_the_page_has_the_steps_of_the_recipe(steps):
    assert [command for command, _, _ in BLOCKS] == [step.command for step in steps]


def test_each_step_ended_as_it_should(steps):
    for step, (_, output, code) in zip(steps, BLOCKS, strict=True):
        assert int(code or 0) == step.code
        assert [text for text in step.shows if text not in output] == []
        assert "Traceback" not in output
