"""Every method and every wrapper, a file or a folder, has a test file of its own here."""

from pathlib import Path

import pytest

from posterity.methods import available, suffixes

HERE = Path(__file__).parent
NAMES = [*available(), *suffixes()]


def test_every_method_has_a_test_file():
    assert {"local", "fedavg", "pfedvmp", "ft", "metavd"} <= set(NAMES)
    missing = [n for n in NAMES if not (HERE / f"test_{n}.py").exists()]
    assert not missing, f"no tests/methods/test_<name>.py for {missing}"


@pytest.mark.parametrize("name", [*NAMES, "presets"])
def test_every_method_refuses_bad_hyper_parameters(name):
    assert "def test_bad_hyper_parameters" in (HERE / f"test_{name}.py").read_text()
