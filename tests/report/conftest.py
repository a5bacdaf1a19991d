"""Fake comparisons that several test files read."""

from __future__ import annotations

from pathlib import Path

import pytest

from .fake_runs import comparison, write_run


@pytest.fixture(scope="session")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods, three seeds, newcomers, a common test set, refused messages and one run that is not finished."""
    methods = {"fedavg": 0.71, "metavd": 0.80, "pfedvmp": 0.91}
    root = comparison(tmp_path_factory.mktemp("trio"), methods, newcomers=4, trouble=True, common=True)
    write_run(root / "pfedvmp" / "seed-7", "pfedvmp", 0.5, 7, newcomers=4, status="running", stop=18)
    return root
