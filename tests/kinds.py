"""One method of each kind: what `make test` runs where a test is about engines and folders and not about methods.

Every method is under the laws, `resume` among them, and has tests of its own in `make test`; what is repeated for all
of them besides is for `make test-all`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

KINDS = (
    "fedavg",  # a mean
    "fedper",  # a record
    "scaffold",  # sums beside means, a record of another shape
    "fednp",  # remembered factors
    "fedmap",  # log-weights, scored as trained
    "pfedvmp",  # matrices
    "fedpac",  # rows: something for each client
    "fedbe",  # a bag, public rows, a server that trains
    "pfedgp",  # work before any prediction
    "ditto",  # two networks
    "qlsd",  # a server that draws
    "fedavg+metavd",
    "fedavg+calibrated",
)

FEWER: dict[str, dict[str, Any]] = {  # draws and steps: what laws and engines promise does not depend on how many
    "pfedgp": {"chains": 2, "test_chains": 3, "gibbs_steps": 2},
    "pfedbayes": {"inner": 2},
    "pfedme": {"prox_steps": 2},
    "pvi": {"samples": 1},
    "pfedbred": {"prox_steps": 2},
    "fedbe": {"samples": 3, "server_steps": 6, "server_batch": 4},
}


def of_each_kind(specs: Iterable[str]) -> list[Any]:
    """Parameters of a test: those that are not of `KINDS` are for `make test-all`."""
    return [pytest.param(spec, marks=() if spec in KINDS else pytest.mark.everything) for spec in specs]


def everything(*values: Any) -> list[Any]:
    """Parameters of a test that only `make test-all` runs: several arguments are a tuple."""
    each = (value if isinstance(value, tuple) else (value,) for value in values)
    return [pytest.param(*one, marks=pytest.mark.everything) for one in each]


def needs(spec: str) -> dict[str, str]:
    """Settings that a method cannot do without."""
    return {"public": "10%"} if spec.startswith("fedbe") else {}


def fewer(spec: str) -> dict[str, str]:
    """`FEWER` as settings of a run."""
    return {name: str(value) for name, value in FEWER.get(spec, {}).items()}
