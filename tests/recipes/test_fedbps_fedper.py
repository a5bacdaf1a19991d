"""The finding about FedBPS's Table 1: its page has the differences that its runs have."""

from __future__ import annotations

import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

from posterity import models

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_differences_of_the_stored_runs():
    done = subprocess.run([sys.executable, ROOT / "recipes" / "fedbps_fedper.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip()
    assert lines.count("\n") == 11  # four rows, three data sets
    assert lines in (ROOT / "docs" / "results" / "fedbps.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "same", "shape"), [("LeNet5", "lenet5", (1, 28, 28)),
                                                      ("LeNetWide", "lenet_wide", (3, 32, 32))])  # fmt: skip
def test_only_the_head_is_another(name, same, shape):
    spec = util.spec_from_file_location("fedbps_fedper", ROOT / "recipes" / "fedbps_fedper.py")
    recipe = util.module_from_spec(spec)
    spec.loader.exec_module(recipe)
    ours, theirs = getattr(recipe, name)(shape, 10), models.build(same, shape, 10).module
    assert [p.shape for p in ours.parameters()] == [p.shape for p in theirs.parameters()]
    assert sum(n.startswith("classifier") for n, _ in ours.named_parameters()) == 6
